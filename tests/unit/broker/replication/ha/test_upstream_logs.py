"""Tests more failures like `test_upstream`: truncated and empty logs, replicas that stop within a frame, and
a setting that RocketMQ's controller mode does not support.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from epochmq_broker.config.broker_config import from_properties
from epochmq_broker.replication.ha.service import HARole
from epochmq_protocol.transport.client import split_address
from epochmq_store.statuses import GetStatus, PutStatus
from tests.unit.broker.replication.ha.broker_node import HOST, BrokerNode, until
from tests.unit.store.support import Message, put

CONTROLLED = {"enableControllerMode": "true", "controllerAddr": f"{HOST}:9878"}
ALL_ACK = {"allAckInSyncStateSet": "true"}


class Dribble:
    """Relays bytes one by one, and may stop within a frame."""

    def __init__(self, target: str) -> None:
        self._target = split_address(target)
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.passing = asyncio.Event()
        self.passing.set()
        self.address = ""

    async def __aenter__(self) -> Dribble:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.address = f"{HOST}:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._target)
        self._writers += (back, writer)
        for one in (self._pass(reader, back), self._pass(there, writer)):
            self._tasks.add(asyncio.ensure_future(one))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            for byte in data:
                await self.passing.wait()
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()


async def test_5651_frames_may_come_byte_by_byte(tmp_path: Path) -> None:
    """RocketMQ took a half frame for a complete one."""
    a, b = await BrokerNode(tmp_path / "a", 1).open(), await BrokerNode(tmp_path / "b", 2).open()
    try:
        await a.lead(1)
        async with Dribble(a.address) as dribble:
            await b.follow(dribble.address, 1)
            for _ in range(3):
                a.put(2)
                await until(lambda: b.end == a.end, "the replica has all")
            assert b.log_bytes() == a.log_bytes()
            await until(lambda: a.ha.confirm_offset == a.end)
    finally:
        await b.close()
        await a.close()


async def test_5651_a_replica_that_stops_in_mid_frame_blocks_nobody(tmp_path: Path) -> None:
    """In RocketMQ sends waited for a peer with a dead connection. Here a replica stops within a frame and
    leaves the set: what the others have is acknowledged, and a change of roles does not wait for it."""
    a, b, c = [await BrokerNode(tmp_path / name, i, ALL_ACK).open() for i, name in enumerate("abc", 1)]
    try:
        await a.lead(1, {1, 2}, 1)
        await b.follow(a.address, 1)
        async with Dribble(a.address) as dribble:
            await c.follow(dribble.address, 1)
            a.put(5)
            await until(lambda: c.end > 0, "the third has a beginning")
            dribble.passing.clear()
            for _ in range(5):
                end = a.put(400, b"x" * 700)
                statuses: list[PutStatus] = []
                a.puts.when_safe(end, statuses.append)
                await until(lambda statuses=statuses: statuses, "acknowledged")  # type: ignore[misc]
                assert statuses == [PutStatus.PUT_OK]
            assert c.end < a.end
            async with asyncio.timeout(60):
                await a.ha.become_replica(None, 2, broker_id=1)
    finally:
        for one in (c, b, a):
            await one.close()


async def test_10666_a_truncation_survives_a_crash(tmp_path: Path) -> None:
    """RocketMQ truncated in memory only, and the tail was there again after a crash. Here the tail is zeros
    on the disk before the replica reports its end offset."""
    a, b = await BrokerNode(tmp_path / "a", 1).open(), await BrokerNode(tmp_path / "b", 2).open()
    await a.lead(1)
    a.put(20)
    await b.follow(a.address, 1)
    await until(lambda: b.end == a.end, "equal")
    await b.ha.become_replica(None, 1, broker_id=2)
    common = b.end
    a.put(150, b"written alone" * 40)  # the tail reaches into the next file
    alone = a.end
    await b.lead(2)
    b.put(1)
    await a.follow(b.address, 2)
    await until(lambda: a.end == b.end < alone, "the tail is cut")
    # What a kill at this moment leaves.
    shutil.copytree(tmp_path / "a", tmp_path / "crashed")
    assert b"written alone" not in b"".join(
        path.read_bytes() for path in (tmp_path / "crashed" / "commitlog").iterdir()
    )
    await a.close()
    again = await BrokerNode(tmp_path / "crashed", 1).open()
    try:
        assert again.end == b.end > common
        assert again.log_bytes() == b.log_bytes()
        assert again.offsets() == b.offsets()
        assert again.epochs == b.epochs == [(1, 0), (2, common)]
    finally:
        await again.close()
        await b.close()


async def test_9942_fail_overs_with_an_empty_log_leave_epochs_that_fit(tmp_path: Path) -> None:
    """The mastership moves to every broker before there is a byte. Afterwards all have the same epochs, and
    follow."""
    group = [await BrokerNode(tmp_path / name, i).open() for i, name in enumerate("abc", 1)]
    a, b, c = group
    try:
        for epoch, master in enumerate((a, b, c, b), 1):
            address = await master.lead(epoch)
            for one in group:
                if one is not master:
                    await one.follow(address, epoch)
            await until(
                lambda master=master: len(master.ha_status().ha_connection_info) == 2,  # type: ignore[misc]
                "both replicas are there",
            )
        assert [one.end for one in group] == [0, 0, 0]
        b.put(3)
        await until(lambda: a.end == c.end == b.end, "all follow")
        assert a.epochs == b.epochs == c.epochs == [(4, 0)]
        files = {(tmp_path / name / "epochFileCheckpoint").read_text() for name in "abc"}
        assert len(files) == 1
    finally:
        for one in group:
            await one.close()


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_5714_a_transient_store_pool_changes_nothing(tmp_path: Path, flush: str) -> None:
    """RocketMQ keeps messages in a pool of buffers first. A change of roles loses these, or writes them after
    the truncation. Here the setting is accepted and has no effect: a stored message is in the log's file."""
    pool = {"transientStorePoolEnable": "true", "transientStorePoolSize": "2", "flushDiskType": flush}
    loaded = from_properties({"brokerName": "group-a", **pool, **CONTROLLED})
    assert "transientStorePoolEnable" in loaded.without_effect
    a, b = [await BrokerNode(tmp_path / name, i, ALL_ACK | pool).open() for i, name in enumerate("ab", 1)]
    try:
        for epoch, (master, replica) in enumerate(((a, b), (b, a), (a, b)), 1):
            await master.lead(epoch, {1, 2}, epoch)
            await replica.follow(master.address, epoch)
            end = master.put(40)
            await until(lambda master=master, end=end: master.ha.confirm_offset == end)  # type: ignore[misc]
            # Nothing is kept back from what a crash would leave.
            with_crash = b"".join(
                path.read_bytes() for path in sorted((master.directory / "commitlog").iterdir())
            )
            assert with_crash[:end] == replica.log_bytes()
            assert put(replica.store, Message())[0] is PutStatus.SERVICE_NOT_AVAILABLE
        queue = a.store.lookup.existing_queue(Message().topic, 0)
        assert queue is not None
        assert queue.max_offset == 3 * len(range(0, 40, 3))
        # With sync flush readers wait for the disk, too.
        await until(lambda: a.store.get(queue, queue.max_offset - 1, 1).status is GetStatus.FOUND)
        assert (a.ha.role, b.ha.role) == (HARole.MASTER, HARole.REPLICA)
    finally:
        await b.close()
        await a.close()
