"""Applies a leader's pushes to a follower's log (`DLedgerEntryPusher.EntryHandler`).

A follower responds to a push once the entries that its response acknowledges are durable. Until then the
response waits in `pending_responses` for `LogSynced`. Differences from DLedger: a push of a newer term makes
its sender the leader (Java waits for the heartbeat); a push that leaves a gap is rejected at once (Java holds
it for a second); the committed index advances only over entries that this term's leader has compared or sent;
entries up to the committed index are never truncated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from epochmq_dledger.core.election import Election
from epochmq_dledger.core.member_state import MemberState
from epochmq_dledger.core.raft_log import LogFullError, next_pos
from epochmq_dledger.core.types import RaftRole, RejoinCompleted
from epochmq_protocol.dledger import (
    MEMBERS_CHANNEL,
    DLedgerEntry,
    DLedgerResponseCode,
    InstallSnapshotRequest,
    PushEntryRequest,
    PushEntryResponse,
    PushType,
)
from epochmq_protocol.errors import InvariantError, RemoteProtocolError

PENDING_RESPONSES_MAX = 4096
"""Responses that wait until entries are durable. The leader's own limit of pushes in flight is lower."""
DEFERRED_MAX = 64
"""Pushes that wait until the log is writable."""


class PendingPushResponse(msgspec.Struct, frozen=True):
    """A response that acknowledges the log up to `index`, whose entry has this term."""

    index: int
    term: int
    call: int
    request: PushEntryRequest


class Follower:
    """The part of a peer that receives entries from a leader."""

    def __init__(self, member: MemberState, election: Election) -> None:
        self.member = member
        self.election = election
        self.matched_term = -1
        """Invariant: matched_term <= term."""
        self.matched_index = -1
        """Up to this index the log equals that of the leader of `matched_term`. Invariant: -1 <=
        matched_index <= log.end_index."""
        self.leader_committed_index = -1
        """Up to this index the leader of `matched_term` has committed its log, as its pushes say."""
        self.divergence = ""
        """How this log differs from a leader's below what is committed here: two committed histories. Empty
        once a leader has compared as much as is committed here."""
        self.common_index = -1
        """The last entry that the two logs have in common, while there is a `divergence`."""
        self.pending_responses: deque[PendingPushResponse] = deque()
        """Invariant: at most PENDING_RESPONSES_MAX."""
        self._deferred: deque[tuple[int, PushEntryRequest]] = deque()
        """Pushes that arrived while the log was not writable. Invariants: none while it is; at most
        DEFERRED_MAX."""

    def on_push(self, call: int, request: PushEntryRequest, now_ms: int) -> None:
        """Handles one push of any type."""
        code = self.check_sender(request, now_ms)
        if code is DLedgerResponseCode.SUCCESS:
            code = self._check_form(request)
        if code is not DLedgerResponseCode.SUCCESS:
            self._respond(call, request, code)
            return
        if self.member.is_erasing:
            self._defer(call, request)
            return
        if self.matched_term != self.member.term:
            self.matched_term, self.matched_index = self.member.term, -1
            self.leader_committed_index = -1
        self.leader_committed_index = max(self.leader_committed_index, request.commit_index)
        match request.type:
            case PushType.APPEND if request.epochmq_block is not None:
                self._append_block(call, request, request.epochmq_block)
            case PushType.APPEND:
                self._append(call, request)
            case PushType.COMPARE:
                self._compare(call, request)
            case PushType.TRUNCATE:
                self._truncate(call, request)
            case PushType.COMMIT:
                # After a restart the log may be complete although this term's leader has not compared it, or
                # empty. A comparison is then the only way to learn the committed index, or to get the
                # entries, before the next entry.
                known = self.matched_index >= request.commit_index
                code = DLedgerResponseCode.SUCCESS if known else DLedgerResponseCode.INCONSISTENT_STATE
                self._respond(call, request, code)
        self.member.commit(min(request.commit_index, self.matched_index))
        if self.divergence and self.matched_index >= self.member.committed_index:
            self.divergence = ""

    def _defer(self, call: int, request: PushEntryRequest) -> None:
        if len(self._deferred) < DEFERRED_MAX:
            self._deferred.append((call, request))
        else:
            self._respond(call, request, DLedgerResponseCode.PUSH_REQUEST_IS_FULL)

    def on_erasure_completed(self, now_ms: int) -> None:
        """The log is writable again: handles the pushes that arrived meanwhile, as if they arrived now."""
        deferred, self._deferred = self._deferred, deque()
        for call, request in deferred:
            self.on_push(call, request, now_ms)

    def check_sender(
        self, request: PushEntryRequest | InstallSnapshotRequest, now_ms: int
    ) -> DLedgerResponseCode:
        """SUCCESS if the sender is this term's leader, otherwise the code that rejects its request. A sender
        of a newer term becomes the leader."""
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
        """Appends entries. Those that the log already holds must be equal; the others must follow its end."""
        log = self.member.log
        fresh: list[DLedgerEntry] = []
        end_index = log.end_index
        if end_index >= 0 and self.matched_index < end_index:
            # The leader has not compared the end of this log, which may differ from its own.
            self._respond(call, request, DLedgerResponseCode.INCONSISTENT_STATE)
            return
        for entry in request.entries:
            if entry.index <= end_index:
                if entry != log.entry(entry.index):
                    self._respond(call, request, DLedgerResponseCode.INCONSISTENT_STATE)
                    return
            elif entry.index != end_index + 1 + len(fresh):
                self._respond(call, request, DLedgerResponseCode.INCONSISTENT_STATE)
                return
            else:
                fresh.append(entry)
        if fresh and not self._append_new(call, request, fresh):
            return
        last = request.entries[-1].index
        self.matched_index = max(self.matched_index, last)
        self._respond_when_durable(call, request, last)

    def _append_block(self, call: int, request: PushEntryRequest, data: bytes) -> None:
        """Appends a block of entries. If the log already holds all of them, they must be equal."""
        member = self.member
        log, blocks = member.log, member.body_log
        first, count = request.epochmq_first_index or 0, request.epochmq_count or 0
        end_index, last = log.end_index, first + count - 1
        if blocks is None:
            self._respond(call, request, DLedgerResponseCode.UNEXPECTED_ARGUMENT)
            return
        is_known = last <= end_index and blocks.read_entries(first, len(data)) == (data, count)
        if (end_index >= 0 and self.matched_index < end_index) or not (is_known or first == end_index + 1):
            self._respond(call, request, DLedgerResponseCode.INCONSISTENT_STATE)
            return
        if not is_known:
            if not self._write(call, request, lambda: member.append_block(data)):
                return
            last = log.end_index
        self.matched_index = max(self.matched_index, last)
        self._respond_when_durable(call, request, last)

    def _diverge(self, request: PushEntryRequest, index: int, common_index: int, *, outlived: bool) -> None:
        """Notes that a TRUNCATE was rejected, and logs it once for each leader and term. `outlived`: this log
        ends before the first entry of the leader's."""
        member, leader = self.member, request.leader_id
        text = (
            f"rejected a TRUNCATE at entry {index} by {leader} of term {request.term}: entries up to "
            f"{member.committed_index} are committed here, so the two logs differ after entry "
            f"{common_index}. Find out which peer has lost entries. To follow again, stop this peer, empty "
            "its directory, and start it"
        )
        if outlived and member.body_log is not None:
            text = (
                f"the log of {leader} begins at entry {index}, after the last one here "
                f"({member.log.end_index}): those in between have expired. To follow again, stop this peer, "
                "empty its directory, and start it"
            )
        self.divergence, self.common_index = text, common_index
        member.alarm(f"TRUNCATE by {leader} of term {request.term}", text)

    def _append_new(self, call: int, request: PushEntryRequest, fresh: list[DLedgerEntry]) -> bool:
        member = self.member
        file_size = member.settings.file_size
        end_pos, end_term = member.log.end_pos, member.log.end_term
        for entry in fresh:
            if entry.pos != next_pos(end_pos, entry.size, file_size) or entry.term < end_term:
                self._respond(call, request, DLedgerResponseCode.INCONSISTENT_STATE)
                return False
            end_pos, end_term = entry.pos + entry.size, entry.term
        return self._write(call, request, lambda: member.append_received(fresh))

    def _write(self, call: int, request: PushEntryRequest, append: Callable[[], None]) -> bool:
        """Appends to the log. If that fails, responds and returns False."""
        try:
            append()
        except LogFullError:
            self._respond(call, request, DLedgerResponseCode.DISK_FULL)
            return False
        except RemoteProtocolError as error:
            leader = request.leader_id
            self.member.alarm(f"entries of {leader}", f"rejected entries of {leader}: {error}")
            self._respond(call, request, DLedgerResponseCode.UNEXPECTED_ARGUMENT)
            return False
        return True

    def _compare(self, call: int, request: PushEntryRequest) -> None:
        entry = request.entries[0]
        if self._is_rotten(entry):
            rotten = f"entry {entry.index} of term {entry.term}"
            self.member.alarm(rotten, f"{rotten} has rotted here; the one of {request.leader_id} replaces it")
            if not self._write(call, request, lambda: self.member.replace_last(entry)):
                return
        if self.member.log.entry(entry.index) == entry:
            self.matched_index = max(self.matched_index, entry.index)
            self._respond_when_durable(call, request, entry.index)
        else:
            self._respond(call, request, DLedgerResponseCode.INCONSISTENT_STATE)

    def _is_rotten(self, entry: DLedgerEntry) -> bool:
        """Whether the last entry here differs from the leader's of the same index and term: where no disk
        lies there is only one such entry (Raft §5.3). No checksum tells, since DLedger's entries of a commit
        log have none, and a message's covers only its body. The entry stays, for this peer has acknowledged
        it; its bytes are the leader's from now on. Where it is committed here, the two histories differ."""
        own, committed_index = self.member.log, self.member.committed_index
        is_last = entry.index == own.end_index and entry.pos + entry.size == own.end_pos
        return (
            is_last
            and entry.index > committed_index
            and (own.term(entry.index) == entry.term and own.entry(entry.index) != entry)
        )

    def _truncate(self, call: int, request: PushEntryRequest) -> None:
        """Truncates the log after the entry if the log holds it. Otherwise the entry replaces what follows
        its predecessor or, where the logs have nothing in common, the whole log."""
        member = self.member
        log = member.log
        entry = request.entries[0]
        same = log.entry(entry.index) == entry
        disjoint = log.end_index < 0 or entry.index > log.end_index + 1
        kept = entry.index if same else entry.index - 1
        own_term = kept < log.end_index and log.end_term == request.term
        drops_committed = member.committed_index >= 0 if disjoint else kept < member.committed_index
        if member.settings.replaces_expired and not same and entry.index > 0:
            # It is the leader's first entry, and committed: the earlier ones have expired. Nothing says that
            # this peer's uncommitted entries are equal to those.
            disjoint, drops_committed = True, member.committed_index >= entry.index
        if drops_committed or (not disjoint and (own_term or kept < self.matched_index)):
            # A TRUNCATE below the index that this term's leader has matched is delayed: it would drop entries
            # that this peer has acknowledged since. The same holds for entries of the leader's own term, even
            # if this peer has forgotten the matched index by a restart: a leader never truncates its own
            # entries.
            if drops_committed and (disjoint or kept >= self.matched_index):
                common = -1 if disjoint else kept
                self._diverge(request, entry.index, common, outlived=entry.index > log.end_index + 1)
            self._respond(call, request, DLedgerResponseCode.INCONSISTENT_STATE)
            return
        if disjoint and not self._write(call, request, lambda: member.reset(entry, request.epochmq_members)):
            return
        self.pending_responses = deque(w for w in self.pending_responses if w.index <= kept)
        if not disjoint and kept < log.end_index:
            member.truncate(kept)
            if member.is_erasing:
                self._defer(call, request)  # the truncation must be durable before the next write
                return
        if not disjoint and not same and not self._append_new(call, request, [entry]):
            return
        self.matched_index = entry.index
        self._respond_when_durable(call, request, entry.index)

    def restart_after_snapshot(self, index: int) -> None:
        """A snapshot has replaced the log up to `index`, whose entry is all that the log holds. The entry is
        committed, so every later leader has it."""
        self.matched_term, self.matched_index = self.member.term, index
        waiting, self.pending_responses = self.pending_responses, deque()
        for one in waiting:
            self._respond(one.call, one.request, DLedgerResponseCode.INCONSISTENT_STATE)

    # Rejoin -------------------------------------------------------------------------------------------------

    def advance_rejoin(self, now_ms: int) -> None:
        """Ends the rejoin of this peer once it has recovered all that it can have acknowledged."""
        member, rejoin = self.member, self.member.rejoin
        if rejoin is None:
            return
        if rejoin.is_new_directory and rejoin.shows_new_group(member.voters, member.other_voters):
            self._skip_lost_votes(rejoin.greatest_term(member.other_voters), now_ms)
            self._complete_rejoin()
            if member.role is RaftRole.CANDIDATE:
                self.election.step_down(now_ms)  # all founders know it at once: each waits a time of its own
            return
        if member.role is not RaftRole.FOLLOWER:
            return
        target = rejoin.target_index(member.term)
        if target is None or self.matched_term != member.term:
            return
        if min(self.matched_index, member.synced_index) < target:
            return
        if rejoin.vote_lost:
            if rejoin.voters_without_term(member.other_voters):
                return
            greatest_term = rejoin.greatest_term(member.other_voters)
            is_newer = greatest_term > member.term
            self._skip_lost_votes(greatest_term, now_ms)
            if is_newer:
                return  # this peer may have acknowledged entries of a later leader than this one
        self._complete_rejoin()

    def _complete_rejoin(self) -> None:
        self.member.rejoin = None
        self.member.emit(RejoinCompleted())

    def _skip_lost_votes(self, greatest_term: int, now_ms: int) -> None:
        """Moves to the greatest term in which this peer may have voted, as if it had voted for itself
        there."""
        member = self.member
        is_newer = greatest_term > member.term
        if is_newer or member.voted_for is None:
            member.save_vote(max(greatest_term, member.term), member.settings.self_id)
            self.election.barred_term = member.term
            if is_newer:
                self.election.step_down(now_ms)

    # Responses ----------------------------------------------------------------------------------------------

    def _respond_when_durable(self, call: int, request: PushEntryRequest, index: int) -> None:
        member = self.member
        if index <= member.synced_index:
            self._respond(call, request, DLedgerResponseCode.SUCCESS)
        elif len(self.pending_responses) >= PENDING_RESPONSES_MAX:
            self._respond(call, request, DLedgerResponseCode.PUSH_REQUEST_IS_FULL)
        else:
            self.pending_responses.append(PendingPushResponse(index, member.log.term(index), call, request))

    def on_synced(self) -> None:
        """Responds to pushes whose entries are durable. Those whose entries were truncated meanwhile are
        rejected."""
        member = self.member
        held: deque[PendingPushResponse] = deque()
        for waiting in self.pending_responses:
            if waiting.index > member.synced_index:
                held.append(waiting)
                continue
            kept = member.log.term(waiting.index) == waiting.term and waiting.request.term == member.term
            code = DLedgerResponseCode.SUCCESS if kept else DLedgerResponseCode.INCONSISTENT_STATE
            self._respond(waiting.call, waiting.request, code)
        self.pending_responses = held

    def _check_form(self, request: PushEntryRequest) -> DLedgerResponseCode:
        """Checks the form of a push."""
        entries = request.entries
        if request.epochmq_block is not None:
            whole = (request.epochmq_first_index or 0) >= 0 and (request.epochmq_count or 0) > 0
            is_append = request.type is PushType.APPEND and not entries
            return (
                DLedgerResponseCode.SUCCESS
                if whole and is_append
                else DLedgerResponseCode.UNEXPECTED_ARGUMENT
            )
        if request.type is not PushType.COMMIT and not entries:
            return DLedgerResponseCode.UNEXPECTED_ARGUMENT
        if request.type in (PushType.COMPARE, PushType.TRUNCATE) and len(entries) != 1:
            return DLedgerResponseCode.UNEXPECTED_ARGUMENT
        for at, entry in enumerate(entries):
            if entry.index != entries[0].index + at or entry.index < 0 or entry.term > request.term:
                return DLedgerResponseCode.UNEXPECTED_ARGUMENT
            if entry.channel == MEMBERS_CHANNEL:
                try:
                    self.member.decode_members(entry)
                except RemoteProtocolError:
                    return DLedgerResponseCode.UNEXPECTED_ARGUMENT
        return DLedgerResponseCode.SUCCESS

    def _respond(self, call: int, request: PushEntryRequest, code: DLedgerResponseCode) -> None:
        member = self.member
        entries = request.entries
        response = PushEntryResponse(
            code=code, term=request.term, begin_index=member.log.begin_index, end_index=member.log.end_index
        )
        if request.epochmq_block is not None:
            response.index, response.count = request.epochmq_first_index, request.epochmq_count or 0
        elif request.type is not PushType.COMMIT:
            response.index = entries[0].index if entries else -1
            response.count = len(entries)
        member.reply(call, request, response, after_erasure=code is DLedgerResponseCode.DISK_FULL)

    # Invariants ---------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Raises InvariantError if the state contradicts the rules at its fields. O(1)."""
        member = self.member
        end_index = member.log.end_index
        if self.matched_term > member.term or not -1 <= self.matched_index <= end_index:
            raise InvariantError(
                "Follower",
                "matched_term <= term, and -1 <= matched_index <= log.end_index",
                matched_term=self.matched_term,
                term=member.term,
                matched_index=self.matched_index,
                end_index=end_index,
            )
        deferred, pending = len(self._deferred), len(self.pending_responses)
        if pending > PENDING_RESPONSES_MAX or deferred > (DEFERRED_MAX if member.is_erasing else 0):
            raise InvariantError(
                "Follower",
                "waiting responses are bounded, and pushes wait only for a log that is not writable",
                pending_responses=pending,
                deferred=deferred,
                is_erasing=member.is_erasing,
            )
