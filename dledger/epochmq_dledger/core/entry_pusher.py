"""Replicates a leader's log to its peers (the dispatchers of `DLedgerEntryPusher`).

The replication state of each peer:

    Paused ──heartbeat acknowledged──> Compare ──logs equal to the peer's end──> Append
                                        │ │ ▲                                     │
                                        │ │ └──── error, time-out, mismatch ──────┤
                                        │ └──ends differ──> Truncate ──done───────┘
                                        └──peer needs dropped entries──> InstallSnapshot ──> Compare

- Compare finds the last entry that both logs have, from the end of the shorter log backwards.
- Truncate makes the peer truncate what follows, or replaces its log if the logs have no entry in common.
- InstallSnapshot sends the leader's snapshot in chunks (see `snapshot_receiver`).
- Append sends entries in batches. Many pushes may be in flight, bounded by count and bytes; entries that do
  not fill a batch wait while others are in flight.

The leader pushes to a peer only after the peer has acknowledged a heartbeat of this term: a Java peer rejects
earlier pushes.
"""

from __future__ import annotations

from collections import deque

from epochmq_dledger.core.leader_state import LeaderState
from epochmq_dledger.core.peer_progress import (
    AppendState,
    CompareState,
    InFlightPush,
    InstallSnapshotState,
    PausedState,
    PeerProgress,
    TruncateState,
)
from epochmq_dledger.core.types import SendRequest, SendSnapshotChunk
from epochmq_protocol.dledger import (
    FEATURE_BLOCKS,
    FEATURE_SNAPSHOT,
    DLedgerEntry,
    DLedgerResponseCode,
    InstallSnapshotRequest,
    InstallSnapshotResponse,
    PushEntryRequest,
    PushEntryResponse,
    PushType,
)


class EntryPusher:
    """Sends the log of one leadership to its peers."""

    def __init__(self, leader: LeaderState) -> None:
        self.leader = leader
        self.member = leader.member

    def advance(self, now_ms: int) -> None:
        """Sends to every peer what is due."""
        for peer in self.leader.peers.values():
            self._advance_peer(peer, now_ms)

    def next_deadline_ms(self) -> int | None:
        """When the leader sends something next if no peer responds until then."""
        settings = self.member.settings
        deadlines: list[int] = []
        for peer in self.leader.peers.values():
            state = peer.state
            if isinstance(state, AppendState):
                if state.in_flight:
                    deadlines.append(state.in_flight[0].sent_ms + settings.push_timeout_ms + 1)
                elif self.member.committed_index >= 0:
                    deadlines.append(state.pushed_ms + settings.commit_push_interval_ms)
            elif isinstance(state, PausedState) and state.until_ms > 0:
                deadlines.append(state.until_ms)
        return min(deadlines, default=None)

    def _advance_peer(self, peer: PeerProgress, now_ms: int) -> None:
        match peer.state:
            case PausedState(until_ms=until_ms) if 0 < until_ms <= now_ms:
                peer.state = CompareState()
                self._advance_peer(peer, now_ms)
            case CompareState(context=None) as state:
                self._send_compare(peer, state)
            case TruncateState(context=None) as state:
                self._send_truncate(peer, state)
            case InstallSnapshotState(context=None) as state:
                self._send_chunk(peer, state)
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
        return self._send(peer, request)

    def _send(self, peer: PeerProgress, request: PushEntryRequest) -> int:
        member = self.member
        member.fill_request(request, peer.name)
        context = member.next_request_number()
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
        if entry is None:  # dropped meanwhile: a snapshot includes it
            peer.state = CompareState()
            self._advance_peer(peer, 0)
            return
        request = PushEntryRequest(
            type=PushType.TRUNCATE, commit_index=self.member.committed_index, entry=entry
        )
        if self.member.body_log is not None:
            request.epochmq_members = self.member.membership.addresses_at(state.index)
        state.context = self._send(peer, request)

    def _restart_peer(self, peer: PeerProgress, now_ms: int) -> None:
        """Sends the whole log to a peer that has no entry of it. If its first entries were dropped, sends the
        snapshot that includes them."""
        member = self.member
        if member.log.begin_index <= 0 or member.snapshot is None:
            peer.state = TruncateState(member.log.begin_index)
        elif member.features.get(peer.name, 0) & FEATURE_SNAPSHOT:
            peer.state = InstallSnapshotState(member.snapshot)
        else:
            member.alarm(
                peer.name,
                f"cannot replicate to peer {peer.name}: it needs entries before {member.log.begin_index}, "
                "which this log no longer holds, and it does not support snapshots; copy the folder of an "
                "EpochMQ peer to it",
            )
            self._pause(peer, now_ms)

    def _send_chunk(self, peer: PeerProgress, state: InstallSnapshotState) -> None:
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
        state.context = member.next_request_number()
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
        """Handles the response to a snapshot chunk. Returns a newer term if the response shows one."""
        peer = self.leader.peers[name]
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
            self._advance_peer(peer, now_ms)
        expired = response is not None and response.code == DLedgerResponseCode.EXPIRED_TERM
        return self.leader.term + 1 if expired else None

    def _send_appends(self, peer: PeerProgress, state: AppendState, now_ms: int) -> None:
        settings, log = self.member.settings, self.member.log
        late = state.in_flight and now_ms - state.in_flight[0].sent_ms > settings.push_timeout_ms
        if late or state.next_index < log.begin_index:
            peer.state = CompareState()
            self._advance_peer(peer, now_ms)
            return
        while (
            state.next_index <= log.end_index
            and state.entries < settings.push_in_flight_max
            and state.size < settings.push_in_flight_bytes_max
        ):
            fills_one = log.end_index - state.next_index + 1 >= settings.push_batch_max
            if len(state.in_flight) >= settings.push_calls_max and not fills_one:
                break
            context, count, size = self._push_next(peer, state.next_index)
            state.in_flight.append(InFlightPush(context, state.next_index + count - 1, count, size, now_ms))
            state.entries += count
            state.size += size
            state.next_index += count
            state.pushed_ms = now_ms
        idle = not state.in_flight and now_ms - state.pushed_ms >= settings.commit_push_interval_ms
        if idle and self.member.committed_index >= 0:
            self._push(peer, PushType.COMMIT, [])
            state.pushed_ms = now_ms

    def _push_next(self, peer: PeerProgress, first_index: int) -> tuple[int, int, int]:
        """Pushes entries from this index on. Returns the context of the request, and the number and bytes of
        the entries."""
        member = self.member
        blocks = member.body_log
        if blocks is None or not member.features.get(peer.name, 0) & FEATURE_BLOCKS:
            batch = self._batch(first_index)
            context = self._push(peer, PushType.APPEND, batch)
            return context, len(batch), sum(entry.size for entry in batch)
        data, count = blocks.read_entries(first_index, member.settings.push_batch_bytes_max)
        assert count, f"entry {first_index} is not in the log"
        request = PushEntryRequest(
            commit_index=member.committed_index,
            epochmq_block=data,
            epochmq_first_index=first_index,
            epochmq_count=count,
        )
        return self._send(peer, request), count, len(data)

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

    # Responses to pushes ------------------------------------------------------------------------------------

    def on_push_response(
        self,
        name: str,
        context: int,
        request: PushEntryRequest,
        response: PushEntryResponse | None,
        now_ms: int,
    ) -> int | None:
        """Handles the response to a push. Returns a newer term if the response shows one."""
        peer = self.leader.peers[name]
        expired = response is not None and response.code == DLedgerResponseCode.EXPIRED_TERM
        if request.term != self.leader.term:
            return None
        if request.type is PushType.COMMIT:
            is_unknown = response is not None and response.code == DLedgerResponseCode.INCONSISTENT_STATE
            if is_unknown and isinstance(peer.state, AppendState):
                peer.state = CompareState()
        match peer.state:
            case CompareState() as state if state.context == context:
                self._on_compare_response(peer, state, response, now_ms)
            case TruncateState() as state if state.context == context:
                self._on_truncate_response(peer, state, response, now_ms)
            case AppendState() as state if any(flight.context == context for flight in state.in_flight):
                self._on_append_response(peer, state, context, response, now_ms)
            case _:
                pass
        self._advance_peer(peer, now_ms)
        return self.leader.term + 1 if expired else None

    def _pause(self, peer: PeerProgress, now_ms: int) -> None:
        peer.state = PausedState(until_ms=now_ms + self.member.settings.push_pause_ms)

    def _match(self, peer: PeerProgress, index: int) -> None:
        """The peer acknowledges the log up to `index`. Indexes beyond the log's end are ignored."""
        if peer.match_index < index <= self.member.log.end_index:
            peer.match_index = index
            self.leader.advance_commit()

    def _on_compare_response(
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
                # The entries that follow may be equal, too: the peer may have acknowledged them since the
                # compare was sent. It must truncate only entries that are known to differ.
                state.index = last if state.mismatch is None else min(last, state.mismatch - 1)
            return
        disjoint = response.end_index < log.begin_index or response.begin_index > log.end_index
        below = state.index < response.begin_index
        if disjoint or (below and state.mismatch is not None):
            self._restart_peer(peer, now_ms)
        elif below or state.index > response.end_index:
            # The peer no longer holds this index: a snapshot has replaced it meanwhile.
            state.index = min(response.end_index, log.end_index)
        elif state.index <= log.begin_index:
            self._restart_peer(peer, now_ms)
        else:
            state.mismatch = state.index
            state.index -= 1

    def _on_truncate_response(
        self, peer: PeerProgress, state: TruncateState, response: PushEntryResponse | None, now_ms: int
    ) -> None:
        if response is None or response.code != DLedgerResponseCode.SUCCESS:
            self._pause(peer, now_ms)
            return
        self._match(peer, state.index)
        peer.state = AppendState(state.index + 1, deque(), pushed_ms=0)

    def _on_append_response(
        self,
        peer: PeerProgress,
        state: AppendState,
        context: int,
        response: PushEntryResponse | None,
        now_ms: int,
    ) -> None:
        if response is None:
            return  # after the time-out of the oldest push the leader compares again
        if response.code == DLedgerResponseCode.INCONSISTENT_STATE:
            peer.state = CompareState(response.end_index)
            return
        if response.code != DLedgerResponseCode.SUCCESS:
            self._pause(peer, now_ms)
            return
        done = next(flight for flight in state.in_flight if flight.context == context)
        self._match(peer, done.last)
        # A peer appends in order. It also holds the entries of earlier pushes, whose responses are late or
        # lost.
        while state.in_flight and state.in_flight[0].last <= done.last:
            flight = state.in_flight.popleft()
            state.entries -= flight.count
            state.size -= flight.size
