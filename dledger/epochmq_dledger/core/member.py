"""The state that election, follower and leader share."""

from __future__ import annotations

from epochmq_dledger.core.log import Log
from epochmq_dledger.core.types import (
    Commit,
    Effect,
    Jitter,
    Reply,
    Role,
    RoleChanged,
    SaveVote,
    Settings,
)
from epochmq_protocol.dledger import FEATURES, RequestOrResponse


class Member:
    """Term, vote, role, leader and how far the log is committed and durable.

    `synced_index`: entries up to it survive a power failure. Nothing is acknowledged beyond it, neither to a
    leader nor in this peer's own vote for the committed index.
    """

    def __init__(
        self, settings: Settings, log: Log, jitter: Jitter, term: int, voted_for: str | None, committed: int
    ) -> None:
        self.settings = settings
        self.log = log
        self.jitter = jitter
        self.term = max(term, log.end_term, 0)
        self.voted_for = voted_for if self.term == term else None
        self.role = Role.CANDIDATE
        self.leader: str | None = None
        self.committed_index = min(committed, log.end_index)
        self.synced_index = log.end_index
        self.features: dict[str, int] = {}
        """What each peer said it can do, by its latest message."""
        self.effects: list[Effect] = []
        self._context = 0

    @property
    def others(self) -> list[str]:
        """All peers but this one."""
        return [peer for peer in self.settings.peers if peer != self.settings.self_id]

    def emit(self, effect: Effect) -> None:
        """Adds to what the current step returns."""
        self.effects.append(effect)

    def context(self) -> int:
        """A new number to tell an answer by."""
        self._context += 1
        return self._context

    def addressed(self, request: RequestOrResponse, peer: str) -> None:
        """Fills in what every request carries."""
        request.group = self.settings.group
        request.local_id = self.settings.self_id
        request.remote_id = peer
        request.epochmq = FEATURES
        if request.term < 0:
            request.term = self.term
        if request.leader_id is None:
            request.leader_id = self.settings.self_id

    def reply(self, call: int, request: RequestOrResponse, response: RequestOrResponse) -> None:
        """Answers a call, with the request's names, as Java's copyBaseInfo does."""
        response.group = request.group
        response.local_id = request.local_id
        response.remote_id = request.remote_id
        response.leader_id = request.leader_id
        if request.epochmq is not None:
            response.epochmq = FEATURES
        self.emit(Reply(call, response))

    def learn_features(self, peer: str | None, message: RequestOrResponse) -> None:
        """Remembers what a peer can do; one that says nothing can do nothing."""
        if peer is not None and peer != self.settings.self_id and peer in self.settings.peers:
            self.features[peer] = message.epochmq or 0

    def all_can(self, feature: int) -> bool:
        """Whether every other peer has said that it knows this extension."""
        return all(self.features.get(peer, 0) & feature for peer in self.others)

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

    def become(self, role: Role, leader: str | None) -> None:
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
            self.emit(Commit(index))
