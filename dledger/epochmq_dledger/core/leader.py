"""Leads one term: sends heartbeats, appends proposals, confirms reads, and drives replication and membership
changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from epochmq_dledger.core.entry_pusher import EntryPusher
from epochmq_dledger.core.heartbeat_rounds import HeartbeatRounds
from epochmq_dledger.core.leader_state import LeaderState, PendingProposal
from epochmq_dledger.core.member_state import MemberState
from epochmq_dledger.core.membership_change import MembershipChange
from epochmq_dledger.core.peer_progress import CompareState, PausedState, PeerProgress
from epochmq_dledger.core.types import OperationFailed, Proposal, SendRequest
from epochmq_protocol.dledger import (
    FEATURE_PRE_VOTE,
    FEATURE_SNAPSHOT,
    DLedgerResponseCode,
    HeartBeatRequest,
    HeartBeatResponse,
)


class Leader(LeaderState):
    """One term's leadership. It ends with the term or the role."""

    def __init__(self, member: MemberState, now_ms: int) -> None:
        super().__init__(member, now_ms)
        self.rounds = HeartbeatRounds(member, now_ms)
        self.pusher = EntryPusher(self)
        self.membership_change = MembershipChange(self)
        self._needs_first_entry = member.settings.entry_of_own_term
        self.begin_term()

    def begin_term(self) -> None:
        """Appends the first entry of this term. While the disk is full, each heartbeat tries again."""
        if not self._needs_first_entry:
            return
        blocks = self.member.body_log
        if self.append((b"" if blocks is None else blocks.first_body(self.term),)) is not None:
            self._needs_first_entry = False

    # Heartbeats and reads -----------------------------------------------------------------------------------

    def heartbeat(self, now_ms: int) -> None:
        """Starts a heartbeat round."""
        member = self.member
        self.begin_term()
        number = self.rounds.start(now_ms)
        self.next_heartbeat_ms = now_ms + member.settings.heartbeat_interval_ms
        reported = (FEATURE_PRE_VOTE, FEATURE_SNAPSHOT)
        member.group_features = sum(feature for feature in reported if member.all_support(feature))
        for name, peer in self.peers.items():
            request = HeartBeatRequest(epochmq_all=member.group_features)
            if peer.rejoin_incarnation is not None:
                request.epochmq_rejoin = peer.rejoin_incarnation
                request.epochmq_until = peer.rejoin_end_index
            member.fill_request(request, name)
            member.emit(SendRequest(name, number, request))
        self._serve_reads()

    def on_heartbeat_response(self, name: str, number: int, response: HeartBeatResponse | None) -> int | None:
        """Counts the response to a heartbeat. Returns the response's term if it is newer."""
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
            return None  # a response to an earlier leadership of this term, or a late one
        if self._update_rejoin(peer, response.epochmq_rejoin, number):
            return None
        if number > peer.heartbeat_round:
            peer.heartbeat_round = number
            peer.contact_ms = sent_ms
            self.update_contact()
        if isinstance(peer.state, PausedState) and peer.state.until_ms == 0:
            peer.state = CompareState()
        self._serve_reads()
        return None

    def _update_rejoin(self, peer: PeerProgress, incarnation: int | None, heartbeat_round: int) -> bool:
        """Returns whether a peer recovers lost data (see `rejoin`). At a new incarnation the leader forgets
        what the peer acknowledged before."""
        if incarnation is None:
            if heartbeat_round > peer.heartbeat_round:
                peer.rejoin_incarnation = None
            return peer.rejoin_incarnation is not None
        if incarnation != peer.rejoin_incarnation:
            peer.rejoin_incarnation, peer.rejoin_end_index = incarnation, self.member.log.end_index
            peer.match_index = -1
            peer.heartbeat_round = max(peer.heartbeat_round, heartbeat_round)
            peer.contact_ms = -1
            peer.state = CompareState()
        return True

    def read_index(self, token: int) -> None:
        """Confirms this leadership for a read (see `heartbeat_rounds`)."""
        member = self.member
        if member.log.term(member.committed_index) != self.term and member.settings.entry_of_own_term:
            member.emit(OperationFailed(token, DLedgerResponseCode.LEADER_NOT_READY))
            return
        self.rounds.add_read(token)

    def _serve_reads(self) -> None:
        counted = (-1 if p.rejoin_incarnation is not None else p.heartbeat_round for p in self.voters())
        acknowledged = sorted(counted, reverse=True)
        needed = self.member.quorum - 1
        self.rounds.confirm_reads(self.rounds.number if needed == 0 else acknowledged[needed - 1], self.term)

    # Proposals ----------------------------------------------------------------------------------------------

    def propose(self, proposals: Sequence[Proposal], now_ms: int) -> None:
        """Appends the entries of all proposals in one write. `ProposalCommitted` or `OperationFailed` reports
        the result of each."""
        member = self.member
        room = member.settings.pending_max - len(self.pending)
        accepted: list[Proposal] = []
        for proposal in proposals:
            code: DLedgerResponseCode | None = None
            if self.transferring_until_ms is not None:
                code = DLedgerResponseCode.LEADER_TRANSFERRING
            elif len(accepted) >= room:
                code = DLedgerResponseCode.LEADER_PENDING_FULL
            elif not proposal.bodies:
                code = DLedgerResponseCode.REQUEST_WITH_EMPTY_BODYS
            if code is None:
                accepted.append(proposal)
            else:
                member.emit(OperationFailed(proposal.token, code))
        if accepted:
            self._append_proposals(accepted, now_ms + member.settings.ack_wait_max_ms)

    def _append_proposals(self, proposals: Sequence[Proposal], deadline_ms: int) -> None:
        """Appends all proposals together. If the disk has no space for all, appends them one by one, unless
        bytes were written that must be erased first."""
        self.begin_term()  # each term begins with its own entry
        if self.member.is_erasing or self._needs_first_entry:
            for proposal in proposals:
                self.member.emit_after_erasure(OperationFailed(proposal.token, DLedgerResponseCode.DISK_FULL))
            return
        first_index = self.append([body for proposal in proposals for body in proposal.bodies])
        if first_index is None and len(proposals) > 1 and not self.member.is_erasing:
            for proposal in proposals:
                self._append_proposals([proposal], deadline_ms)
        elif first_index is None:
            for proposal in proposals:
                self.member.emit_after_erasure(OperationFailed(proposal.token, DLedgerResponseCode.DISK_FULL))
        else:
            index = first_index - 1
            for proposal in proposals:
                index += len(proposal.bodies)
                pos = self.member.log.position(index)
                self.pending.append(PendingProposal(proposal.token, index, pos, deadline_ms))

    def abort(self) -> None:
        """Fails all pending operations: the leadership is over. The proposals may still be committed."""
        self.membership_change.abort()
        for pending in self.pending:
            self.member.emit(OperationFailed(pending.token, DLedgerResponseCode.TERM_CHANGED))
        self.rounds.abort()

    # Invariants ---------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Raises InvariantError if any part of this leadership contradicts its rules. O(peers)."""
        super().check_invariants()
        self.rounds.check_invariants()
        self.membership_change.check_invariants()

    # Time ---------------------------------------------------------------------------------------------------

    def advance(self, now_ms: int) -> None:
        """Does what time, new entries or responses make necessary."""
        if now_ms >= self.next_heartbeat_ms or self.rounds.is_due(now_ms):
            self.heartbeat(now_ms)
        if self.transferring_until_ms is not None and now_ms > self.transferring_until_ms:
            self.transferring_until_ms = None
        while self.pending and self.pending[0].deadline_ms < now_ms:
            pending = self.pending.popleft()
            self.member.emit(OperationFailed(pending.token, DLedgerResponseCode.WAIT_QUORUM_ACK_TIMEOUT))
        self.advance_commit()
        self.membership_change.advance(now_ms)
        self.pusher.advance(now_ms)

    def next_deadline_ms(self) -> int:
        """When this leader acts next if it receives nothing until then."""
        deadline_ms = self.next_heartbeat_ms
        if self.transferring_until_ms is not None:
            deadline_ms = min(deadline_ms, self.transferring_until_ms + 1)
        if self.pending:
            deadline_ms = min(deadline_ms, self.pending[0].deadline_ms + 1)
        for other_ms in (
            self.membership_change.next_deadline_ms(),
            self.rounds.next_deadline_ms(),
            self.pusher.next_deadline_ms(),
        ):
            if other_ms is not None:
                deadline_ms = min(deadline_ms, other_ms)
        return deadline_ms
