"""What a leader's pushes may change in a follower's log."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq_dledger.core.raft_log import MemoryLog, make_entry
from epochmq_dledger.core.types import Alarm, ErasureCompleted, LogSynced, RequestReceived, SendResponse
from epochmq_formats.dledger_log import CHAIN_CRC_AT
from epochmq_protocol.dledger import (
    FEATURES,
    DLedgerEntry,
    DLedgerResponseCode,
    HeartBeatRequest,
    PushEntryRequest,
    PushType,
)
from tests.unit.dledger.block_logs import filled, opened
from tests.unit.dledger.file_logs import flip
from tests.unit.dledger.scripted_node import ScriptedNode, fill


def follower(committed: int) -> ScriptedNode:
    log = MemoryLog()
    fill(log, range(3))
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


def test_what_a_leader_says_of_its_peers_counts_until_another_one_leads() -> None:
    core = follower(0)
    beat = HeartBeatRequest(group="g", remote_id="n0", leader_id="n1", term=2, epochmq_all=FEATURES)
    core.step(RequestReceived(1, beat))
    for term, leader, features in ((2, "n1", FEATURES), (3, "n2", 0)):
        push = PushEntryRequest(group="g", remote_id="n0", local_id=leader, leader_id=leader, term=term)
        push.type, push.entry = PushType.COMPARE, core.log.entry(0)
        core.step(RequestReceived(2, push))
        assert (core.node.member.leader, core.node.member.group_features) == (leader, features)


class SlowLog(MemoryLog):
    """A log that is not writable after a truncation until a test says so."""

    def truncate(self, end_index: int) -> None:
        super().truncate(end_index)
        self.is_writable = False


def test_pushes_that_arrive_during_a_truncation_are_handled_after_it() -> None:
    log = SlowLog()
    fill(log, range(3))
    core = ScriptedNode(log=log, term=1, committed=0)
    entries: list[DLedgerEntry] = []
    kept = log.entry(0)
    assert kept is not None
    position = kept.pos + kept.size
    for index in (1, 2):
        entries.append(make_entry(index, 2, b"of term 2", position, 1 << 16))
        position = entries[-1].pos + entries[-1].size
    for call, kind in enumerate((PushType.TRUNCATE, PushType.APPEND)):
        push = PushEntryRequest(group="g", remote_id="n0", local_id="n1", leader_id="n1", term=2)
        push.type, push.entry = kind, entries[call]
        assert not [one for one in core.step(RequestReceived(call, push)) if isinstance(one, SendResponse)]
    assert log.end_index == 0
    log.is_writable = True
    effects = core.step(ErasureCompleted()) + core.step(LogSynced(2, 2))
    responses = {one.call: one.response.code for one in effects if isinstance(one, SendResponse)}
    assert responses == dict.fromkeys((0, 1), DLedgerResponseCode.SUCCESS)
    assert log.entries[1:] == entries


@pytest.mark.parametrize(
    ("count", "entries", "code"),
    [
        (0, 0, DLedgerResponseCode.UNEXPECTED_ARGUMENT),
        (3, 1, DLedgerResponseCode.UNEXPECTED_ARGUMENT),
        (3, 0, DLedgerResponseCode.SUCCESS),
    ],
)
def test_a_push_has_either_entries_or_a_block_with_their_number(
    tmp_path: Path, count: int, entries: int, code: DLedgerResponseCode
) -> None:
    leaders, model = filled(tmp_path / "leader", 3)
    log = opened(tmp_path / "follower")
    core = ScriptedNode(log=log, term=1, committed=-1, body_log=log)
    push = PushEntryRequest(group="g", remote_id="n0", local_id="n1", leader_id="n1", term=2)
    push.epochmq_block, push.epochmq_first_index = leaders.read_entries(0, 1 << 20)[0], 0
    push.epochmq_count, push.batch_entry = count, model.entries[:entries]
    effects = core.step(RequestReceived(1, push)) + core.step(LogSynced(log.end_index, log.end_term))
    assert [one.response.code for one in effects if isinstance(one, SendResponse)] == [code]
    assert log.end_index == (2 if code is DLedgerResponseCode.SUCCESS else -1)
    leaders.close()
    log.close()


def test_a_rotten_last_entry_is_replaced_by_the_leaders(tmp_path: Path) -> None:
    """A flipped bit that no checksum covers: the entry has the index and term of the leader's, and a peer
    rejects a TRUNCATE of its leader's own entries, so nothing else would ever let this peer follow."""
    leaders, model = filled(tmp_path / "leader", 3)
    log, _ = filled(tmp_path / "follower", 3)
    last = model.entries[-1]
    log.close()
    flip(tmp_path / "follower", last.pos + CHAIN_CRC_AT - 1)  # its channel
    log = opened(tmp_path / "follower", committed_index=1)
    assert log.end_index == 2
    assert log.entry(2) != last
    core = ScriptedNode(log=log, term=1, committed=1, body_log=log)
    push = PushEntryRequest(group="g", remote_id="n0", local_id="n1", leader_id="n1", term=1)
    push.type, push.entry = PushType.COMPARE, last
    effects = core.step(RequestReceived(1, push))
    assert not [one for one in effects if isinstance(one, SendResponse)], "the entry is not durable yet"
    assert [one.text for one in effects if isinstance(one, Alarm)] == [
        "entry 2 of term 1 has rotted here; the one of n1 replaces it"
    ]
    assert core.node.member.synced_index == 1
    effects = core.step(LogSynced(2, 1))
    assert [one.response.code for one in effects if isinstance(one, SendResponse)] == [
        DLedgerResponseCode.SUCCESS
    ]
    assert log.read_entries(0, 1 << 20) == leaders.read_entries(0, 1 << 20)
    for one in (log, leaders):
        one.close()
