"""Tests that only whole records count as confirmed: a part of a record does not survive a stop, and its loss
is no damage.
"""

from __future__ import annotations

from pathlib import Path

from epochmq_broker.replication.ha import record_ends
from epochmq_broker.replication.ha.log_doubt import LogDoubt
from epochmq_broker.replication.ha.record_ends import RecordEnds
from tests.unit.broker.replication.ha.broker_node import BrokerNode, until
from tests.unit.broker.replication.ha.following_nodes import ALL_ACK, nodes, same
from tests.unit.store.support import Message, adopt_abort_file, copy_after_crash, put

LARGE = ALL_ACK | {"mappedFileSizeCommitLog": str(16 << 20), "maxMessageSize": str(4 << 20)}
SLOW = {"haFlowControlEnable": "true", "maxHaTransferByteInSecond": "200000"}


async def test_a_stop_in_the_middle_of_a_confirmed_record_leaves_no_doubt(tmp_path: Path) -> None:
    """All have a part of a large record. No broker reports or saves it as confirmed,
    and a replica that stops there, or is killed, comes back without doubt."""
    async with nodes(tmp_path, 3, LARGE) as (a, b, c):
        address = await a.lead(1, {1, 2, 3})
        await b.follow(address, 1)
        await c.follow(address, 1)
        before = a.put(20)
        await same(a, b, c)
        await until(lambda: {node.ha.confirm_offset for node in (a, b, c)} == {before})
        a.live.update(SLOW)
        put(a.store, Message(body=b"y" * (2 << 20), queue_id=0))
        assert a.puts.on_append is not None
        a.puts.on_append()
        await until(lambda: min(b.end, c.end) > before + 50_000, "all have a part of the record")
        assert before < b.end < a.end
        assert {node.ha.confirm_offset for node in (a, b, c)} == {before}
        assert {node.ha.confirmed_by_all for node in (a, b, c)} == {before}
        assert {node.store.checkpoint.confirm_phy_offset for node in (a, b, c)} == {before}
        c.store.checkpoint.store()
        copy_after_crash(c.store, tmp_path / "killed")
        adopt_abort_file(tmp_path / "killed")
        await b.close()
        for name, broker_id in (("2", 2), ("killed", 3)):
            back = await BrokerNode(tmp_path / name, broker_id, LARGE).open()
            try:
                assert (back.end, back.store.confirm_offset_at_load) == (before, before)
                assert back.ha.doubt.current == LogDoubt()
            finally:
                await back.close()
        await b.open()


async def test_a_clean_stop_saves_the_last_confirmed_record(tmp_path: Path) -> None:
    """Also if the records of the last moments were not dispatched yet."""
    async with nodes(tmp_path, 2, ALL_ACK) as (a, b):
        await b.follow(await a.lead(1, {1, 2}), 1)
        end = a.put(600)
        await until(lambda: b.ha.confirm_offset == end == a.ha.confirm_offset)
        await b.close()
        await b.open()
        assert b.store.confirm_offset_at_load == end
        await a.close()
        await a.open()
        assert a.store.confirm_offset_at_load == end


async def test_a_blank_record_at_the_end_of_a_replica_is_not_confirmed(tmp_path: Path) -> None:
    """A start writes the blank record again, because no file follows it."""
    async with nodes(tmp_path, 2, ALL_ACK) as (a, b):
        a_address = await a.lead(1, {1, 2})
        end = a.put(150)
        file = a.store.log.file
        assert file is not None
        a.store.log.close_last_file()
        await b.follow(a_address, 1)
        await until(lambda: b.end == file.start + file.size > end)
        await until(lambda: b.ha.client is not None and b.ha.client.confirm_offset == b.end)
        await until(lambda: not b.store.replica_log.has_undispatched)
        assert b.ha.confirm_offset == end == b.store.checkpoint.confirm_phy_offset
        await b.close()
        await b.open()
        assert b.store.confirm_offset_at_load == end <= b.end
        assert b.ha.doubt.current == LogDoubt()


def test_the_greatest_known_record_end_before_a_limit_is_found() -> None:
    ends = RecordEnds(100)
    for end in (100, 150, 150, 120, 300):
        ends.add(end)
    assert [ends.advance(limit) for limit in (50, 149, 150, 299, 200, 300, 900)] == [
        100,
        100,
        150,
        150,
        150,
        300,
        300,
    ]


def test_the_newest_record_end_is_known_however_many_there_are() -> None:
    ends = RecordEnds(0)
    for end in range(1, record_ends.KNOWN_ENDS_MAX + 100):
        ends.add(end)
    assert ends.advance(record_ends.KNOWN_ENDS_MAX - 1) == record_ends.KNOWN_ENDS_MAX - 1
    assert ends.advance(1 << 40) == record_ends.KNOWN_ENDS_MAX + 99
