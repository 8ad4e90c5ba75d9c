"""Tracks the rejoin of a peer whose disk has lost data: it takes part without a vote until it has caught up.

Such a peer may have acknowledged entries that it no longer has, or have voted in terms that it no longer
knows. It neither votes nor starts an election, and its leader does not count it, until it has all entries
that it can have acknowledged:

1. The peer draws an incarnation number at its start and returns it in responses to heartbeats. A leader that
   sees a new number forgets what this peer had acknowledged, pending responses included, and replies where
   its own log ends (`until`). Entries that the peer had acknowledged in this term lie before that index.
   Committed entries that it had acknowledged in an earlier term are in the leader's log, too: the peer still
   had its whole log when it voted for the leader.
2. The peer has caught up when its durable log equals the leader's up to `until`, in the same term.
3. A peer that has lost its vote also needs the term of every other voter: the candidate that it voted for has
   that term on its disk. The peer casts no vote in terms up to the greatest one. A voter that has lost its
   own vote cannot tell; while two voters have lost theirs, neither votes again.

The effect `RejoinCompleted` then makes the driver forget the loss. A leader of DLedger or of an earlier
release supports none of this, and the peer stays without a vote.
"""

from __future__ import annotations

from collections.abc import Iterable

from epochmq_protocol.dledger import HeartBeatRequest, HeartBeatResponse, VoteResponse, VoteResult


class Rejoin:
    """One rejoin. `vote_lost`: the peer does not know in which terms it has voted."""

    def __init__(self, incarnation: int, *, vote_lost: bool) -> None:
        self.incarnation = incarnation
        self.vote_lost = vote_lost
        self._target: tuple[int, int] | None = None
        """(term, index): the peer needs the log of that term's leader up to this index."""
        self._terms: dict[str, int] = {}

    def on_heartbeat(self, request: HeartBeatRequest, response: HeartBeatResponse) -> None:
        """Reports the incarnation to the leader, and takes the index to reach from its heartbeat."""
        response.epochmq_rejoin = self.incarnation
        if request.epochmq_rejoin == self.incarnation and request.epochmq_until is not None:
            self._target = request.term, request.epochmq_until

    def on_vote_response(self, peer: str, response: VoteResponse) -> None:
        """Records the term that another voter reports."""
        if response.vote_result is not VoteResult.REJECT_UNKNOWN_LEADER:
            self._terms[peer] = max(response.term, self._terms.get(peer, -1))

    def voters_without_term(self, others: Iterable[str]) -> list[str]:
        """The other voters whose term is not known yet."""
        return [peer for peer in others if peer not in self._terms]

    def target_index(self, term: int) -> int | None:
        """The index to reach in this term, None before this term's leader has named it."""
        return self._target[1] if self._target is not None and self._target[0] == term else None

    def greatest_term(self, others: Iterable[str]) -> int:
        """The greatest term of the other voters, -1 without any."""
        return max((self._terms[peer] for peer in others), default=-1)
