"""What a leader's pushes do to a follower's log (`DLedgerEntryPusher.EntryHandler`).

A push is answered once what it vouches for is durable, so answers wait in `waiting` for `LogSynced`. Where
DLedger differs: a push of a newer term makes its sender our leader (Java waits for the heartbeat); a gap is
refused at once (Java holds the push back for a second); the committed index moves only over entries that this
term's leader has compared or sent; and nothing at or below the committed index is ever cut.
"""

from __future__ import annotations

from collections import deque

import msgspec

from epochmq_dledger.core.election import Election
from epochmq_dledger.core.member_state import MemberState
from epochmq_dledger.core.raft_log import LogFullError, next_pos
from epochmq_dledger.core.types import Alarm, RaftRole
from epochmq_protocol.dledger import (
    MEMBERS_CHANNEL,
    DLedgerEntry,
    DLedgerResponseCode,
    InstallSnapshotRequest,
    PushEntryRequest,
    PushEntryResponse,
    PushType,
    decode_members,
)
from epochmq_protocol.errors import RemoteProtocolError

PENDING_RESPONSES_MAX = 4096
"""Answers held back for durability; the leader's own limit of pushes in flight is lower."""
DEFERRED_MAX = 64
"""Pushes that wait until the log is settled."""


class PendingPushResponse(msgspec.Struct, frozen=True):
    """An answer that vouches for the log up to `index`, whose entry has this term."""

    index: int
    term: int
    call: int
    request: PushEntryRequest


class Follower:
    """The part of a peer that receives pushes."""

    def __init__(self, member: MemberState, election: Election) -> None:
        self.member = member
        self.election = election
        self.matched_term = -1
        self.matched_index = -1
        """How far the log is known to equal that of the leader of `matched_term`."""
        self.pending_responses: deque[PendingPushResponse] = deque()
        self._deferred: deque[tuple[int, PushEntryRequest]] = deque()
        """Pushes that came while what the log has dropped was being erased."""

    def on_push(self, call: int, request: PushEntryRequest, now_ms: int) -> None:
        """Handles one push of any type."""
        code = self.check_sender(request, now_ms)
        if code is DLedgerResponseCode.SUCCESS:
            code = _well_formed(request)
        if code is not DLedgerResponseCode.SUCCESS:
            self._answer(call, request, code)
            return
        if self.member.is_erasing:
            self._defer(call, request)
            return
        if self.matched_term != self.member.term:
            self.matched_term, self.matched_index = self.member.term, -1
        match request.type:
            case PushType.APPEND:
                self._append(call, request)
            case PushType.COMPARE:
                self._compare(call, request)
            case PushType.TRUNCATE:
                self._truncate(call, request)
            case PushType.COMMIT:
                # After a restart the log may be whole while this term's leader has compared none of it:
                # asking for a comparison is the only way to learn what is committed before the next entry.
                known = self.matched_index >= min(request.commit_index, self.member.log.end_index)
                code = DLedgerResponseCode.SUCCESS if known else DLedgerResponseCode.INCONSISTENT_STATE
                self._answer(call, request, code)
        self.member.commit(min(request.commit_index, self.matched_index))

    def _defer(self, call: int, request: PushEntryRequest) -> None:
        if len(self._deferred) < DEFERRED_MAX:
            self._deferred.append((call, request))
        else:
            self._answer(call, request, DLedgerResponseCode.PUSH_REQUEST_IS_FULL)

    def on_erasure_completed(self, now_ms: int) -> None:
        """The log is settled: handles the pushes that came meanwhile, as if they came now."""
        deferred, self._deferred = self._deferred, deque()
        for call, request in deferred:
            self.on_push(call, request, now_ms)

    def check_sender(
        self, request: PushEntryRequest | InstallSnapshotRequest, now_ms: int
    ) -> DLedgerResponseCode:
        """Whether the sender is this term's leader."""
        member = self.member
        if not member.accepts_sender(request) or request.leader_id in (None, member.settings.self_id):
            return DLedgerResponseCode.UNKNOWN_MEMBER
        if request.term < member.term:
            return DLedgerResponseCode.EXPIRED_TERM
        if request.term == member.term and member.role is RaftRole.LEADER:
            return DLedgerResponseCode.NOT_FOLLOWER
        assert request.leader_id is not None
        if not self.election.follow(request.leader_id, request.term, now_ms):
            return DLedgerResponseCode.INCONSISTENT_LEADER
        return DLedgerResponseCode.SUCCESS

    def _append(self, call: int, request: PushEntryRequest) -> None:
        """Entries that are there already must be equal; the rest must follow the log's end, position and
        all."""
        log = self.member.log
        fresh: list[DLedgerEntry] = []
        end_index = log.end_index
        if end_index >= 0 and self.matched_index < end_index:
            # The leader has not compared our tail: it might not be its own.
            self._answer(call, request, DLedgerResponseCode.INCONSISTENT_STATE)
            return
        for entry in request.entries:
            if entry.index <= end_index:
                if entry != log.entry(entry.index):
                    self._answer(call, request, DLedgerResponseCode.INCONSISTENT_STATE)
                    return
            elif entry.index != end_index + 1 + len(fresh):
                self._answer(call, request, DLedgerResponseCode.INCONSISTENT_STATE)
                return
            else:
                fresh.append(entry)
        if fresh and not self._write(call, request, fresh):
            return
        last = request.entries[-1].index
        self.matched_index = max(self.matched_index, last)
        self._answer_when_durable(call, request, last)

    def _write(self, call: int, request: PushEntryRequest, fresh: list[DLedgerEntry]) -> bool:
        member = self.member
        file_size = member.settings.file_size
        end_pos, end_term = member.log.end_pos, member.log.end_term
        for entry in fresh:
            if entry.pos != next_pos(end_pos, entry.size, file_size) or entry.term < end_term:
                self._answer(call, request, DLedgerResponseCode.INCONSISTENT_STATE)
                return False
            end_pos, end_term = entry.pos + entry.size, entry.term
        try:
            member.append(fresh)
        except LogFullError:
            self._answer(call, request, DLedgerResponseCode.DISK_FULL)
            return False
        return True

    def _compare(self, call: int, request: PushEntryRequest) -> None:
        entry = request.entries[0]
        if self.member.log.entry(entry.index) == entry:
            self.matched_index = max(self.matched_index, entry.index)
            self._answer_when_durable(call, request, entry.index)
        else:
            self._answer(call, request, DLedgerResponseCode.INCONSISTENT_STATE)

    def _truncate(self, call: int, request: PushEntryRequest) -> None:
        """Cuts after the entry if it is ours too, else puts it in the place of our tail."""
        member = self.member
        log = member.log
        entry = request.entries[0]
        same = log.entry(entry.index) == entry
        disjoint = log.end_index < 0 or entry.index > log.end_index + 1
        kept = entry.index if same else entry.index - 1
        own_term = kept < log.end_index and log.end_term == request.term
        forgets = member.committed_index >= 0 if disjoint else kept < member.committed_index
        if forgets or (not disjoint and (own_term or kept < self.matched_index)):
            # Below what this term's leader has matched, it is a push that went astray and comes late: obeying
            # it would cut what we have acknowledged since. The same holds for entries of this leader's own
            # term, also after a restart that has forgotten what was matched: a leader never takes those back.
            if forgets and (disjoint or kept >= self.matched_index):
                member.emit(
                    Alarm(
                        f"{request.leader_id} of term {request.term} asks to cut the log at {entry.index}, "
                        f"but entries up to {member.committed_index} are committed here; refused"
                    )
                )
            self._answer(call, request, DLedgerResponseCode.INCONSISTENT_STATE)
            return
        self.pending_responses = deque(w for w in self.pending_responses if w.index <= kept)
        if disjoint:
            member.reset(entry)
        elif kept < log.end_index:
            member.truncate(kept)
            if member.is_erasing:
                self._defer(call, request)  # nothing may be written, or answered, before the cut is durable
                return
        if not disjoint and not same and not self._write(call, request, [entry]):
            return
        self.matched_index = entry.index
        self._answer_when_durable(call, request, entry.index)

    def restart_after_snapshot(self, index: int) -> None:
        """A snapshot has taken the place of the log up to `index`, whose entry is all there is; it is
        committed, and so it is every later leader's, too."""
        self.matched_term, self.matched_index = self.member.term, index
        waiting, self.pending_responses = self.pending_responses, deque()
        for one in waiting:
            self._answer(one.call, one.request, DLedgerResponseCode.INCONSISTENT_STATE)

    # Answers ------------------------------------------------------------------------------------------------

    def _answer_when_durable(self, call: int, request: PushEntryRequest, index: int) -> None:
        member = self.member
        if index <= member.synced_index:
            self._answer(call, request, DLedgerResponseCode.SUCCESS)
        elif len(self.pending_responses) >= PENDING_RESPONSES_MAX:
            self._answer(call, request, DLedgerResponseCode.PUSH_REQUEST_IS_FULL)
        else:
            self.pending_responses.append(PendingPushResponse(index, member.log.term(index), call, request))

    def on_synced(self) -> None:
        """Answers what has become durable; what was cut meanwhile is refused."""
        member = self.member
        held: deque[PendingPushResponse] = deque()
        for waiting in self.pending_responses:
            if waiting.index > member.synced_index:
                held.append(waiting)
                continue
            kept = member.log.term(waiting.index) == waiting.term and waiting.request.term == member.term
            code = DLedgerResponseCode.SUCCESS if kept else DLedgerResponseCode.INCONSISTENT_STATE
            self._answer(waiting.call, waiting.request, code)
        self.pending_responses = held

    def _answer(self, call: int, request: PushEntryRequest, code: DLedgerResponseCode) -> None:
        member = self.member
        entries = request.entries
        response = PushEntryResponse(
            code=code, term=request.term, begin_index=member.log.begin_index, end_index=member.log.end_index
        )
        if request.type is not PushType.COMMIT:
            response.index = entries[0].index if entries else -1
            response.count = len(entries)
        member.reply(call, request, response, after_erasure=code is DLedgerResponseCode.DISK_FULL)


def _well_formed(request: PushEntryRequest) -> DLedgerResponseCode:
    """Whether what is pushed can be looked at."""
    entries = request.entries
    if request.type is not PushType.COMMIT and not entries:
        return DLedgerResponseCode.UNEXPECTED_ARGUMENT
    if request.type in (PushType.COMPARE, PushType.TRUNCATE) and len(entries) != 1:
        return DLedgerResponseCode.UNEXPECTED_ARGUMENT
    for at, entry in enumerate(entries):
        if entry.index != entries[0].index + at or entry.index < 0 or entry.term > request.term:
            return DLedgerResponseCode.UNEXPECTED_ARGUMENT
        if entry.channel == MEMBERS_CHANNEL:
            try:
                decode_members(entry)
            except RemoteProtocolError:
                return DLedgerResponseCode.UNEXPECTED_ARGUMENT
    return DLedgerResponseCode.SUCCESS
