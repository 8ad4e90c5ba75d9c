"""Reads wait for heartbeat rounds, and one round confirms all that wait for it."""

from __future__ import annotations

import gc
import sys

from epochmq_dledger.core.types import RaftRole, ReadIndex, Tick
from epochmq_protocol.dledger import HeartBeatRequest
from tests.unit.dledger.scripted_node import ScriptedNode, served_reads


def leader() -> ScriptedNode:
    core = ScriptedNode()
    core.elect()
    core.settle()
    core.take(HeartBeatRequest)
    return core


def test_one_round_serves_all_reads_that_wait_for_it() -> None:
    """Two hundred reads that arrive during a round share the next one."""
    core = leader()
    core.step(ReadIndex(1))
    first = core.take(HeartBeatRequest, "n1")
    assert len(first) == 1
    for token in range(2, 202):
        core.step(ReadIndex(token))
    assert core.take(HeartBeatRequest, "n1") == []
    assert served_reads(core.heartbeat_answered(first[0])) == [1]
    second = core.take(HeartBeatRequest, "n1")
    assert len(second) == 1
    assert served_reads(core.heartbeat_answered(second[0])) == list(range(2, 202))
    assert core.take(HeartBeatRequest, "n1") == []


def test_a_second_read_waits_for_one_round_trip_and_not_for_the_next_heartbeat() -> None:
    core = leader()
    core.step(ReadIndex(1))
    core.step(ReadIndex(2), later_ms=1)
    first = core.take(HeartBeatRequest, "n1")
    core.heartbeat_answered(first[0], later_ms=1)
    second = core.take(HeartBeatRequest, "n1")
    assert second, "the next round does not begin before the next heartbeat"
    assert served_reads(core.heartbeat_answered(second[0], later_ms=1)) == [2]


def test_a_lost_round_of_a_read_is_repeated_within_a_quarter_of_a_heartbeat_interval() -> None:
    core = leader()
    core.step(ReadIndex(1))
    core.take(HeartBeatRequest)
    asked_ms = core.now_ms
    core.step(Tick(), later_ms=core.node.next_deadline_ms() - core.now_ms)
    assert core.now_ms - asked_ms <= core.node.member.settings.heartbeat_interval_ms / 4
    again = core.take(HeartBeatRequest, "n1")
    assert served_reads(core.heartbeat_answered(again[0])) == [1]


def test_the_cost_of_a_heartbeat_does_not_depend_on_earlier_ones() -> None:
    """Counts executed lines, over thousands of rounds that may still get responses."""
    core = leader()

    def lines_of_a_round() -> int:
        count = 0

        def trace(frame: object, event: str, argument: object) -> object:
            nonlocal count
            count += event == "line"
            return trace

        before = sys.gettrace()
        gc.disable()  # what it collects may run lines of its own
        sys.settrace(trace)  # type: ignore[arg-type]
        try:
            assert core.node.leader is not None
            core.node.leader.heartbeat(core.now_ms)
        finally:
            sys.settrace(before)
            gc.enable()
        return count

    few = lines_of_a_round()
    for _ in range(2000):
        core.node.leader.heartbeat(core.now_ms)  # type: ignore[union-attr]
    assert lines_of_a_round() <= few + 2


def test_a_response_to_an_earlier_leadership_of_the_same_term_confirms_nothing() -> None:
    """Beside Java peers a leader that stepped down can be elected again in its own term."""
    core = leader()
    for _ in range(5):
        core.step(Tick(), later_ms=50)
        core.step(ReadIndex(1))
    late = core.take(HeartBeatRequest, "n1")
    assert len(late) > 3
    term = core.node.member.term
    core.node.election.step_down(core.now_ms)
    core.step(Tick())
    assert core.node.leader is None
    core.node.member.become(RaftRole.LEADER, "n0")  # by the votes that it has in this term
    core.step(Tick())
    assert core.node.leader is not None
    assert core.node.member.term == term
    core.settle()
    core.take(HeartBeatRequest)
    core.step(ReadIndex(7))
    for one in late:
        assert 7 not in served_reads(core.heartbeat_answered(one))
    fresh = core.take(HeartBeatRequest, "n1")
    assert served_reads(core.heartbeat_answered(fresh[-1])) == [7]
