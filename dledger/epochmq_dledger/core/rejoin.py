"""How a peer whose disk has lost something comes back: without a vote, until it has caught up.

It may have acknowledged entries that it no longer has, or voted in terms that it no longer knows. So it
neither votes nor stands, and its leader counts it for nothing, until it has all that it can have
acknowledged:

1. It answers heartbeats with a number drawn at its start. The leader that sees a new number forgets what this
   peer had acknowledged, answers that are under way included, and says where its own log ends (`until`). What
   the peer had acknowledged in this term lies before that. What it had acknowledged in an earlier term and
   became committed is in the leader's log, too: the vote that elected the leader was given with the log
   whole.
2. The peer has caught up when its log equals the leader's up to `until`, durably, in the same term.
3. If its vote is lost, it also needs a term from every other voter: for whomever it voted, that candidate has
   the term of the vote on its disk. It votes in no term up to the greatest of them. A voter that has lost its
   own vote cannot tell; while there are two of those, neither gets its vote back.

Then `RejoinCompleted` makes the driver forget that anything was lost. A leader that is DLedger's, or of an
earlier release, does none of this, and the peer stays without a vote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochmq_dledger.core.member_state import MemberState
from epochmq_dledger.core.types import RaftRole, RejoinCompleted
from epochmq_protocol.dledger import (
    FEATURE_PRE_VOTE,
    FEATURE_REJOIN,
    HeartBeatRequest,
    HeartBeatResponse,
    VoteResponse,
    VoteResult,
)

if TYPE_CHECKING:
    from epochmq_dledger.core.election import Election
    from epochmq_dledger.core.follower import Follower


class Rejoin:
    """A peer's way back. `vote_lost`: it does not know in which terms it has voted."""

    def __init__(self, member: MemberState, *, vote_lost: bool) -> None:
        self.member = member
        self.vote_lost = vote_lost
        self.number = 1 + int(member.jitter() * (1 << 53))
        self._until: tuple[int, int] | None = None
        """(term, index): what to have before this peer votes again, as that term's leader says."""
        self._terms: dict[str, int] = {}

    def on_heartbeat(
        self, request: HeartBeatRequest, response: HeartBeatResponse, election: Election
    ) -> None:
        """A leader is followed."""
        member = self.member
        if not (request.epochmq or 0) & FEATURE_REJOIN:
            member.alarm(
                "rejoin",
                "this peer has lost a part of its log or its vote, and its leader "
                f"{request.leader_id} is not of this release: it replicates, but does not vote "
                "(docs/controller.md, damaged logs)",
            )
            return
        response.epochmq_rejoin = self.number
        if request.epochmq_rejoin == self.number and request.epochmq_until is not None:
            self._until = request.term, request.epochmq_until
        if self.vote_lost and member.group_features & FEATURE_PRE_VOTE:
            election.request_terms([peer for peer in member.others if peer not in self._terms])

    def on_vote_response(self, peer: str, response: VoteResponse) -> None:
        """A voter has said its term."""
        if response.vote_result is not VoteResult.REJECT_UNKNOWN_LEADER:
            self._terms[peer] = max(response.term, self._terms.get(peer, -1))

    def advance(self, election: Election, follower: Follower, now_ms: int) -> None:
        """Ends it, when nothing is missing any more."""
        member = self.member
        if self._until is None or self._until[0] != member.term or member.role is not RaftRole.FOLLOWER:
            return
        until = self._until[1]
        if follower.matched_term != member.term or min(follower.matched_index, member.synced_index) < until:
            return
        if self.vote_lost:
            if any(peer not in self._terms for peer in member.others):
                return
            self._give_up_votes(election, now_ms)
        member.rejoin = None
        member.emit(RejoinCompleted())

    def _give_up_votes(self, election: Election, now_ms: int) -> None:
        member = self.member
        greatest = max([member.term, *(self._terms[peer] for peer in member.others)])
        if greatest > member.term or member.voted_for is None:
            is_newer = greatest > member.term
            member.save_vote(greatest, member.settings.self_id)
            election.increase_term = True
            if is_newer:
                election.step_down(now_ms)
