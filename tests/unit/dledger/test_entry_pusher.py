"""Which push a leader sends next, depending on the response of a peer."""

from __future__ import annotations

import pytest

from epochmq_dledger.core.raft_log import MemoryLog, make_entry
from epochmq_dledger.core.types import LogSynced, Proposal, SendRequest, SendSnapshotChunk, Snapshot
from epochmq_protocol.dledger import (
    DLedgerResponseCode,
    HeartBeatRequest,
    PushEntryRequest,
    PushEntryResponse,
    PushType,
)
from tests.unit.dledger.scripted_node import ScriptedNode, fill

SUCCESS, INCONSISTENT = DLedgerResponseCode.SUCCESS, DLedgerResponseCode.INCONSISTENT_STATE


def leader(first: int = 0, snapshot: Snapshot | None = None) -> ScriptedNode:
    """n0 leads term 2. Its log has the entries `first` to first + 2 of term 1 and its own first one."""
    log = MemoryLog()
    fill(log, range(first, first + 3))
    core = ScriptedNode(log=log, term=2, committed=first, snapshot=snapshot)
    core.elect()
    core.step(LogSynced(log.end_index, log.end_term))
    for beat in core.take(HeartBeatRequest, "n1"):
        core.heartbeat_answered(beat)
    return core


def pushes(core: ScriptedNode) -> list[SendRequest]:
    """Takes the pushes to n1, without those that only carry the committed index."""
    found = core.take(PushEntryRequest, "n1")
    return [one for one in found if kind(one)[0] is not PushType.COMMIT]


def kind(push: SendRequest) -> tuple[PushType, list[int]]:
    assert isinstance(push.request, PushEntryRequest)
    return push.request.type, [entry.index for entry in push.request.entries]


def respond(
    core: ScriptedNode, push: SendRequest, code: DLedgerResponseCode, end: int, begin: int = 0
) -> None:
    """n1, whose log has the entries `begin` to `end`, responds."""
    _, indexes = kind(push)
    response = PushEntryResponse(index=indexes[0], count=len(indexes), begin_index=begin, end_index=end)
    response.code = code
    core.answer(push, response)


def test_a_late_response_to_an_earlier_push_does_not_end_a_truncation() -> None:
    core = leader()
    (compare,) = pushes(core)
    assert kind(compare) == (PushType.COMPARE, [3])
    respond(core, compare, SUCCESS, end=3)
    for token in range(2):
        core.step(Proposal(token, (b"more",)))
    late, rejected = pushes(core)
    respond(core, rejected, INCONSISTENT, end=4)
    for code in (INCONSISTENT, SUCCESS):
        (compare,) = pushes(core)
        respond(core, compare, code, end=4)
    (truncation,) = pushes(core)
    assert kind(truncation) == (PushType.TRUNCATE, [3])
    respond(core, late, SUCCESS, end=4)
    assert pushes(core) == []
    respond(core, truncation, SUCCESS, end=3)
    assert [kind(one) for one in pushes(core)] == [(PushType.APPEND, [4, 5])]


def test_an_entry_that_is_known_to_differ_is_not_compared_again() -> None:
    """The peer says meanwhile that it holds less: its log was replaced by a snapshot, and grows again."""
    core = leader()
    for compared, code, end in ((3, INCONSISTENT, 5), (2, INCONSISTENT, 0), (0, SUCCESS, 5)):
        (compare,) = pushes(core)
        assert kind(compare) == (PushType.COMPARE, [compared])
        respond(core, compare, code, end=end)
    (compare,) = pushes(core)
    assert kind(compare) == (PushType.COMPARE, [2])


@pytest.mark.parametrize(("first", "sends_log"), [(0, True), (4, False)])
def test_a_peer_without_entries_gets_a_snapshot_only_if_the_log_is_not_whole(
    first: int, *, sends_log: bool
) -> None:
    entry = make_entry(first, 1, b"%d" % first, 0, 1 << 16)
    core = leader(first, Snapshot(entry, 5, 0))
    (compare,) = pushes(core)
    response = PushEntryResponse(index=first + 3, count=1, begin_index=-1, end_index=-1)
    response.code = INCONSISTENT
    effects = core.answer(compare, response)
    chunks = [one for one in effects if isinstance(one, SendSnapshotChunk)]
    assert [kind(one) for one in pushes(core)] == ([(PushType.TRUNCATE, [0])] if sends_log else [])
    assert len(chunks) == (0 if sends_log else 1)
