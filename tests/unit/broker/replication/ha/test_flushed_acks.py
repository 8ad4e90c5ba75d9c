"""Tests acknowledgements with SYNC_FLUSH: a replica acknowledges what it has flushed, and confirmed bytes are
on the disks of all members. A replica whose disk has failed acknowledges nothing and leaves the SyncStateSet.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from epochmq_broker.replication.ha import log_doubt
from epochmq_broker.replication.ha.client import HAClientPhase
from epochmq_store.files.mapped_file import MappedFile
from epochmq_store.statuses import PutStatus
from tests.unit.broker.replication.ha.broker_node import BrokerNode, until
from tests.unit.broker.replication.ha.following_nodes import nodes, same

SAFE = {"allAckInSyncStateSet": "true", "flushDiskType": "SYNC_FLUSH", "minInSyncReplicas": "2"}


class Disks:
    """Holds, fails or counts the flushes of commit logs, by the directory of the store."""

    def __init__(self) -> None:
        self.held: set[Path] = set()
        self.failing: set[Path] = set()
        self.flushes: dict[Path, int] = {}
        self.open = threading.Event()
        self.open.set()

    def hold(self, node: BrokerNode) -> None:
        self.held.add(node.directory)
        self.open.clear()

    def release(self) -> None:
        self.held.clear()
        self.open.set()


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disks]:
    made = Disks()
    flush = MappedFile.flush

    def controlled(file: MappedFile) -> None:
        directory = file.path.parent.parent
        if file.path.parent.name == "commitlog":
            made.flushes[directory] = made.flushes.get(directory, 0) + 1
            if directory in made.held:
                made.open.wait(60)
            if directory in made.failing:
                raise OSError(5, "the disk failed")
        flush(file)

    monkeypatch.setattr(MappedFile, "flush", controlled)
    yield made
    made.release()


@contextmanager
def responses(node: BrokerNode, end: int) -> Iterator[list[PutStatus]]:
    """The statuses that the sender of a message which ends at this offset gets."""
    statuses: list[PutStatus] = []
    node.puts.when_safe(end, statuses.append)
    yield statuses


async def both(a: BrokerNode, b: BrokerNode) -> str:
    """Broker 1 is master of epoch 1, and broker 2 is in its SyncStateSet."""
    address = await a.lead(1, {1, 2})
    await b.follow(address, 1)
    await until(lambda: a.ha.sync_state is not None and 2 in a.ha.sync_state.replicas)
    return address


def step_of(node: BrokerNode) -> HAClientPhase | None:
    return node.ha.client.phase if node.ha.client is not None else None


async def test_a_sync_flush_replica_acknowledges_only_what_it_has_flushed(
    tmp_path: Path, disks: Disks
) -> None:
    async with nodes(tmp_path, 2, SAFE) as (a, b):
        await both(a, b)
        before = a.put(10)
        await until(lambda: a.ha.confirm_offset == before, "what is flushed on both is confirmed")
        disks.hold(b)
        end = a.put(10)
        with responses(a, end) as statuses:
            await until(lambda: b.end == end and a.store.flushed_where == end, "received, not flushed")
            for _ in range(3):
                # What comes later has come: an acknowledgement would have come, too.
                end = a.put(1)
                await until(lambda: b.end == a.end)
            sync = a.ha.sync_state
            assert sync is not None
            assert sync.replicas[2].ack_offset == before
            assert a.ha.confirm_offset == before
            assert statuses == []
            disks.release()
            await until(lambda: statuses == [PutStatus.PUT_OK])
        await until(lambda: a.ha.confirm_offset == end == b.ha.confirm_offset)


async def test_one_flush_covers_everything_received_before_it(tmp_path: Path, disks: Disks) -> None:
    async with nodes(tmp_path, 2, SAFE) as (a, b):
        await both(a, b)
        disks.hold(b)
        before = disks.flushes.get(b.directory, 0)
        end = a.put(1)
        await until(lambda: disks.flushes.get(b.directory, 0) > before, "a flush is under way")
        for _ in range(50):
            end = a.put(1)
            await asyncio.sleep(0)
        await until(lambda: b.end == end, "everything is received while it is")
        under_way = disks.flushes[b.directory]
        disks.release()
        await until(lambda: a.ha.confirm_offset == end)
        assert disks.flushes[b.directory] - under_way <= 3, "one more, of two files at most"


async def test_an_async_flush_replica_acknowledges_what_it_has_received(tmp_path: Path, disks: Disks) -> None:
    async with nodes(tmp_path, 2, SAFE | {"flushDiskType": "ASYNC_FLUSH"}) as (a, b):
        await both(a, b)
        disks.hold(b)
        end = a.put(10)
        await until(lambda: a.ha.confirm_offset == end)
        disks.release()


async def test_confirmed_bytes_are_flushed_on_the_master(tmp_path: Path, disks: Disks) -> None:
    """Otherwise a power loss could take confirmed bytes from the master, which its replicas have flushed."""
    async with nodes(tmp_path, 2, SAFE) as (a, b):
        await both(a, b)
        before = a.put(9)
        await until(lambda: a.ha.confirm_offset == before)
        disks.hold(a)
        end = a.put(9)
        sync = a.ha.sync_state
        assert sync is not None
        await until(lambda: sync.replicas[2].ack_offset == end, "the replica has it on its disk")
        assert a.ha.confirm_offset == before
        queue = a.store.queue("orders", 0)
        assert a.store.max_offset(queue) == 3, "consumers do not see it"
        disks.release()
        await until(lambda: a.ha.confirm_offset == end)
        assert a.store.max_offset(queue) == 6
        # Alone in the set, too, if it may acknowledge alone.
        a.live.update({"minInSyncReplicas": "1"})
        assert a.ha.adopt({1}, 99)
        disks.hold(a)
        later = a.put(9)
        a.ha.answer_replicated()
        assert a.ha.confirm_offset == end < later
        disks.release()
        await until(lambda: a.ha.confirm_offset == later)


async def test_bytes_of_a_former_master_are_flushed_before_they_are_reported(
    tmp_path: Path, disks: Disks, caplog: pytest.LogCaptureFixture
) -> None:
    async with nodes(tmp_path, 2, SAFE) as (a, b):
        await both(a, b)
        disks.hold(b)
        end = a.put(10)
        await until(lambda: b.end == end)
        assert b.ha.client is not None
        b.ha.client.reconnect()
        await until(lambda: step_of(b) is not HAClientPhase.FOLLOWING)
        assert a.ha.confirm_offset < end
        disks.release()
        await same(a, b)
        await until(lambda: a.ha.confirm_offset == end)
        rejected = "but this replica's log ends at"
        assert rejected not in caplog.text, "the master sends what the replica lacks, and nothing twice"


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_a_replica_whose_disk_failed_stops_acknowledging_and_leaves_the_set(
    tmp_path: Path, disks: Disks, flush: str
) -> None:
    async with nodes(tmp_path, 2, SAFE | {"flushDiskType": flush, "flushIntervalCommitLog": "10"}) as (a, b):
        await both(a, b)
        before = a.put(10)
        await until(lambda: a.ha.confirm_offset == before)
        wanted: list[frozenset[int]] = []
        a.ha.on_proposals(lambda proposal: wanted.append(proposal.members))
        disks.failing.add(b.directory)
        a.put(40)
        await until(lambda: wanted == [frozenset({1})], "the master wants it out of the set", 5)
        await until(lambda: step_of(b) is HAClientPhase.FAILED)
        assert a.ha.sync_state is not None
        assert 2 not in a.ha.sync_state.replicas
        # It does not come back, whatever it is told.
        b.ha.follow("127.0.0.1:1")
        b.ha.follow(a.address)
        for _ in range(10):
            await asyncio.sleep(0)
        assert step_of(b) is HAClientPhase.FAILED
        disks.failing.clear()


def test_the_end_offset_that_a_replica_reports() -> None:
    assert log_doubt.reported_end(sync_flush=True, flushed=90, end=98) == 90
    assert log_doubt.reported_end(sync_flush=True, flushed=98, end=90) == 90, "cut meanwhile"
    assert log_doubt.reported_end(sync_flush=False, flushed=90, end=98) == 98
