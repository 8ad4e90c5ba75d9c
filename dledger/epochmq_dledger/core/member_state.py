"""The state that election, follower and leader share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epochmq_dledger.core.membership import Membership
from epochmq_dledger.core.raft_log import LogFullError, RaftLog
from epochmq_dledger.core.types import (
    Alarm,
    ApplyCommitted,
    EraseDroppedEntries,
    Jitter,
    MembersChanged,
    RaftEffect,
    RaftRole,
    RaftSettings,
    RoleChanged,
    SaveVote,
    SendResponse,
    Snapshot,
)
from epochmq_protocol.dledger import FEATURE_MEMBERS, FEATURES, DLedgerEntry, RequestOrResponse

if TYPE_CHECKING:
    from epochmq_dledger.core.rejoin import Rejoin


class MemberState:
    """Term, vote, role, leader and how far the log is committed and durable.

    `synced_index`: entries up to it survive a power failure. Nothing is acknowledged beyond it, neither to a
    leader nor in this peer's own vote for the committed index.
    """

    def __init__(
        self,
        settings: RaftSettings,
        log: RaftLog,
        jitter: Jitter,
        term: int,
        voted_for: str | None,
        committed: int,
        snapshot: Snapshot | None,
    ) -> None:
        self.settings = settings
        self.log = log
        self.jitter = jitter
        self.term = max(term, log.end_term, 0)
        self.voted_for = voted_for if self.term == term else None
        self.role = RaftRole.CANDIDATE
        self.leader: str | None = None
        self.committed_index = min(committed, log.end_index)
        self.synced_index = log.end_index
        self.snapshot = snapshot
        """The latest durable one. Its last entry is in the log, whose beginning may be gone."""
        self.membership = _membership(settings, snapshot)
        self.rejoin: Rejoin | None = None
        """While this peer has lost something and has not caught up: it has no vote."""
        self.learner: str | None = None
        """A peer that this leader is about to add."""
        self.features: dict[str, int] = {}
        """What each peer said it can do, by its latest message."""
        self.group_features = 0
        """What all peers can do, as this term's leader says."""
        self._alarms: dict[str, str] = {}
        self.effects: list[RaftEffect] = []
        self.is_erasing = False
        """What the log has dropped is being erased; until then it takes no change."""
        self._held: list[RaftEffect] = []
        """Effects that wait for that."""
        self.heartbeat_round = 0
        """The heartbeat round that began last, in any leadership."""
        self._context = 0

    @property
    def voters(self) -> tuple[str, ...]:
        """The ids of all who vote now."""
        return self.membership.voters

    @property
    def is_voter(self) -> bool:
        """Whether this peer is one of them."""
        return self.settings.self_id in self.voters

    @property
    def quorum(self) -> int:
        """How many voters are a majority."""
        return len(self.voters) // 2 + 1

    @property
    def others(self) -> list[str]:
        """All voters but this one."""
        return [peer for peer in self.voters if peer != self.settings.self_id]

    def accepts_sender(self, message: RequestOrResponse) -> bool:
        """Whether the sender of a vote, heartbeat or push may be heard: a voter, or a peer of ours, which may
        know of a membership that has not come here yet."""
        return message.leader_id in self.voters or bool((message.epochmq or 0) & FEATURE_MEMBERS)

    def emit(self, effect: RaftEffect) -> None:
        """Adds to what the current step returns."""
        self.effects.append(effect)

    def context(self) -> int:
        """A new number to tell an answer by."""
        self._context += 1
        return self._context

    def fill_request(self, request: RequestOrResponse, peer: str) -> None:
        """Fills in what every request carries."""
        request.group = self.settings.group
        request.local_id = self.settings.self_id
        request.remote_id = peer
        request.epochmq = FEATURES
        request.epochmq_agreed = self.settings.shared_settings
        if request.term < 0:
            request.term = self.term
        if request.leader_id is None:
            request.leader_id = self.settings.self_id

    def reply(
        self,
        call: int,
        request: RequestOrResponse,
        response: RequestOrResponse,
        *,
        after_erasure: bool = False,
    ) -> None:
        """Answers a call, with the request's names, as Java's copyBaseInfo does; `after_erasure`: once the
        log is."""
        response.group = request.group
        response.local_id = request.local_id
        response.remote_id = request.remote_id
        response.leader_id = request.leader_id
        if request.epochmq is not None:
            response.epochmq = FEATURES
            response.epochmq_agreed = self.settings.shared_settings
        if after_erasure:
            self.emit_after_erasure(SendResponse(call, response))
        else:
            self.emit(SendResponse(call, response))

    def learn_features(self, peer: str | None, message: RequestOrResponse) -> None:
        """Remembers what a peer can do; one that says nothing can do nothing."""
        if (
            peer is not None
            and peer != self.settings.self_id
            and (peer in self.voters or peer == self.learner)
        ):
            self.features[peer] = message.epochmq or 0

    def all_support(self, feature: int) -> bool:
        """Whether every other voter knows this extension: it has said so, or the voters are named by the log,
        which only peers of ours do."""
        if self.membership.addresses is not None:
            return bool(FEATURES & feature)
        return all(self.features.get(peer, 0) & feature for peer in self.others)

    def has_same_settings(self, peer: str | None, message: RequestOrResponse) -> bool:
        """Whether a peer has set alike what all must; one that has not is not dealt with."""
        ours, theirs = self.settings.shared_settings, message.epochmq_agreed
        if ours is None or theirs is None or ours == theirs:
            return True
        self.alarm(
            f"{peer}",
            f"{peer} has {theirs}, expected {ours} as here; it is not dealt with until they are equal",
        )
        return False

    def alarm(self, about: str, text: str) -> None:
        """Says something to a person, once."""
        if self._alarms.get(about) != text and len(self._alarms) < 100:
            self._alarms[about] = text
            self.emit(Alarm(text))

    # The log, and the membership with it --------------------------------------------------------------------

    def append(self, entries: list[DLedgerEntry]) -> None:
        """Writes entries that follow the last one. LogFullError: the log is as before, and what says so must
        wait until it is settled (`emit_settled`)."""
        if self.is_erasing:
            raise LogFullError("the log is being erased behind its end")
        try:
            self.log.append(entries)
        except LogFullError:
            self._settle()
            raise
        self._changed(self.membership.add_entries(entries))

    def truncate(self, end_index: int) -> None:
        """Cuts everything after `end_index`."""
        self.log.truncate(end_index)
        self.synced_index = min(self.synced_index, end_index)
        self._changed(self.membership.truncate(end_index))
        self._settle()

    def reset(self, entry: DLedgerEntry, members: dict[str, str] | None = None) -> None:
        """Begins anew with this entry; `members` as the log before it named them."""
        self.log.reset(entry)
        self.synced_index = entry.index - 1
        self._settle()
        self.membership.reset(entry.index, members)
        self._changed(self.membership.add_entries([entry]) or members is not None)

    def _settle(self) -> None:
        if not self.log.is_writable and not self.is_erasing:
            self.is_erasing = True
            self.emit(EraseDroppedEntries())

    def emit_after_erasure(self, effect: RaftEffect) -> None:
        """Adds an effect that says that something is not in the log: it leaves once that is durably so."""
        if self.is_erasing:
            self._held.append(effect)
        else:
            self.emit(effect)

    def on_erasure_completed(self) -> None:
        """The log is settled."""
        self.is_erasing = False
        held, self._held = self._held, []
        for effect in held:
            self.emit(effect)

    def recover(self, entries: Sequence[DLedgerEntry]) -> None:
        """Takes account of the membership entries that a peer's log had when it started."""
        self._changed(self.membership.add_entries(entries) or self.membership.addresses is not None)

    def _changed(self, changed: bool) -> None:
        if changed and self.membership.addresses is not None:
            self.emit(MembersChanged(self.membership.addresses))

    # Term and role ------------------------------------------------------------------------------------------

    def save_vote(self, term: int, voted_for: str | None) -> None:
        """Moves to a term, or votes in this one. A vote once given in a term is never changed."""
        assert term > self.term or (term == self.term and self.voted_for in (None, voted_for))
        self.term = term
        self.voted_for = voted_for
        self.emit(SaveVote(term, voted_for))

    def adopt_term(self, term: int) -> None:
        """Follows the group to a newer term, with no vote given in it yet."""
        if term > self.term:
            self.save_vote(term, None)

    def become(self, role: RaftRole, leader: str | None) -> None:
        """Changes role within the current term."""
        if (role, leader) != (self.role, self.leader):
            self.role = role
            self.leader = leader
            self.emit(RoleChanged(role, self.term, leader))

    def commit(self, index: int) -> None:
        """Moves the committed index forward; it never goes back."""
        index = min(index, self.log.end_index)
        if index > self.committed_index:
            self.committed_index = index
            self.emit(ApplyCommitted(index))


def _membership(settings: RaftSettings, snapshot: Snapshot | None) -> Membership:
    initial = [peer for peer in settings.peers if not settings.joining or peer != settings.self_id]
    if snapshot is None or snapshot.members is None:
        return Membership(initial)
    return Membership(initial, (snapshot.index, snapshot.members))
