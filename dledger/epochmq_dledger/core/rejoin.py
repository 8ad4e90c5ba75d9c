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
   that term on its disk. The peer casts no vote in terms up to the greatest one. If that is greater than the
   leader's term, the peer may have acknowledged entries of a later leader, and catches up with one of that
   term or a later one. A voter that has lost its own vote cannot tell; while two voters have lost theirs,
   neither votes again.

A peer with an empty directory has lost its vote, or its group is new (`is_new_directory`). It asks the other
voters what they have (`is_probe`). The group is new if so many of them have no entry that every quorum to
which this peer can have belonged has one of them (`shows_new_group`). Answers may be of different moments
after the start of this peer: it has forgotten only what was before. A vote in a term beyond 0 that this peer
has forgotten was for a peer that names that term, or for one whose directory was empty, too: that one has
started anew since, and no longer counts that vote.

A peer that may have lost only what it had not flushed (`only_unflushed`) knows all its votes. When all
machines lose power together, every peer is one, and none could ever catch up. So its vote counts if all
voters of the group vote for the same candidate: each has compared its log, and whatever any disk has, the
candidate has.

A leader of DLedger or of an earlier release names no index. The peer then asks it, by a vote request of term
-1 with an end of a log, whether its log ends there or before, and catches up with that. Such a
leader still counts what this peer had acknowledged; a successor without those entries needs a vote that the
peer does not give.

The effect `RejoinCompleted` then makes the driver forget the loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from epochmq_protocol.dledger import (
    HeartBeatRequest,
    HeartBeatResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)

LEADERS_LEAD_MAX = 1000
"""A leader whose log grows all the time is also asked whether it is at most this many entries ahead."""
_HAS_ENTRIES = (VoteResult.REJECT_EXPIRED_LEDGER_TERM, VoteResult.REJECT_SMALL_LEDGER_END_INDEX)


def is_probe(request: VoteRequest) -> bool:
    """Whether a vote request asks for nothing but the state of a peer. Its term is -1, so that every peer
    rejects it, DLedger's too: with the reason whether it has entries, and with its term."""
    return request.term < 0


class Rejoin:
    """One rejoin. `vote_lost`: the peer does not know in which terms it has voted. `is_new_directory`: it
    found its directory empty. `only_unflushed`: it can have lost only what it had not flushed."""

    def __init__(
        self,
        incarnation: int,
        *,
        vote_lost: bool,
        is_new_directory: bool = False,
        only_unflushed: bool = False,
    ) -> None:
        self.incarnation = incarnation
        self.votes_if_all = only_unflushed and not vote_lost
        """Whether this peer may vote in an election that needs all votes."""
        self.vote_lost = vote_lost
        self.is_new_directory = is_new_directory
        self._target: tuple[int, int] | None = None
        """(term, index): the peer needs the log of that term's leader up to this index."""
        self._terms: dict[str, int] = {}
        self._without_entries: dict[str, int] = {}
        """The terms of the peers that had no entry."""
        self.asked_back: set[str] = set()
        """The peers that this one has asked because they asked it."""

    def on_heartbeat(self, request: HeartBeatRequest, response: HeartBeatResponse) -> None:
        """Reports the incarnation to the leader, and takes the index to reach from its heartbeat."""
        response.epochmq_rejoin = self.incarnation
        if request.epochmq_rejoin == self.incarnation and request.epochmq_until is not None:
            self._target = request.term, request.epochmq_until

    def on_leaders_end(self, term: int, index: int) -> None:
        """The log of this term's leader has ended with this entry or before."""
        known = self.target_index(term)
        self._target = term, index if known is None else min(known, index)

    def on_probe_response(self, peer: str, request: VoteRequest, response: VoteResponse) -> None:
        """Records what another voter has."""
        result = response.vote_result
        if result is VoteResult.REJECT_EXPIRED_VOTE_TERM:
            if request.ledger_end_term < 0:
                self._without_entries[peer] = max(response.term, self._without_entries.get(peer, -1))
        elif result not in _HAS_ENTRIES:
            return  # it recovers lost data itself, or does not know this peer
        if not response.epochmq_new:
            self._terms[peer] = max(response.term, self._terms.get(peer, -1))

    def shows_new_group(self, voters: Sequence[str], others: Iterable[str]) -> bool:
        """Whether the answers so far show that this peer has acknowledged no entry, and voted in no term that
        it cannot avoid from now on."""
        quorum = len(voters) // 2 + 1
        others = list(others)
        terms = [self._without_entries[peer] for peer in others if peer in self._without_entries]
        if len(terms) < len(voters) - quorum + 1:
            return False
        return not any(terms) or not self.voters_without_term(others) or len(terms) == len(others)

    def voters_without_term(self, others: Iterable[str]) -> list[str]:
        """The other voters whose term is not known yet."""
        return [peer for peer in others if peer not in self._terms]

    def target_index(self, term: int) -> int | None:
        """The index to reach in this term, None before this term's leader has named it."""
        return self._target[1] if self._target is not None and self._target[0] == term else None

    def greatest_term(self, others: Iterable[str]) -> int:
        """The greatest term of the other voters, -1 without any."""
        return max((self._terms[peer] for peer in others if peer in self._terms), default=-1)
