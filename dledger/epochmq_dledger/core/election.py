"""Who leads: votes, candidacies, heartbeats received, leadership handed over.

The answers to VOTE and HEART_BEAT are DLedger's (`DLedgerLeaderElector`), but a vote asked for at a newer
term, or a newer leader's heartbeat, is answered at once (Java first answers "not ready").

There are two ways to stand:

- Among peers of ours a candidate asks beforehand whether it would win (pre-vote, Raft §9.6), and only then
  moves to a new term. A peer that comes back from a partition deposes nobody.
- Beside a Java peer it does as Java does: it asks at its present term first, and moves to a new one only when
  a quorum answered and nothing else explains the refusals. That matters: a Java leader that a quorum follows
  ignores newer terms, and voters look at the candidate's log before its term, so a peer with an old log and a
  new term would neither win nor follow for as long as that leader lives.
"""

from __future__ import annotations

from enum import Enum

from epochmq_dledger.core.member_state import MemberState
from epochmq_dledger.core.types import RaftRole, SendRequest
from epochmq_protocol.dledger import (
    FEATURE_PRE_VOTE,
    DLedgerResponseCode,
    HeartBeatRequest,
    HeartBeatResponse,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)

_BIGGER_LEDGER = (VoteResult.REJECT_EXPIRED_LEDGER_TERM, VoteResult.REJECT_SMALL_LEDGER_END_INDEX)
_NEWER_TERM = (VoteResult.REJECT_EXPIRED_VOTE_TERM, VoteResult.REJECT_TERM_SMALL_THAN_LEDGER)


class Candidacy(Enum):
    """What a candidate is asking for."""

    NONE = "none"
    PRE_VOTE = "pre-vote"
    VOTE = "vote"


class LeadershipTakeover:
    """A leadership this peer was asked to take over, once its log reaches `index`."""

    def __init__(self, call: int, request: LeadershipTransferRequest, deadline_ms: int) -> None:
        self.call = call
        self.request = request
        self.index = request.take_leadership_ledger_index
        self.deadline_ms = deadline_ms


class Election:
    """The part of a peer that follows, votes and stands."""

    def __init__(self, member: MemberState, now_ms: int) -> None:
        self.member = member
        self.leader_contact_ms = now_ms
        """When the leader was last heard of."""
        self.next_candidacy_ms = now_ms + int(member.jitter() * member.settings.vote_interval_min_ms)
        self.candidacy = Candidacy.NONE
        self.candidacy_term = -1
        self.vote_results: dict[str, VoteResult] = {}
        self.takeover: LeadershipTakeover | None = None
        self.increase_term = member.voted_for == member.settings.self_id
        """Whether the next candidacy beside Java peers moves to a new term. So it must after a restart in a
        term that this peer may have led: it may have lost entries of that term that others have, and would
        append others under the same indexes."""

    @property
    def election_timeout_ms(self) -> int:
        """How long a silent leader is still believed in."""
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
                member.rejoin.on_heartbeat(request, response, self)
        member.reply(call, request, response)

    def follow(self, leader: str, term: int, now_ms: int) -> bool:
        """Accepts the leader of this or a newer term; False when the term already has another one."""
        member = self.member
        if term == member.term and member.leader not in (None, leader):
            return False
        if leader != member.leader:
            member.group_features = 0  # until its heartbeat says
        member.adopt_term(term)
        self.leader_contact_ms = now_ms
        self.candidacy = Candidacy.NONE
        self.increase_term = False
        member.become(RaftRole.FOLLOWER, leader)
        return True

    def on_leader_disconnected(self, leader: str, now_ms: int) -> None:
        """The followed leader's connection is closed: stands soon, instead of waiting for silence to prove
        it. Only where it asks beforehand, and is refused by whoever still hears that leader: beside a Java
        peer a connection that merely broke would cost the group its leader."""
        member = self.member
        if member.role is not RaftRole.FOLLOWER or member.leader != leader:
            return
        if self._asks_beforehand:
            member.become(RaftRole.CANDIDATE, None)
            self.next_candidacy_ms = now_ms + int(member.jitter() * member.settings.heartbeat_interval_ms / 2)

    def on_timeout(self, now_ms: int) -> None:
        """The clock of followers and candidates."""
        member = self.member
        if member.role is RaftRole.FOLLOWER and now_ms - self.leader_contact_ms > self.election_timeout_ms:
            self.step_down(now_ms)
        if member.role is RaftRole.CANDIDATE and now_ms >= self.next_candidacy_ms:
            if self.candidacy is not Candidacy.NONE:
                self._conclude(now_ms)
            elif member.is_voter and member.rejoin is None:
                self._stand(now_ms)
            else:  # until the log says that it belongs to the group, or it has caught up
                self._wait(now_ms, self.election_timeout_ms)

    def next_deadline_ms(self) -> int:
        """When silence alone makes a follower or candidate act."""
        if self.member.role is RaftRole.FOLLOWER:
            return self.leader_contact_ms + self.election_timeout_ms + 1
        return self.next_candidacy_ms

    def step_down(self, now_ms: int) -> None:
        """Becomes a candidate that waits its turn before it stands."""
        self.member.become(RaftRole.CANDIDATE, None)
        self.candidacy = Candidacy.NONE
        self._wait(now_ms, 0)

    def cancel_candidacy(self, now_ms: int) -> None:
        """Ends a candidacy: the log and with it the voters have changed."""
        if self.candidacy is not Candidacy.NONE:
            self.candidacy = Candidacy.NONE
            self._wait(now_ms, 0)

    def _wait(self, now_ms: int, extra_ms: int) -> None:
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
        if request.pre_vote:
            response.vote_result = self._judge_pre_vote(request, now_ms)
        else:
            response.vote_result = self._judge(request, now_ms)
        response.term = member.term
        if response.vote_result is VoteResult.REJECT_TERM_SMALL_THAN_LEDGER:
            response.term = member.log.end_term
        member.reply(call, request, response)

    def _judge_log(self, request: VoteRequest, now_ms: int) -> VoteResult:
        """Whether the candidate's log is at least as new as ours (Raft §5.4.1)."""
        member = self.member
        if request.leader_id is None or not member.accepts_sender(request):
            return VoteResult.REJECT_UNKNOWN_LEADER
        if member.rejoin is not None:
            return VoteResult.REJECT_UNKNOWN_LEADER
        if member.settings.joining and member.log.end_index < 0:
            # It cannot have been added yet. Perhaps it was a member once, and its folder was cleared: another
            # that does not know of its own removal could make a quorum of the former members with it.
            return VoteResult.REJECT_UNKNOWN_LEADER
        if request.leader_id == member.settings.self_id:
            return VoteResult.REJECT_UNEXPECTED_LEADER
        if request.ledger_end_term < member.log.end_term:
            return VoteResult.REJECT_EXPIRED_LEDGER_TERM
        if request.ledger_end_term == member.log.end_term and request.ledger_end_index < member.log.end_index:
            return VoteResult.REJECT_SMALL_LEDGER_END_INDEX
        if request.term < member.term:
            return VoteResult.REJECT_EXPIRED_VOTE_TERM
        if request.leader_id not in member.voters and self._hears_leader(now_ms):
            # It was removed and does not know yet; or it was added and we do not know yet, but then the
            # leader that we hear is no worse. (Raft dissertation, §4.2.3.)
            return VoteResult.REJECT_ALREADY_HAS_LEADER
        return VoteResult.ACCEPT

    def _hears_leader(self, now_ms: int) -> bool:
        return self.member.role is RaftRole.LEADER or (
            self.member.role is RaftRole.FOLLOWER
            and now_ms - self.leader_contact_ms <= self.election_timeout_ms
        )

    def _judge_pre_vote(self, request: VoteRequest, now_ms: int) -> VoteResult:
        """A promise of nothing: no state changes. Refused while a leader is heard."""
        verdict = self._judge_log(request, now_ms)
        if verdict is not VoteResult.ACCEPT:
            return verdict
        if self._hears_leader(now_ms):
            return VoteResult.REJECT_ALREADY_HAS_LEADER
        return VoteResult.ACCEPT

    def _judge(self, request: VoteRequest, now_ms: int) -> VoteResult:
        member = self.member
        verdict = self._judge_log(request, now_ms)
        if verdict is not VoteResult.ACCEPT:
            return verdict
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
            self._wait(now_ms, 0)
        return VoteResult.ACCEPT

    # Standing -----------------------------------------------------------------------------------------------

    @property
    def _asks_beforehand(self) -> bool:
        """Whether all peers know pre-votes, from what they said or from what the last leader did."""
        member = self.member
        return member.all_support(FEATURE_PRE_VOTE) or bool(member.group_features & FEATURE_PRE_VOTE)

    def _stand(self, now_ms: int) -> None:
        """Starts a candidacy, in one of the two ways that the head of this module tells."""
        if self._asks_beforehand:
            self._ask(Candidacy.PRE_VOTE, self.member.term + 1, now_ms)
        elif self.increase_term:
            self._ask_at_a_new_term(now_ms)
        else:
            if self.member.voted_for is None:
                self.member.save_vote(self.member.term, self.member.settings.self_id)
            self._ask(Candidacy.VOTE, self.member.term, now_ms)

    def _ask_at_a_new_term(self, now_ms: int) -> None:
        member = self.member
        self.increase_term = False
        member.save_vote(member.term + 1, member.settings.self_id)
        self._ask(Candidacy.VOTE, member.term, now_ms)

    def _ask(self, ballot: Candidacy, term: int, now_ms: int) -> None:
        member = self.member
        self.candidacy = ballot
        self.candidacy_term = term
        voted_elsewhere = ballot is Candidacy.VOTE and member.voted_for != member.settings.self_id
        own = VoteResult.REJECT_ALREADY_VOTED if voted_elsewhere else VoteResult.ACCEPT
        self.vote_results = {member.settings.self_id: own}
        self._wait(now_ms, 0)
        for peer in member.others:
            self._ask_one(peer)
        self._count(now_ms)

    def request_terms(self, peers: list[str]) -> None:
        """Asks for the terms of these peers, by a pre-vote that is not counted."""
        member = self.member
        for peer in peers:
            request = VoteRequest(term=member.term + 1, pre_vote=True)
            member.fill_request(request, peer)
            member.emit(SendRequest(peer, member.context(), request))

    def _ask_one(self, peer: str) -> None:
        member = self.member
        request = VoteRequest(
            term=self.candidacy_term,
            ledger_end_index=member.log.end_index,
            ledger_end_term=member.log.end_term,
            pre_vote=True if self.candidacy is Candidacy.PRE_VOTE else None,
        )
        member.fill_request(request, peer)
        member.emit(SendRequest(peer, member.context(), request))

    def on_vote_response(
        self, peer: str, request: VoteRequest, response: VoteResponse | None, now_ms: int
    ) -> None:
        """Counts an answer, unless the candidacy it belongs to is over."""
        member = self.member
        asked = Candidacy.PRE_VOTE if request.pre_vote else Candidacy.VOTE
        if member.rejoin is not None and response is not None and request.pre_vote:
            member.rejoin.on_vote_response(peer, response)
            return
        if response is None or member.role is not RaftRole.CANDIDATE:
            return
        if asked is not self.candidacy or request.term != self.candidacy_term:
            return
        if response.vote_result in _NEWER_TERM and response.term > member.term:
            member.adopt_term(response.term)
            self.candidacy = Candidacy.NONE
            self._wait(now_ms, 0)
            return
        if response.vote_result is VoteResult.REJECT_TERM_NOT_READY and peer not in self.vote_results:
            # A Java voter has only now come to this term; it votes when asked again.
            self.vote_results[peer] = response.vote_result
            self._ask_one(peer)
            return
        self.vote_results[peer] = response.vote_result
        self._count(now_ms)

    def _count(self, now_ms: int) -> None:
        """Wins, or ends the candidacy once everybody has answered."""
        member = self.member
        results = list(self.vote_results.values())
        if results.count(VoteResult.ACCEPT) >= member.quorum:
            if self.candidacy is Candidacy.PRE_VOTE:
                self._ask_at_a_new_term(now_ms)
            else:
                self.candidacy = Candidacy.NONE
                member.become(RaftRole.LEADER, member.settings.self_id)
        elif self.vote_results.keys() >= set(member.voters):
            self._conclude(now_ms)

    def _conclude(self, now_ms: int) -> None:
        """Ends a candidacy that did not win, and decides when and at which term to stand again
        (`DLedgerLeaderElector.maintainAsCandidate`)."""
        member = self.member
        results = list(self.vote_results.values())
        quorum = member.quorum
        bigger = sum(result in _BIGGER_LEDGER for result in results)
        not_ready = results.count(VoteResult.REJECT_TERM_NOT_READY)
        voted = self.candidacy is Candidacy.VOTE
        self.candidacy = Candidacy.NONE
        if VoteResult.REJECT_ALREADY_HAS_LEADER in results:
            self._wait(now_ms, self.election_timeout_ms if voted else 0)
        elif len(results) < quorum:
            self._wait(now_ms, 0)
        elif len(results) - bigger < quorum:
            self._wait(now_ms, member.settings.vote_interval_max_ms)
        else:
            self.increase_term = results.count(VoteResult.ACCEPT) + not_ready < quorum
            self._wait(now_ms, 0)

    # Taking over --------------------------------------------------------------------------------------------

    def on_transfer(self, call: int, request: LeadershipTransferRequest, now_ms: int) -> None:
        """The leader wants this peer to lead (`DLedgerLeaderElector.handleTakeLeadership`)."""
        member = self.member
        may_stand = member.rejoin is None and member.role is not RaftRole.LEADER
        if self.takeover is not None or request.term != member.term or not may_stand:
            code = DLedgerResponseCode.EXPIRED_TERM
            if request.term == member.term:
                code = DLedgerResponseCode.REPEATED_REQUEST
            member.reply(call, request, LeadershipTransferResponse(term=member.term, code=code))
            return
        self.takeover = LeadershipTakeover(call, request, now_ms + member.settings.transfer_wait_max_ms)
        self.advance_takeover(now_ms)

    def advance_takeover(self, now_ms: int) -> None:
        """Stands once the log is complete, and answers once this peer leads or cannot."""
        member, takeover = self.member, self.takeover
        if takeover is None:
            return
        if member.role is RaftRole.LEADER:
            self._end_takeover(takeover, DLedgerResponseCode.SUCCESS)
        elif now_ms > takeover.deadline_ms or member.term > takeover.request.term + 1:
            self._end_takeover(takeover, DLedgerResponseCode.TAKE_LEADERSHIP_FAILED)
        elif (
            member.term == takeover.request.term
            and member.log.end_index >= takeover.index
            and member.is_voter
        ):
            member.become(RaftRole.CANDIDATE, None)
            self._ask_at_a_new_term(now_ms)  # no pre-vote: the living leader would win it

    def _end_takeover(self, takeover: LeadershipTakeover, code: DLedgerResponseCode) -> None:
        self.takeover = None
        response = LeadershipTransferResponse(term=self.member.term, code=code)
        self.member.reply(takeover.call, takeover.request, response)
