"""Scenarios of single cores. A mistake in the core breaks each of them."""

from __future__ import annotations

from epochmq_dledger.core.raft_log import MemoryLog, make_entry
from epochmq_dledger.core.types import (
    CallCompleted,
    LogSynced,
    RaftRole,
    ReadIndex,
    RequestReceived,
    SendResponse,
    Tick,
)
from epochmq_protocol.dledger import (
    FEATURES,
    HeartBeatRequest,
    PushEntryRequest,
    PushType,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from tests.unit.dledger.scripted_node import ScriptedNode, served_reads


def leader() -> ScriptedNode:
    """A leader that has committed an entry of its term."""
    core = ScriptedNode()
    core.elect()
    core.settle()
    core.take(HeartBeatRequest)
    return core


def test_one_round_confirms_all_waiting_reads() -> None:
    """A thousand masters renew their leases with two heartbeat rounds."""
    core = leader()
    for token in range(1000):
        core.step(ReadIndex(token))
    first = core.take(HeartBeatRequest, "n1")
    assert len(first) == 1
    served = served_reads(core.heartbeat_answered(first[0]))
    second = core.take(HeartBeatRequest, "n1")
    assert len(second) == 1
    served += served_reads(core.heartbeat_answered(second[0]))
    assert served == list(range(1000))


def test_a_response_to_an_earlier_leadership_confirms_nothing() -> None:
    """A leader steps down and is elected again in its own term, as can happen beside Java peers."""
    core = leader()
    for _ in range(5):
        core.step(Tick(), later_ms=50)
        core.step(ReadIndex(1))
    late = core.take(HeartBeatRequest, "n1")
    core.node.election.step_down(core.now_ms)
    core.step(Tick())
    core.node.member.become(RaftRole.LEADER, "n0")
    core.step(Tick())
    core.settle()
    core.take(HeartBeatRequest)
    core.step(ReadIndex(7))
    for one in late:
        assert 7 not in served_reads(core.heartbeat_answered(one))


def test_a_truncate_far_behind_the_end_drops_no_committed_log() -> None:
    """A TRUNCATE far behind the end of a log with committed entries is rejected."""
    log = MemoryLog()
    for index in range(3):
        log.append([make_entry(index, 1, b"%d" % index, log.end_pos, 1 << 16)])
    core = ScriptedNode(log=log, term=1, committed=2)
    push = PushEntryRequest(group="g", remote_id="n0", local_id="n1", leader_id="n1", term=2)
    push.type, push.entry = PushType.TRUNCATE, make_entry(50, 2, b"far", 9000, 1 << 16)
    core.step(RequestReceived(1, push))
    assert (core.log.begin_index, core.log.end_index) == (0, 2)


def test_one_peer_without_entries_does_not_show_that_a_group_is_new() -> None:
    """An emptied peer of three does not vote before both others have said that they have no entry."""
    core = ScriptedNode(rejoins=True, vote_lost=True, is_new_directory=True)
    for peer, is_known in (("n1", False), ("n2", True)):
        assert (core.node.member.rejoin is None) is False
        nothing = VoteResponse(vote_result=VoteResult.REJECT_EXPIRED_VOTE_TERM, term=0, epochmq_new=True)
        core.step(CallCompleted(peer, 1, VoteRequest(term=-1), nothing))
        assert (core.node.member.rejoin is None) is is_known


def test_a_peer_that_has_lost_its_vote_gives_none_even_if_all_others_do() -> None:
    """Only one that may lack unflushed entries does: it knows in which terms it has voted."""
    for vote_lost in (True, False):
        core = ScriptedNode(rejoins=True, vote_lost=vote_lost, only_unflushed=True)
        request = VoteRequest(group="g", remote_id="n0", local_id="n1", leader_id="n1", term=5)
        effects = core.step(RequestReceived(1, request))
        [response] = [one.response for one in effects if isinstance(one, SendResponse)]
        assert isinstance(response, VoteResponse)
        assert response.vote_result is VoteResult.REJECT_UNKNOWN_LEADER
        assert bool(response.epochmq_if_all) is not vote_lost
        assert core.node.member.voted_for == (None if vote_lost else "n1")


def test_the_log_of_an_earlier_leader_does_not_end_a_rejoin() -> None:
    """The emptied n0 has the whole log of the leader of term 1, but n2 knows term 5: n0 may have acknowledged
    entries of its leader, too."""
    core = ScriptedNode(rejoins=True, vote_lost=True, is_new_directory=True)
    rejoin = core.node.member.rejoin
    assert rejoin is not None
    beat = HeartBeatRequest(group="g", remote_id="n0", local_id="n1", leader_id="n1", term=1)
    beat.epochmq, beat.epochmq_rejoin, beat.epochmq_until = FEATURES, rejoin.incarnation, 0
    core.step(RequestReceived(1, beat))
    push = PushEntryRequest(group="g", remote_id="n0", local_id="n1", leader_id="n1", term=1)
    push.type, push.entry, push.commit_index = PushType.TRUNCATE, make_entry(0, 1, b"0", 0, 1 << 16), 0
    core.step(RequestReceived(1, push))
    core.step(LogSynced(0, 1))
    for peer, term in (("n1", 1), ("n2", 5)):
        has_entries = VoteResponse(vote_result=VoteResult.REJECT_SMALL_LEDGER_END_INDEX, term=term)
        core.step(CallCompleted(peer, 1, VoteRequest(term=-1), has_entries))
    assert core.node.member.rejoin is rejoin
