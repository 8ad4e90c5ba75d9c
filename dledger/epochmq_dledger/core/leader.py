"""How a leader's log reaches its peers and becomes committed (`DLedgerEntryPusher`'s dispatchers and ack
checker).

Each peer is in one of these states:

    Silent ──heartbeat answered──> Comparing ──equal, nothing behind──> Appending
                                     │ │ ▲                                 │
                                     │ │ └──── error, time-out, 406 ───────┤
                                     │ └──tail differs──> Truncating ──done┘
                                     └──what it lacks is no longer in our log──> Installing ──> Comparing

- Comparing finds the last entry that both logs have, walking back from the shorter log's end.
- Truncating makes the peer cut what follows, or takes its place where the logs share nothing.
- Installing sends our snapshot, piece by piece (see `install`).
- Appending sends entries in batches, many in flight, bounded by count and bytes; what does not fill a batch
  waits while some are under way.
A peer is pushed to only after it answered a heartbeat of this term: a Java peer refuses pushes before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from epochmq_dledger.core.heartbeat_rounds import HeartbeatRounds
from epochmq_dledger.core.member_state import MemberState
from epochmq_dledger.core.membership_change import MembershipChange
from epochmq_dledger.core.peer_progress import (
    AppendState,
    CompareState,
    InFlightPush,
    InstallSnapshotState,
    PausedState,
    PeerProgress,
    TruncateState,
)
from epochmq_dledger.core.raft_log import LogFullError, make_entry
from epochmq_dledger.core.types import (
    OperationFailed,
    Proposal,
    ProposalCommitted,
    RaftRole,
    SendRequest,
    SendSnapshotChunk,
)
from epochmq_protocol.dledger import (
    FEATURE_PRE_VOTE,
    FEATURE_SNAPSHOT,
    DLedgerEntry,
    DLedgerResponseCode,
    HeartBeatRequest,
    HeartBeatResponse,
    InstallSnapshotRequest,
    InstallSnapshotResponse,
    PushEntryRequest,
    PushEntryResponse,
    PushType,
)


class PendingProposal(msgspec.Struct, frozen=True):
    """A proposal that waits until its last entry is committed."""

    token: int
    index: int
    pos: int
    deadline_ms: int


class Leader:
    """One term's leadership. It is thrown away when the term or the role changes."""

    def __init__(self, member: MemberState, now_ms: int) -> None:
        self.member = member
        self.term = member.term
        self.peers = {name: PeerProgress(name) for name in member.others}
        self.contact_ms = now_ms
        """The latest moment at which a quorum surely followed this leader; its beginning counts as one."""
        self.next_heartbeat_ms = now_ms
        self.rounds = HeartbeatRounds(member, now_ms)
        self.pending: deque[PendingProposal] = deque()
        self.transferring_until_ms: int | None = None
        self.first_index = member.log.end_index + 1
        self.change = MembershipChange(self)
        self._owes_entry = member.settings.entry_of_own_term
        self.begin_term()

    def begin_term(self) -> None:
        """The first entry of this leadership; tried again with each heartbeat while the disk is full."""
        if self._owes_entry and self.append((b"",)) is not None:
            self._owes_entry = False

    # Heartbeats and reads -----------------------------------------------------------------------------------

    def heartbeat(self, now_ms: int) -> None:
        """Starts a round of heartbeats."""
        member = self.member
        self.begin_term()
        number = self.rounds.start(now_ms)
        self.next_heartbeat_ms = now_ms + member.settings.heartbeat_interval_ms
        told = (FEATURE_PRE_VOTE, FEATURE_SNAPSHOT)
        member.group_features = sum(feature for feature in told if member.all_support(feature))
        for peer, state in self.peers.items():
            request = HeartBeatRequest(epochmq_all=member.group_features)
            if state.rejoin is not None:
                request.epochmq_rejoin, request.epochmq_until = state.rejoin, state.rejoin_until
            member.fill_request(request, peer)
            member.emit(SendRequest(peer, number, request))
        self._serve_reads()

    def on_heartbeat_response(self, name: str, number: int, response: HeartBeatResponse | None) -> int | None:
        """Counts a heartbeat's answer; returns a newer term if the answer shows one."""
        peer = self.peers[name]
        sent_ms = self.rounds.sent_ms(number)
        peer.alive = response is not None
        if response is None:
            return None
        if response.code == DLedgerResponseCode.EXPIRED_TERM and response.term > self.term:
            return response.term
        if response.code != DLedgerResponseCode.SUCCESS:
            return None
        if sent_ms is None:
            return None  # an answer to an earlier leadership of this term, or one that comes too late
        if self._is_rejoining(peer, response.epochmq_rejoin, number):
            return None
        if number > peer.heartbeat_round:
            peer.heartbeat_round = number
            peer.contact_ms = sent_ms
            self.update_contact()
        if isinstance(peer.state, PausedState) and peer.state.until_ms == 0:
            peer.state = CompareState()
        self._serve_reads()
        return None

    def _is_rejoining(self, peer: PeerProgress, number: int | None, answered: int) -> bool:
        """Whether a peer has lost something and has not caught up (see `rejoin`). What it acknowledged
        before it was started this time counts no more."""
        if number is None:
            if answered > peer.heartbeat_round:
                peer.rejoin = None
            return peer.rejoin is not None
        if number != peer.rejoin:
            peer.rejoin, peer.rejoin_until = number, self.member.log.end_index
            peer.match_index = -1
            peer.heartbeat_round = max(peer.heartbeat_round, answered)
            peer.contact_ms = -1
            peer.state = CompareState()
        return True

    def update_contact(self) -> None:
        """Finds out when a quorum last followed."""
        counted = (-1 if p.rejoin is not None else p.contact_ms for p in self.voters())
        times = sorted(counted, reverse=True)
        if self.member.quorum > 1:
            self.contact_ms = max(self.contact_ms, times[self.member.quorum - 2])

    def voters(self) -> list[PeerProgress]:
        """The other voters."""
        return [peer for peer in self.peers.values() if peer.is_voter]

    def removed_peers(self) -> list[PeerProgress]:
        """Those that were removed lately."""
        guest = self.member.learner
        return [peer for peer in self.peers.values() if not peer.is_voter and peer.name != guest]

    def add_peer(self, name: str, *, is_voter: bool) -> None:
        """Deals with one more peer from now on."""
        if name not in self.peers:
            self.peers[name] = PeerProgress(name, is_voter=is_voter)
        self.peers[name].remove_at_ms = None

    def read_index(self, token: int) -> None:
        """Asks for a proof of leadership (see `rounds`)."""
        member = self.member
        if member.log.term(member.committed_index) != self.term and member.settings.entry_of_own_term:
            member.emit(OperationFailed(token, DLedgerResponseCode.LEADER_NOT_READY))
            return
        self.rounds.add_read(token)

    def _serve_reads(self) -> None:
        counted = (-1 if p.rejoin is not None else p.heartbeat_round for p in self.voters())
        answered = sorted(counted, reverse=True)
        needed = self.member.quorum - 1
        self.rounds.confirm_reads(self.rounds.number if needed == 0 else answered[needed - 1], self.term)

    # Proposals ----------------------------------------------------------------------------------------------

    def propose(self, proposals: Sequence[Proposal], now_ms: int) -> None:
        """Appends the proposals' entries, in one write; the quorum's answers come as `ProposalCommitted`."""
        member = self.member
        room = member.settings.pending_max - len(self.pending)
        taken: list[Proposal] = []
        for proposal in proposals:
            code: DLedgerResponseCode | None = None
            if self.transferring_until_ms is not None:
                code = DLedgerResponseCode.LEADER_TRANSFERRING
            elif len(taken) >= room:
                code = DLedgerResponseCode.LEADER_PENDING_FULL
            elif not proposal.bodies:
                code = DLedgerResponseCode.REQUEST_WITH_EMPTY_BODYS
            if code is None:
                taken.append(proposal)
            else:
                member.emit(OperationFailed(proposal.token, code))
        if taken:
            self._take(taken, now_ms + member.settings.ack_wait_max_ms)

    def _take(self, proposals: Sequence[Proposal], deadline_ms: int) -> None:
        """When there is no room for all of them together, each is tried alone, unless some of it was written
        and must be erased first."""
        if self.member.is_erasing:
            for proposal in proposals:
                self.member.emit(OperationFailed(proposal.token, DLedgerResponseCode.DISK_FULL))
            return
        entries = self.append([body for proposal in proposals for body in proposal.bodies])
        if entries is None and len(proposals) > 1 and not self.member.is_erasing:
            for proposal in proposals:
                self._take([proposal], deadline_ms)
        elif entries is None:
            for proposal in proposals:
                self.member.emit_after_erasure(OperationFailed(proposal.token, DLedgerResponseCode.DISK_FULL))
        else:
            at = -1
            for proposal in proposals:
                at += len(proposal.bodies)
                self.pending.append(
                    PendingProposal(proposal.token, entries[at].index, entries[at].pos, deadline_ms)
                )

    def propose_on_channel(self, token: int, body: bytes, channel: int, now_ms: int) -> bool:
        """Appends one entry of a channel of its own; False, and it is refused, when there is no room."""
        entries = self.append((body,), channel)
        if entries is None:
            self.member.emit_after_erasure(OperationFailed(token, DLedgerResponseCode.DISK_FULL))
            return False
        deadline_ms = now_ms + self.member.settings.ack_wait_max_ms
        self.pending.append(PendingProposal(token, entries[0].index, entries[0].pos, deadline_ms))
        return True

    def append(self, bodies: Sequence[bytes], channel: int = 0) -> list[DLedgerEntry] | None:
        """The entries written, None when there is no room for them."""
        member = self.member
        log, file_size = member.log, member.settings.file_size
        index, end_pos = log.end_index, log.end_pos
        entries: list[DLedgerEntry] = []
        for body in bodies:
            index += 1
            entry = make_entry(index, self.term, body, end_pos, file_size, channel)
            end_pos = entry.pos + entry.size
            entries.append(entry)
        try:
            member.append(entries)
        except LogFullError:
            return None
        return entries

    def abort(self) -> None:
        """The leadership is over: nobody knows what becomes of what was proposed."""
        self.change.abort()
        for pending in self.pending:
            self.member.emit(OperationFailed(pending.token, DLedgerResponseCode.TERM_CHANGED))
        self.rounds.abort()

    # Pushing ------------------------------------------------------------------------------------------------

    def advance(self, now_ms: int) -> None:
        """Does all that time or new entries call for."""
        if now_ms >= self.next_heartbeat_ms or self.rounds.is_due(now_ms):
            self.heartbeat(now_ms)
        if self.transferring_until_ms is not None and now_ms > self.transferring_until_ms:
            self.transferring_until_ms = None
        while self.pending and self.pending[0].deadline_ms < now_ms:
            pending = self.pending.popleft()
            self.member.emit(OperationFailed(pending.token, DLedgerResponseCode.WAIT_QUORUM_ACK_TIMEOUT))
        self.advance_commit()
        self.change.advance(now_ms)
        for peer in self.peers.values():
            self._drive_peer(peer, now_ms)

    def next_deadline_ms(self) -> int:
        """When time alone makes this leader act next, whatever its peers say until then."""
        settings = self.member.settings
        deadline_ms = self.next_heartbeat_ms
        if self.transferring_until_ms is not None:
            deadline_ms = min(deadline_ms, self.transferring_until_ms + 1)
        if self.pending:
            deadline_ms = min(deadline_ms, self.pending[0].deadline_ms + 1)
        deadline_ms = min(deadline_ms, self.change.next_deadline_ms() or deadline_ms)
        deadline_ms = min(deadline_ms, self.rounds.next_deadline_ms() or deadline_ms)
        for peer in self.peers.values():
            state = peer.state
            if isinstance(state, AppendState):
                if state.in_flight:
                    deadline_ms = min(deadline_ms, state.in_flight[0].sent_ms + settings.push_timeout_ms + 1)
                elif self.member.committed_index >= 0:
                    deadline_ms = min(deadline_ms, state.pushed_ms + settings.commit_push_interval_ms)
            elif isinstance(state, PausedState) and state.until_ms > 0:
                deadline_ms = min(deadline_ms, state.until_ms)
        return deadline_ms

    def _drive_peer(self, peer: PeerProgress, now_ms: int) -> None:
        match peer.state:
            case PausedState(until_ms=until_ms) if 0 < until_ms <= now_ms:
                peer.state = CompareState()
                self._drive_peer(peer, now_ms)
            case CompareState(context=None) as state:
                self._send_compare(peer, state)
            case TruncateState(context=None) as state:
                self._send_truncate(peer, state)
            case InstallSnapshotState(context=None) as state:
                self._send_piece(peer, state)
            case AppendState() as state:
                self._send_appends(peer, state, now_ms)
            case _:
                pass

    def _push(self, peer: PeerProgress, kind: PushType, entries: list[DLedgerEntry]) -> int:
        member = self.member
        request = PushEntryRequest(type=kind, commit_index=member.committed_index)
        if len(entries) == 1:
            request.entry = entries[0]
        elif entries:
            request.batch_entry = entries
            request.total_size = sum(entry.size for entry in entries)
        member.fill_request(request, peer.name)
        context = member.context()
        member.emit(SendRequest(peer.name, context, request))
        return context

    def _send_compare(self, peer: PeerProgress, state: CompareState) -> None:
        log = self.member.log
        if log.end_index < 0:
            return
        if not log.begin_index <= state.index <= log.end_index:
            state.index = log.end_index
        entry = log.entry(state.index)
        assert entry is not None
        state.context = self._push(peer, PushType.COMPARE, [entry])

    def _send_truncate(self, peer: PeerProgress, state: TruncateState) -> None:
        entry = self.member.log.entry(state.index)
        if entry is None:  # dropped since: a snapshot includes it
            peer.state = CompareState()
            self._drive_peer(peer, 0)
            return
        state.context = self._push(peer, PushType.TRUNCATE, [entry])

    def _begin_anew(self, peer: PeerProgress, now_ms: int) -> None:
        """The peer has nothing of our log: it gets all of it or, where the beginning is gone, the snapshot
        that has taken its place."""
        member = self.member
        if member.log.begin_index <= 0 or member.snapshot is None:
            peer.state = TruncateState(member.log.begin_index)
        elif member.features.get(peer.name, 0) & FEATURE_SNAPSHOT:
            peer.state = InstallSnapshotState(member.snapshot)
        else:
            member.alarm(
                peer.name,
                f"{peer.name} lacks entries before {member.log.begin_index}, which are only in a snapshot "
                "here, and it takes no snapshots: copy the folder of a peer of ours to it",
            )
            self._pause(peer, now_ms)

    def _send_piece(self, peer: PeerProgress, state: InstallSnapshotState) -> None:
        member = self.member
        snapshot = member.snapshot
        assert snapshot is not None
        if snapshot != state.snapshot:
            state.snapshot, state.offset = snapshot, 0
        request = InstallSnapshotRequest(
            entry=snapshot.entry,
            offset=state.offset,
            size=snapshot.size,
            crc=snapshot.crc,
            members=snapshot.members,
        )
        member.fill_request(request, peer.name)
        state.context = member.context()
        size = min(member.settings.snapshot_chunk_bytes, snapshot.size - state.offset)
        member.emit(SendSnapshotChunk(peer.name, state.context, request, size))

    def on_chunk_response(
        self,
        name: str,
        context: int,
        request: InstallSnapshotRequest,
        response: InstallSnapshotResponse | None,
        now_ms: int,
    ) -> int | None:
        """Takes the answer to a piece of a snapshot; returns a newer term if the answer shows one."""
        peer = self.peers[name]
        state = peer.state
        if isinstance(state, InstallSnapshotState) and state.context == context:
            state.context = None
            good = (DLedgerResponseCode.SUCCESS, DLedgerResponseCode.INCONSISTENT_STATE)
            if response is None or response.code not in good or not 0 <= response.offset <= request.size:
                self._pause(peer, now_ms)
            elif response.offset < request.size:
                state.offset = response.offset
            elif response.code == DLedgerResponseCode.SUCCESS:
                peer.state = CompareState()
            else:
                self._pause(peer, now_ms)
            self._drive_peer(peer, now_ms)
        expired = response is not None and response.code == DLedgerResponseCode.EXPIRED_TERM
        return self.term + 1 if expired else None

    def _send_appends(self, peer: PeerProgress, state: AppendState, now_ms: int) -> None:
        settings, log = self.member.settings, self.member.log
        late = state.in_flight and now_ms - state.in_flight[0].sent_ms > settings.push_timeout_ms
        if late or state.next_index < log.begin_index:
            peer.state = CompareState()
            self._drive_peer(peer, now_ms)
            return
        while (
            state.next_index <= log.end_index
            and state.entries < settings.push_in_flight_max
            and state.size < settings.push_in_flight_bytes_max
        ):
            fills_one = log.end_index - state.next_index + 1 >= settings.push_batch_max
            if len(state.in_flight) >= settings.push_calls_max and not fills_one:
                break
            batch = self._batch(state.next_index)
            size = sum(entry.size for entry in batch)
            context = self._push(peer, PushType.APPEND, batch)
            state.in_flight.append(InFlightPush(context, batch[-1].index, len(batch), size, now_ms))
            state.entries += len(batch)
            state.size += size
            state.next_index = batch[-1].index + 1
            state.pushed_ms = now_ms
        idle = not state.in_flight and now_ms - state.pushed_ms >= settings.commit_push_interval_ms
        if idle and self.member.committed_index >= 0:
            self._push(peer, PushType.COMMIT, [])
            state.pushed_ms = now_ms

    def _batch(self, first: int) -> list[DLedgerEntry]:
        settings, log = self.member.settings, self.member.log
        batch: list[DLedgerEntry] = []
        size = 0
        for index in range(first, min(log.end_index, first + settings.push_batch_max - 1) + 1):
            entry = log.entry(index)
            assert entry is not None
            if batch and size + entry.size > settings.push_batch_bytes_max:
                break
            batch.append(entry)
            size += entry.size
        return batch

    # Answers to pushes --------------------------------------------------------------------------------------

    def on_push_response(
        self,
        name: str,
        context: int,
        request: PushEntryRequest,
        response: PushEntryResponse | None,
        now_ms: int,
    ) -> int | None:
        """Takes a push's answer; returns a newer term if the answer shows one."""
        peer = self.peers[name]
        expired = response is not None and response.code == DLedgerResponseCode.EXPIRED_TERM
        if request.term != self.term:
            return None
        if request.type is PushType.COMMIT:
            unsure = response is not None and response.code == DLedgerResponseCode.INCONSISTENT_STATE
            if unsure and isinstance(peer.state, AppendState):
                peer.state = CompareState()
        match peer.state:
            case CompareState() as state if state.context == context:
                self._compared(peer, state, response, now_ms)
            case TruncateState() as state if state.context == context:
                self._truncated(peer, state, response, now_ms)
            case AppendState() as state if any(flight.context == context for flight in state.in_flight):
                self._appended(peer, state, context, response, now_ms)
            case _:
                pass
        self._drive_peer(peer, now_ms)
        return self.term + 1 if expired else None

    def _pause(self, peer: PeerProgress, now_ms: int) -> None:
        peer.state = PausedState(until_ms=now_ms + self.member.settings.push_pause_ms)

    def _match(self, peer: PeerProgress, index: int) -> None:
        """The peer vouches for `index`; a claim beyond what we sent is not believed."""
        if peer.match_index < index <= self.member.log.end_index:
            peer.match_index = index
            self.advance_commit()

    def _compared(
        self, peer: PeerProgress, state: CompareState, response: PushEntryResponse | None, now_ms: int
    ) -> None:
        log = self.member.log
        if response is None or response.code not in (
            DLedgerResponseCode.SUCCESS,
            DLedgerResponseCode.INCONSISTENT_STATE,
        ):
            self._pause(peer, now_ms)
            return
        state.context = None
        if response.code == DLedgerResponseCode.SUCCESS:
            self._match(peer, state.index)
            last = min(response.end_index, log.end_index)
            if response.end_index <= state.index:
                peer.state = AppendState(state.index + 1, deque(), pushed_ms=0)
            elif state.index == last or state.mismatch == state.index + 1:
                peer.state = TruncateState(state.index)
            else:
                # What follows may be equal, too: it may be what the peer has acknowledged since the compare
                # was sent. Only what is known to differ is cut.
                state.index = last if state.mismatch is None else min(last, state.mismatch - 1)
            return
        disjoint = response.end_index < log.begin_index or response.begin_index > log.end_index
        below = state.index < response.begin_index
        if disjoint or (below and state.mismatch is not None):
            self._begin_anew(peer, now_ms)
        elif below or state.index > response.end_index:
            # Below its beginning nothing is known: a snapshot has taken that place since.
            state.index = min(response.end_index, log.end_index)
        elif state.index <= log.begin_index:
            self._begin_anew(peer, now_ms)
        else:
            state.mismatch = state.index
            state.index -= 1

    def _truncated(
        self, peer: PeerProgress, state: TruncateState, response: PushEntryResponse | None, now_ms: int
    ) -> None:
        if response is None or response.code != DLedgerResponseCode.SUCCESS:
            self._pause(peer, now_ms)
            return
        self._match(peer, state.index)
        peer.state = AppendState(state.index + 1, deque(), pushed_ms=0)

    def _appended(
        self,
        peer: PeerProgress,
        state: AppendState,
        context: int,
        response: PushEntryResponse | None,
        now_ms: int,
    ) -> None:
        if response is None:
            return  # the time-out of the oldest push will compare anew
        if response.code == DLedgerResponseCode.INCONSISTENT_STATE:
            peer.state = CompareState(response.end_index)
            return
        if response.code != DLedgerResponseCode.SUCCESS:
            self._pause(peer, now_ms)
            return
        done = next(flight for flight in state.in_flight if flight.context == context)
        self._match(peer, done.last)
        # A peer appends in order: what was sent before is there too, its answer late or lost.
        while state.in_flight and state.in_flight[0].last <= done.last:
            flight = state.in_flight.popleft()
            state.entries -= flight.count
            state.size -= flight.size

    # Commit -------------------------------------------------------------------------------------------------

    def advance_commit(self) -> None:
        """Commits what a quorum has durably, if it is of this term (Raft §5.4.2; Java lacks the last
        condition)."""
        member = self.member
        counted = (-1 if p.rejoin is not None else p.match_index for p in self.voters())
        matches = sorted([member.synced_index, *counted], reverse=True)
        index = matches[member.quorum - 1]
        if index > member.committed_index and member.log.term(index) == self.term:
            member.commit(index)
        while self.pending and self.pending[0].index <= member.committed_index:
            pending = self.pending.popleft()
            member.emit(ProposalCommitted(pending.token, pending.index, pending.pos, self.term))

    @property
    def is_over(self) -> bool:
        """Whether the member is no longer the leader of this term."""
        return self.member.role is not RaftRole.LEADER or self.member.term != self.term
