"""Elects leaders: handles votes, candidacies, and the heartbeats that a leader sends to this peer.

The responses to VOTE and HEART_BEAT are DLedger's (`DLedgerLeaderElector`), with one difference: a vote
request of a newer term, or a newer leader's heartbeat, gets its final response at once. (Java first responds
"not ready".)

There are two ways to start an election:

- In a group of EpochMQ peers a candidate asks first whether it would win (pre-vote, Raft §9.6), and moves to
  a new term only then. So a peer that returns from a network partition does not depose a leader.
- Beside a Java peer the candidate does as Java does: it asks for votes in its present term first. It moves to
  a new term only if a quorum responded and no other result explains the rejections. This matters: a Java
  leader that a quorum follows ignores newer terms, and Java voters check the candidate's log before its term.
  A peer with an old log and a new term would neither win nor follow while that leader lives. So does a
  restarted peer that must not lead its present term again.
"""

from __future__ import annotations

from enum import Enum

from epochmq_dledger.core.member_state import MemberState
from epochmq_dledger.core.rejoin import LEADERS_LEAD_MAX, Rejoin, is_probe
from epochmq_dledger.core.types import RaftRole, RejoinCompleted, SendRequest
from epochmq_protocol.dledger import (
    FEATURE_PRE_VOTE,
    FEATURE_REJOIN,
    DLedgerResponseCode,
    HeartBeatRequest,
    HeartBeatResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from epochmq_protocol.errors import InvariantError

REVOTE_MS = 20
"""When enough Java voters were not ready, a candidate asks again after this time. They need up to 10 ms
(`DLedgerLeaderElector.StateMaintainer`)."""

RESPONSE_WAIT_MAX_MS = 1000
"""The longest time that a candidate waits in addition for responses that were late before."""
_DOUBLINGS_MAX = 16

_NEWER_LEDGER = (VoteResult.REJECT_EXPIRED_LEDGER_TERM, VoteResult.REJECT_SMALL_LEDGER_END_INDEX)
_NEWER_TERM = (VoteResult.REJECT_EXPIRED_VOTE_TERM, VoteResult.REJECT_TERM_SMALL_THAN_LEDGER)


class Candidacy(Enum):
    """What a candidate asks the voters for."""

    NONE = "none"
    PRE_VOTE = "pre-vote"
    VOTE = "vote"


class Election:
    """The part of a peer that follows a leader, votes, and starts elections."""

    def __init__(self, member: MemberState, now_ms: int) -> None:
        self.member = member
        self.leader_contact_ms = now_ms
        """When this peer last heard from its leader."""
        self.next_candidacy_ms = now_ms + int(member.jitter() * member.settings.vote_interval_min_ms)
        self.candidacy = Candidacy.NONE
        """Invariant: NONE unless this peer is a candidate, a voter, and recovers no lost data."""
        self.candidacy_term = -1
        """Invariant: while it asks for votes, the present term; for pre-votes, the next one."""
        self.vote_results: dict[str, VoteResult] = {}
        """The responses of one candidacy. Invariant: of voters only, this peer's own among them; so one
        response counts once, and a learner's never."""
        self._votes_if_all: set[str] = set()
        """Those of them that count if all voters vote for this peer (see `rejoin`)."""
        self.increase_term = False
        """Whether the next candidacy beside Java peers moves to a new term."""
        self.unanswered = 0
        """How many candidacies ended before a quorum responded, since this peer last knew a leader."""
        self._asked_again: set[str] = set()
        """The voters that this candidacy has asked twice."""
        self.barred_term = member.term if member.voted_for == member.settings.self_id else None
        """The term that this peer must not lead because it may have led it before a restart: it may have lost
        entries of that term that others hold, and would append different entries at the same indexes. With
        the votes of a quorum in that term it moves to a new one and asks again."""

    @property
    def election_timeout_ms(self) -> int:
        """How long a follower waits for a silent leader."""
        return self.member.settings.election_timeout_ms

    # Following ----------------------------------------------------------------------------------------------

    def on_heartbeat(self, call: int, request: HeartBeatRequest, now_ms: int) -> None:
        """`DLedgerLeaderElector.handleHeartBeat`."""
        member = self.member
        response = HeartBeatResponse()
        if request.leader_id is None or not member.accepts_sender(request):
            response.code, response.term = DLedgerResponseCode.UNKNOWN_MEMBER, member.term
        elif request.leader_id == member.settings.self_id:
            response.code, response.term = DLedgerResponseCode.UNEXPECTED_MEMBER, member.term
        elif request.term < member.term:
            response.code, response.term = DLedgerResponseCode.EXPIRED_TERM, member.term
        elif not self.follow(request.leader_id, request.term, now_ms):
            response.code = DLedgerResponseCode.INCONSISTENT_LEADER
        else:
            member.group_features = request.epochmq_all or 0
            if member.rejoin is not None:
                self._report_rejoin(member.rejoin, request, response)
                self._probe(member.rejoin)
        member.reply(call, request, response)

    def _report_rejoin(self, rejoin: Rejoin, request: HeartBeatRequest, response: HeartBeatResponse) -> None:
        """Tells the leader that this peer recovers lost data, and asks for terms if its vote is lost."""
        member = self.member
        if (request.epochmq or 0) & FEATURE_REJOIN:
            rejoin.on_heartbeat(request, response)
        elif rejoin.target_index(member.term) is None and request.leader_id is not None:
            for lead in (0, LEADERS_LEAD_MAX):
                self._send_probe(request.leader_id, member.log.end_index + lead)

    def follow(self, leader: str, term: int, now_ms: int) -> bool:
        """Follows the leader of this or a newer term. False if the term already has another leader."""
        member = self.member
        if term == member.term and member.leader not in (None, leader):
            return False
        if leader != member.leader:
            member.group_features = 0  # until its heartbeat reports them
        member.adopt_term(term)
        self.leader_contact_ms = now_ms
        self.candidacy = Candidacy.NONE
        self.increase_term = False
        self.unanswered = 0
        member.become(RaftRole.FOLLOWER, leader)
        return True

    def on_leader_disconnected(self, leader: str, now_ms: int) -> None:
        """Starts an election soon, because the leader's connection has closed. Only with pre-votes, which a
        voter that still hears the leader rejects: beside a Java peer a connection that merely broke would
        cost the group its leader."""
        member = self.member
        if member.role is not RaftRole.FOLLOWER or member.leader != leader:
            return
        if self._uses_pre_vote:
            member.become(RaftRole.CANDIDATE, None)
            self.next_candidacy_ms = now_ms + int(member.jitter() * member.settings.heartbeat_interval_ms / 2)

    def on_timeout(self, now_ms: int) -> None:
        """Does what time makes necessary for a follower or a candidate."""
        member = self.member
        if member.role is RaftRole.FOLLOWER and now_ms - self.leader_contact_ms > self.election_timeout_ms:
            self.step_down(now_ms)
        if member.role is RaftRole.CANDIDATE and now_ms >= self.next_candidacy_ms:
            if self.candidacy is not Candidacy.NONE:
                self._end_candidacy(now_ms)
            elif member.is_voter and self._may_stand:
                self._start_candidacy(now_ms)
            elif member.rejoin is not None and member.rejoin.is_new_directory:
                self._probe(member.rejoin)
                self._schedule_candidacy(now_ms, 0)
            else:  # not a voter yet, or recovering lost data
                self._schedule_candidacy(now_ms, self.election_timeout_ms)

    def next_deadline_ms(self) -> int:
        """When a follower or candidate acts next if it receives nothing."""
        if self.member.role is RaftRole.FOLLOWER:
            return self.leader_contact_ms + self.election_timeout_ms + 1
        return self.next_candidacy_ms

    def step_down(self, now_ms: int) -> None:
        """Becomes a candidate that waits a random time before it starts an election."""
        self.member.become(RaftRole.CANDIDATE, None)
        self.candidacy = Candidacy.NONE
        self._schedule_candidacy(now_ms, 0)

    def cancel_candidacy(self, now_ms: int) -> None:
        """Ends a candidacy, because a snapshot has replaced the log and perhaps the voters."""
        if self.candidacy is not Candidacy.NONE:
            self.candidacy = Candidacy.NONE
            self._schedule_candidacy(now_ms, 0)

    def postpone_candidacy(self, now_ms: int) -> None:
        """Lets another peer, to which this one has transferred its leadership, start the next election."""
        if self.member.role is RaftRole.CANDIDATE and self.candidacy is Candidacy.NONE:
            self._schedule_candidacy(now_ms, self.member.settings.vote_interval_max_ms)

    def _schedule_candidacy(self, now_ms: int, extra_ms: int) -> None:
        settings = self.member.settings
        spread = settings.vote_interval_max_ms - settings.vote_interval_min_ms
        self.next_candidacy_ms = (
            now_ms + settings.vote_interval_min_ms + int(self.member.jitter() * spread) + extra_ms
        )

    # Voting -------------------------------------------------------------------------------------------------

    def on_vote(self, call: int, request: VoteRequest, now_ms: int) -> None:
        """`DLedgerLeaderElector.handleVote`, in its order of checks."""
        member = self.member
        response = VoteResponse()
        if is_probe(request) and member.rejoin is not None and member.rejoin.is_new_directory:
            # Only what this peer has not had since its start: what it had before, it has forgotten.
            response.epochmq_new = True
            if member.log.end_index < 0:
                response.vote_result = VoteResult.REJECT_EXPIRED_VOTE_TERM
            else:
                response.vote_result = VoteResult.REJECT_UNKNOWN_LEADER
            self._probe_back(member.rejoin, request.local_id)
        elif request.pre_vote:
            response.vote_result = self._pre_vote_result(request, now_ms)
        else:
            response.vote_result = self._vote_result(request, now_ms)
        if response.vote_result is VoteResult.ACCEPT and member.rejoin is not None:
            response.vote_result, response.epochmq_if_all = VoteResult.REJECT_UNKNOWN_LEADER, True
        response.term = member.term
        if response.vote_result is VoteResult.REJECT_TERM_SMALL_THAN_LEDGER:
            response.term = member.log.end_term
        member.reply(call, request, response)
        self._ask_again(request.local_id)

    def _ask_again(self, peer: str | None) -> None:
        """Asks a voter for its vote again that can be reached once more: a candidate that has waited in vain
        for long would otherwise wait longer than it must. Once for each voter and candidacy."""
        if not self.unanswered or self.candidacy is Candidacy.NONE or peer in self._asked_again:
            return
        if peer in self.member.other_voters and peer not in self.vote_results:
            self._asked_again.add(peer)
            self._request_vote(peer)

    def _check_candidate(self, request: VoteRequest, now_ms: int) -> VoteResult:
        """Whether the candidate is known, and its log is at least as new as this peer's (Raft §5.4.1)."""
        member = self.member
        if request.leader_id is None or not member.accepts_sender(request):
            return VoteResult.REJECT_UNKNOWN_LEADER
        if member.rejoin is not None and not member.rejoin.votes_if_all:
            return VoteResult.REJECT_UNKNOWN_LEADER
        if member.settings.joining and member.log.end_index < 0:
            # This peer cannot have been added yet. Perhaps it was a member once, and its directory was
            # cleared: a removed peer that does not know of its removal could form a quorum of former members
            # with it.
            return VoteResult.REJECT_UNKNOWN_LEADER
        if request.leader_id == member.settings.self_id:
            return VoteResult.REJECT_UNEXPECTED_LEADER
        if request.ledger_end_term < member.log.end_term:
            return VoteResult.REJECT_EXPIRED_LEDGER_TERM
        if request.ledger_end_term == member.log.end_term and request.ledger_end_index < member.log.end_index:
            return VoteResult.REJECT_SMALL_LEDGER_END_INDEX
        if request.term < member.term:
            return VoteResult.REJECT_EXPIRED_VOTE_TERM
        if request.leader_id not in member.voters and self._has_live_leader(now_ms):
            # The candidate was removed and does not know it yet. Or it was added and this peer does not know
            # it yet; then the present leader is as good (Raft dissertation, §4.2.3).
            return VoteResult.REJECT_ALREADY_HAS_LEADER
        return VoteResult.ACCEPT

    def _has_live_leader(self, now_ms: int) -> bool:
        return self.member.role is RaftRole.LEADER or (
            self.member.role is RaftRole.FOLLOWER
            and now_ms - self.leader_contact_ms <= self.election_timeout_ms
        )

    def _pre_vote_result(self, request: VoteRequest, now_ms: int) -> VoteResult:
        """The response to a pre-vote. It binds to nothing and changes no state. A peer that hears a leader
        rejects pre-votes."""
        result = self._check_candidate(request, now_ms)
        if result is not VoteResult.ACCEPT:
            return result
        if self._has_live_leader(now_ms):
            return VoteResult.REJECT_ALREADY_HAS_LEADER
        return VoteResult.ACCEPT

    def _vote_result(self, request: VoteRequest, now_ms: int) -> VoteResult:
        member = self.member
        result = self._check_candidate(request, now_ms)
        if result is not VoteResult.ACCEPT:
            return result
        assert request.leader_id is not None
        if request.term == member.term and member.voted_for not in (None, request.leader_id):
            if member.leader is not None:
                return VoteResult.REJECT_ALREADY_HAS_LEADER
            return VoteResult.REJECT_ALREADY_VOTED
        if request.term < member.log.end_term:
            return VoteResult.REJECT_TERM_SMALL_THAN_LEDGER
        if member.role is RaftRole.LEADER and request.term == member.term:
            return VoteResult.REJECT_ALREADY_HAS_LEADER
        if request.term > member.term or member.voted_for is None:
            newer = request.term > member.term
            member.save_vote(request.term, request.leader_id)
            if newer:
                self.step_down(now_ms)
            self._schedule_candidacy(now_ms, 0)
        return VoteResult.ACCEPT

    # Candidacies --------------------------------------------------------------------------------------------

    @property
    def _response_wait_ms(self) -> int:
        """How much longer than usual a candidate waits for responses. Where the network is slow, or the peers
        get little of their processors, each may take longer than a candidacy. So the wait doubles with each
        candidacy that a quorum did not respond to, up to a bound."""
        if self.unanswered == 0:
            return 0
        doublings = min(self.unanswered - 1, _DOUBLINGS_MAX)
        return min(self.member.settings.vote_interval_min_ms << doublings, RESPONSE_WAIT_MAX_MS)

    @property
    def _may_stand(self) -> bool:
        """Whether this peer has lost no data, or may be elected by all."""
        return self.member.rejoin is None or self.member.rejoin.votes_if_all

    @property
    def _uses_pre_vote(self) -> bool:
        """Whether all peers support pre-votes, by their own messages or by the last leader's report."""
        member = self.member
        return member.all_support(FEATURE_PRE_VOTE) or bool(member.group_features & FEATURE_PRE_VOTE)

    def _start_candidacy(self, now_ms: int) -> None:
        """Starts a candidacy in one of the two ways that this module's docstring describes."""
        if self._uses_pre_vote:
            self._request_votes(Candidacy.PRE_VOTE, self.member.term + 1, now_ms)
        elif self.increase_term:
            self.request_votes_in_new_term(now_ms)
        else:
            if self.member.voted_for is None:
                self.member.save_vote(self.member.term, self.member.settings.self_id)
            self._request_votes(Candidacy.VOTE, self.member.term, now_ms)

    def request_votes_in_new_term(self, now_ms: int) -> None:
        """Moves to a new term, votes for this peer, and asks the other voters for their votes."""
        member = self.member
        self.increase_term = False
        member.save_vote(member.term + 1, member.settings.self_id)
        self._request_votes(Candidacy.VOTE, member.term, now_ms)

    def _request_votes(self, candidacy: Candidacy, term: int, now_ms: int) -> None:
        member = self.member
        self.candidacy = candidacy
        self.candidacy_term = term
        voted_elsewhere = candidacy is Candidacy.VOTE and member.voted_for != member.settings.self_id
        own = VoteResult.REJECT_ALREADY_VOTED if voted_elsewhere else VoteResult.ACCEPT
        self._votes_if_all = set()
        self._asked_again = set()
        if own is VoteResult.ACCEPT and member.rejoin is not None:
            own = VoteResult.REJECT_UNKNOWN_LEADER
            self._votes_if_all.add(member.settings.self_id)
        self.vote_results = {member.settings.self_id: own}
        self._schedule_candidacy(now_ms, self._response_wait_ms)
        for peer in member.other_voters:
            self._request_vote(peer)
        self._count_votes(now_ms)

    def _probe(self, rejoin: Rejoin) -> None:
        """Asks the other voters whose term is not known what they have, by vote requests that every peer
        rejects."""
        member = self.member
        if not rejoin.vote_lost:
            return
        for peer in rejoin.voters_without_term(member.other_voters):
            self._send_probe(peer)

    def _probe_back(self, rejoin: Rejoin, peer: str | None) -> None:
        """Asks a peer that has just started, too, so that all founders of a group know at once that it is
        new. Once for each, so that two peers never ask each other without an end."""
        if peer in rejoin.voters_without_term(self.member.other_voters) and peer not in rejoin.asked_back:
            rejoin.asked_back.add(peer)
            self._send_probe(peer)

    def _send_probe(self, peer: str, end_index: int | None = None) -> None:
        """Asks a peer what it has; with `end_index` whether its log is newer than this one, if this one ended
        there."""
        member = self.member
        request = VoteRequest()
        if end_index is not None:
            request.ledger_end_index, request.ledger_end_term = end_index, member.log.end_term
        member.fill_request(request, peer)
        request.term = -1
        member.emit(SendRequest(peer, member.next_request_number(), request))

    def _request_vote(self, peer: str) -> None:
        member = self.member
        request = VoteRequest(
            term=self.candidacy_term,
            ledger_end_index=member.log.end_index,
            ledger_end_term=member.log.end_term,
            pre_vote=True if self.candidacy is Candidacy.PRE_VOTE else None,
        )
        member.fill_request(request, peer)
        member.emit(SendRequest(peer, member.next_request_number(), request))

    def on_vote_response(
        self, peer: str, request: VoteRequest, response: VoteResponse | None, now_ms: int
    ) -> None:
        """Counts a response, unless its candidacy is over."""
        member = self.member
        requested = Candidacy.PRE_VOTE if request.pre_vote else Candidacy.VOTE
        if is_probe(request):
            if member.rejoin is not None and response is not None:
                self._on_probe_response(member.rejoin, peer, request, response)
            return
        if response is None or member.role is not RaftRole.CANDIDATE:
            return
        if requested is not self.candidacy or request.term != self.candidacy_term:
            return
        if response.vote_result in _NEWER_TERM and response.term > member.term:
            member.adopt_term(response.term)
            self.candidacy = Candidacy.NONE
            self._schedule_candidacy(now_ms, 0)
            return
        if response.vote_result is VoteResult.REJECT_TERM_NOT_READY and peer not in self.vote_results:
            # A Java voter has only now moved to this term. It votes when asked again.
            self.vote_results[peer] = response.vote_result
            self._request_vote(peer)
            return
        self.vote_results[peer] = response.vote_result
        if response.epochmq_if_all:
            self._votes_if_all.add(peer)
        self._count_votes(now_ms)

    def _on_probe_response(
        self, rejoin: Rejoin, peer: str, request: VoteRequest, response: VoteResponse
    ) -> None:
        member = self.member
        is_reached = response.vote_result is VoteResult.REJECT_EXPIRED_VOTE_TERM
        if is_reached and peer == member.leader and response.term == member.term:
            rejoin.on_leaders_end(member.term, request.ledger_end_index)
        rejoin.on_probe_response(peer, request, response)

    def _count_votes(self, now_ms: int) -> None:
        """Wins with a majority of votes, or ends the candidacy once all voters have responded."""
        member = self.member
        accepted = list(self.vote_results.values()).count(VoteResult.ACCEPT)
        of_all = accepted + len(self._votes_if_all) == len(member.voters)
        if accepted >= member.quorum or of_all:
            if self.candidacy is Candidacy.PRE_VOTE or self.candidacy_term == self.barred_term:
                self.request_votes_in_new_term(now_ms)
            else:
                self.candidacy = Candidacy.NONE
                self.unanswered = 0
                if member.rejoin is not None:  # no disk that took part has anything that this one lacks
                    member.rejoin = None
                    member.emit(RejoinCompleted())
                member.become(RaftRole.LEADER, member.settings.self_id)
        elif self.vote_results.keys() >= set(member.voters):
            self._end_candidacy(now_ms)

    def _end_candidacy(self, now_ms: int) -> None:
        """Ends a candidacy that did not win, and decides when and in which term the next one starts
        (`DLedgerLeaderElector.maintainAsCandidate`)."""
        member = self.member
        results = list(self.vote_results.values())
        quorum = member.quorum
        newer_logs = sum(result in _NEWER_LEDGER for result in results)
        not_ready = results.count(VoteResult.REJECT_TERM_NOT_READY)
        voted = self.candidacy is Candidacy.VOTE
        self.candidacy = Candidacy.NONE
        if VoteResult.REJECT_ALREADY_HAS_LEADER in results:
            self._schedule_candidacy(now_ms, self.election_timeout_ms if voted else 0)
        elif len(results) < quorum:
            self.unanswered += 1
            self._schedule_candidacy(now_ms, 0)
        elif len(results) - newer_logs < quorum:
            self._schedule_candidacy(now_ms, member.settings.vote_interval_max_ms)
        elif results.count(VoteResult.ACCEPT) + not_ready >= quorum:
            self.increase_term = False
            self.next_candidacy_ms = now_ms + REVOTE_MS
        else:
            self.increase_term = True
            self._schedule_candidacy(now_ms, 0)

    # Invariants ---------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Raises InvariantError if the candidacy contradicts the rules at its fields. O(voters)."""
        candidacy, member = self.candidacy, self.member
        if candidacy is Candidacy.NONE:
            return
        if member.role is not RaftRole.CANDIDATE or not member.is_voter or not self._may_stand:
            raise InvariantError(
                "Election",
                "only a candidate that is a voter and has lost no data asks for votes",
                candidacy=candidacy.value,
                role=member.role.value,
                voters=member.voters,
                rejoins=member.rejoin is not None,
            )
        expected = member.term + (candidacy is Candidacy.PRE_VOTE)
        if self.candidacy_term != expected:
            raise InvariantError(
                "Election",
                "votes are asked for in the present term, pre-votes for the next one",
                candidacy=candidacy.value,
                candidacy_term=self.candidacy_term,
                term=member.term,
            )
        results = self.vote_results
        if member.settings.self_id not in results or any(peer not in member.voters for peer in results):
            raise InvariantError(
                "Election",
                "responses of voters count, and this peer's own",
                responses=sorted(results),
                voters=member.voters,
            )
