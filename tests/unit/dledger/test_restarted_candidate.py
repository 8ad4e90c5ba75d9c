"""How a peer stands for election beside RocketMQ's peers after a restart in a term in which it voted for
itself. It may have led that term and lost entries of it, so it must not lead the term again. But a RocketMQ
leader that a quorum follows ignores newer terms: with a new term and an old log the peer would stay outside
its group while that leader lives."""

from __future__ import annotations

import pytest

from epochmq_dledger.core.raft_log import MemoryLog, make_entry
from epochmq_dledger.core.types import CallCompleted, RaftRole, RequestReceived, SendResponse, Tick
from epochmq_protocol.dledger import (
    DLedgerResponseCode,
    HeartBeatRequest,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from tests.unit.dledger.scripted_node import ScriptedNode

TERM = 3


def restarted() -> ScriptedNode:
    """A peer that has voted for itself in its present term."""
    log = MemoryLog()
    log.append([make_entry(0, TERM, b"0", log.end_pos, 1 << 16)])
    return ScriptedNode(log=log, term=TERM, voted_for="n0", committed=0)


def stand(core: ScriptedNode, *results: VoteResult) -> int:
    """Lets the peer stand for election, and RocketMQ's peers respond; returns the term of its candidacy."""
    for _ in range(20):
        core.step(Tick(), max(0, core.node.next_deadline_ms() - core.now_ms))
        if asked := core.take(VoteRequest):
            break
    else:
        raise AssertionError("it does not stand for election")
    (term,) = {one.request.term for one in asked}
    for one, result in zip(asked, results, strict=True):
        response = VoteResponse(vote_result=result, term=term)
        core.step(CallCompleted(one.peer, one.context, one.request, response))
    return term


@pytest.mark.parametrize(
    "result", [VoteResult.REJECT_SMALL_LEDGER_END_INDEX, VoteResult.REJECT_ALREADY_HAS_LEADER]
)
def test_it_stays_in_its_term_and_follows_the_leader_while_there_is_one(result: VoteResult) -> None:
    core = restarted()
    for _ in range(3):
        assert stand(core, result, result) == TERM
    beat = HeartBeatRequest(group="g", remote_id="n0", local_id="n1", leader_id="n1", term=TERM)
    effects = core.step(RequestReceived(1, beat))
    codes = [one.response.code for one in effects if isinstance(one, SendResponse)]
    assert codes == [DLedgerResponseCode.SUCCESS]
    assert (core.node.member.role, core.node.member.leader) == (RaftRole.FOLLOWER, "n1")


def test_it_leads_only_a_new_term() -> None:
    core = restarted()
    assert stand(core, VoteResult.ACCEPT, VoteResult.ACCEPT) == TERM
    assert core.node.leader is None
    assert core.node.member.term == TERM + 1
    for one in core.take(VoteRequest):
        assert one.request.term == TERM + 1
        response = VoteResponse(vote_result=VoteResult.ACCEPT, term=TERM + 1)
        core.step(CallCompleted(one.peer, one.context, one.request, response))
    assert core.node.leader is not None


def test_it_moves_to_a_new_term_when_the_others_voted_and_have_no_leader() -> None:
    core = restarted()
    assert stand(core, VoteResult.REJECT_ALREADY_VOTED, VoteResult.REJECT_ALREADY_VOTED) == TERM
    assert stand(core, VoteResult.ACCEPT, VoteResult.ACCEPT) == TERM + 1
    assert core.node.leader is not None


def test_a_peer_that_loses_its_leader_first_stands_in_the_same_term() -> None:
    """It has not voted in that term. Only if others have does it need a new one."""
    core = ScriptedNode(log=MemoryLog(), term=TERM)
    beat = HeartBeatRequest(group="g", remote_id="n0", local_id="n1", leader_id="n1", term=TERM + 1)
    core.step(RequestReceived(1, beat))
    assert stand(core, VoteResult.REJECT_ALREADY_VOTED, VoteResult.REJECT_ALREADY_VOTED) == TERM + 1
    assert stand(core, VoteResult.REJECT_ALREADY_VOTED, VoteResult.REJECT_ALREADY_VOTED) == TERM + 2


def test_a_vote_in_the_term_of_the_leader_leaves_the_leader() -> None:
    """The voter has not voted in that term: it only follows the leader that others elected."""
    term = 1000
    core = ScriptedNode(log=MemoryLog(), term=TERM)
    beat = HeartBeatRequest(group="g", remote_id="n0", local_id="n1", leader_id="n1", term=term)
    core.step(RequestReceived(1, beat))
    vote = VoteRequest(group="g", remote_id="n0", local_id="n2", leader_id="n2", term=int(str(term)))
    vote.ledger_end_index = vote.ledger_end_term = -1
    effects = core.step(RequestReceived(2, vote))
    (response,) = [one.response for one in effects if isinstance(one, SendResponse)]
    assert isinstance(response, VoteResponse)
    assert response.vote_result is VoteResult.ACCEPT
    assert (core.node.member.term, core.node.member.voted_for) == (term, "n2")
    assert (core.node.member.role, core.node.member.leader) == (RaftRole.FOLLOWER, "n1")
