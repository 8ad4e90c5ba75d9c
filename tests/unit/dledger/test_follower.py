"""What a leader's pushes may change in a follower's log."""

from __future__ import annotations

import pytest

from epochmq_dledger.core.raft_log import MemoryLog, make_entry
from epochmq_dledger.core.types import Alarm, RequestReceived, SendResponse
from epochmq_protocol.dledger import DLedgerResponseCode, HeartBeatRequest, PushEntryRequest, PushType
from tests.unit.dledger.scripted_node import ScriptedNode


def follower(committed: int) -> ScriptedNode:
    log = MemoryLog()
    for index in range(3):
        log.append([make_entry(index, 1, b"%d" % index, log.end_pos, 1 << 16)])
    return ScriptedNode(log=log, term=1, committed=committed)


@pytest.mark.parametrize("committed", [0, 2])
def test_a_truncate_never_resets_a_log_with_committed_entries(committed: int) -> None:
    """A leader whose log begins after the end of the follower's log must not make the follower drop its
    log."""
    core = follower(committed)
    entry = make_entry(50, 2, b"far", 9000, 1 << 16)
    push = PushEntryRequest(group="g", remote_id="n0", local_id="n1", leader_id="n1", term=2)
    push.type, push.entry = PushType.TRUNCATE, entry
    effects = core.step(RequestReceived(1, push))
    responses = [one.response for one in effects if isinstance(one, SendResponse)]
    assert [one.code for one in responses] == [DLedgerResponseCode.INCONSISTENT_STATE]
    assert (core.log.begin_index, core.log.end_index) == (0, 2)
    assert any(isinstance(one, Alarm) for one in effects)


def test_a_truncate_resets_a_log_without_committed_entries() -> None:
    core = follower(-1)
    push = PushEntryRequest(group="g", remote_id="n0", local_id="n1", leader_id="n1", term=2)
    push.type, push.entry = PushType.TRUNCATE, make_entry(50, 2, b"far", 9000, 1 << 16)
    core.step(RequestReceived(1, push))
    assert (core.log.begin_index, core.log.end_index) == (50, 50)


@pytest.mark.parametrize(
    ("leader", "term", "entries", "code"),
    [
        ("n1", 1, 1, DLedgerResponseCode.EXPIRED_TERM),
        ("n9", 2, 1, DLedgerResponseCode.UNKNOWN_MEMBER),
        ("n0", 2, 1, DLedgerResponseCode.UNKNOWN_MEMBER),
        ("n2", 2, 1, DLedgerResponseCode.INCONSISTENT_LEADER),
        ("n1", 2, 2, DLedgerResponseCode.UNEXPECTED_ARGUMENT),
        ("n1", 2, 1, DLedgerResponseCode.SUCCESS),
    ],
)
def test_only_a_push_of_this_terms_leader_in_its_right_form_is_taken(
    leader: str, term: int, entries: int, code: DLedgerResponseCode
) -> None:
    """The follower of n1 in term 2 is asked to compare one entry, or two at once."""
    core = follower(0)
    core.step(RequestReceived(1, HeartBeatRequest(group="g", remote_id="n0", leader_id="n1", term=2)))
    push = PushEntryRequest(group="g", remote_id="n0", local_id=leader, leader_id=leader, term=term)
    push.type = PushType.COMPARE
    push.batch_entry = [core.log.entry(index) for index in range(entries)]
    effects = core.step(RequestReceived(2, push))
    responses = [one.response for one in effects if isinstance(one, SendResponse)]
    assert [one.code for one in responses] == [code]
    assert core.log.end_index == 2
