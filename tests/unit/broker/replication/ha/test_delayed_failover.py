"""Tests that a failover loses no acknowledged delayed message: the delivered copy is on the replicas
first."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq_broker.services import delay_service
from epochmq_broker.services.cold_reads import ColdReadPool
from epochmq_broker.services.delay_service import DelayService
from epochmq_broker.services.service_context import ServiceContext
from epochmq_broker.tables.broker_tables import BrokerTables
from epochmq_broker.writing.inner_message import InnerMessage
from epochmq_broker.writing.quarantine import Quarantine
from epochmq_store.state_files.state_file_io import write_state_file
from epochmq_store.statuses import PutStatus
from tests.unit.broker.replication.ha.broker_node import BrokerNode, until
from tests.unit.broker.replication.ha.following_nodes import nodes, same

SETTINGS = {"allAckInSyncStateSet": "true", "messageDelayLevel": "1s 2h"}
HOST = b"\x7f\0\0\x01\0\0\x2a\x9f"


def delays_of(node: BrokerNode) -> DelayService:
    tables = BrokerTables(node.live.current, lambda: 0)
    context = ServiceContext(
        live=node.live,
        store=node.store,
        tables=tables,
        cold_reads=ColdReadPool(),
        store_host=HOST,
        write_file=write_state_file,
        quarantine=Quarantine(
            node.live, writer=node.puts, create_topic=tables.topics.create_in_send_back, store_host=HOST
        ),
    )
    return DelayService(context, sink_of_level=lambda _level: node.puts)


def delay(node: BrokerNode, body: bytes = b"later") -> int:
    """Stores a delayed message; returns the end offset of the log."""
    stored = node.puts.put(
        InnerMessage(
            topic="orders", queue_id=0, body=body, properties={"DELAY": "1"}, born_timestamp=1, born_host=HOST
        )
    )
    assert stored.status is PutStatus.PUT_OK
    if node.puts.on_append is not None:
        node.puts.on_append()
    return stored.end


def delivered(node: BrokerNode) -> int:
    queue = node.store.lookup.existing_queue("orders", 0)
    return 0 if queue is None else queue.max_offset


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delay_service, "FIRST_ROUND_S", 0.0)


async def test_a_delivered_message_whose_copy_the_new_master_lacks_is_delivered_again(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2, SETTINGS) as (a, b):
        address = await a.lead(1, {1, 2})
        await b.follow(address, 1)
        end = delay(a)
        await until(lambda: a.ha.confirm_offset == end, "the delayed message is acknowledged")
        await same(a, b)
        # The replica hears nothing more; it is in the SyncStateSet as long as it is not missed.
        await b.follow(None, 1)
        delays, copied = delays_of(a), delays_of(b)
        delays.start()
        await until(lambda: delivered(a) == 1)
        delays.persist()
        copied.replace_all(delays.offsets, delays.data_version)
        assert copied.offsets == {}, "what replicas may copy does not run ahead of what they have"
        delays.stop()
        await a.close()
        await b.lead(2)
        copied.start()
        await until(lambda: delivered(b) == 1, "the acknowledged message arrives")
        copied.stop()
        await a.open()


async def test_the_offset_moves_when_every_member_has_the_copy(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2, SETTINGS) as (a, b):
        address = await a.lead(1, {1, 2})
        await b.follow(address, 1)
        delay(a)
        delays = delays_of(a)
        delays.start()
        await until(lambda: delivered(a) == 1)
        await until(lambda: delays.offsets == {1: 1})
        assert b.end == a.end
        delays.stop()
        assert delays.offsets == {1: 1}


class Members:
    """Replicas that have the log up to the offset that the test sets."""

    may_reject = sends_wait = False

    def __init__(self) -> None:
        self.end = self.acknowledged = 0

    def rejection(self) -> PutStatus | None:
        return None

    def replicated_end(self, *, acknowledged: bool = False) -> int:
        return self.acknowledged if acknowledged else self.end

    def when_replicated(self, end: int, done: object) -> None:
        raise AssertionError("no request waits")


async def test_deliveries_do_not_wait_for_replicas_and_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delay_service, "UNSAFE_MAX", 3)
    monkeypatch.setattr(delay_service, "ROUND_MAX", 2)
    async with nodes(tmp_path, 1, SETTINGS) as (a,):
        await a.lead(1)
        members = Members()
        a.puts.set_replica_acks(members)
        for _ in range(20):
            delay(a)
        delays = delays_of(a)
        delays.start()
        await until(lambda: delivered(a) == 6, "three turns of two")
        assert delays.offsets == {}
        members.end = a.end
        await until(lambda: delays.offsets == {1: 6})
        await until(lambda: delivered(a) == 12)
        # Where a message is acknowledged before a member has it, that member holds nobody up.
        members.acknowledged = 1 << 40
        await until(lambda: delivered(a) == 20)
        assert 12 <= delays.offsets[1] < 20
        # What was not safe is delivered again.
        offset = delays.offsets[1]
        delays.stop()
        again = delays_of(a)
        again.load()
        assert again.offsets == {1: offset}


async def test_with_sync_flush_the_offset_waits_for_the_disk(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1, SETTINGS | {"flushDiskType": "SYNC_FLUSH"}) as (a,):
        await a.lead(1)
        end = delay(a)
        await until(lambda: a.store.flushed_where == end)
        assert a.puts.safe_end() == end
        a.store.on_arrival.hold(True)  # without a flush for each held arrival
        later = delay(a)
        assert a.puts.safe_end() == end < later
