"""Scenarios of single cores. A mistake in the core breaks each of them."""

from __future__ import annotations

from epochmq_dledger.core.raft_log import MemoryLog, make_entry
from epochmq_dledger.core.types import RaftRole, ReadIndex, RequestReceived, Tick
from epochmq_protocol.dledger import HeartBeatRequest, PushEntryRequest, PushType
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
