"""Tests that a replica's log becomes and stays equal to its master's, wherever connections break and logs
diverge.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from epochmq_broker.replication.ha import client, client_connection, connection
from epochmq_broker.replication.ha.client import HAClientPhase
from epochmq_broker.replication.ha.service import HARole
from epochmq_broker.replication.ha.splicer import SocketToFileSplicer
from epochmq_protocol.epoch_entries import EpochEntry
from epochmq_protocol.errors import EpochMQError
from epochmq_store.statuses import GetStatus, PutStatus
from tests.unit.broker.replication.ha.broker_node import HOST, LOG_FILE, BrokerNode, until
from tests.unit.broker.replication.ha.following_nodes import ALL_ACK, nodes, same
from tests.unit.store.support import Message, put


async def test_a_replica_copies_the_log_while_it_grows(tmp_path: Path) -> None:
    async with nodes(tmp_path, 3) as (a, b, c):
        address = await a.lead(1)
        a.put(700)  # more than two files
        await b.follow(address, 1)
        await until(lambda: b.end > 0)
        a.put(100)
        await c.follow(address, 1)
        for _ in range(20):
            a.put(10)
            await asyncio.sleep(0)
        await same(a, b, c)
        assert a.epochs == b.epochs == c.epochs == [(1, 0)]
        await until(lambda: b.ha.confirm_offset == a.end)
        queue = b.store.queue("orders", 1)
        assert b.store.get(queue, 0, 5).body == a.store.get(a.store.queue("orders", 1), 0, 5).body
        assert put(b.store, Message())[0] is PutStatus.SERVICE_NOT_AVAILABLE
        await until(lambda: [one.slave_ack_offset for one in a.ha_status().ha_connection_info] == [a.end] * 2)
        assert b.ha_status().ha_client_runtime_info.master_addr == address
        assert [one.epoch for one in a.epoch_cache().epoch_list] == [1]


async def test_receiving_confirmed_bytes_comes_before_dispatching_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise dispatching would slow down an empty replica. It has the whole log while its queues hold
    little of it."""
    monkeypatch.setattr(client, "DISPATCH_BATCH_RECORDS", 1)
    monkeypatch.setattr(client, "CATCH_UP_DISPATCH_INTERVAL_S", 0.0)
    async with nodes(tmp_path, 2) as (a, b):
        address = await a.lead(1)
        a.put(700)
        await until(lambda: a.ha.confirm_offset == a.end)
        seldom: list[int] = []
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", slow(seldom, b))
        await b.follow(address, 1)
        await same(a, b)
        assert b.store.replica_log.undispatched_bytes == 0
        assert seldom
        assert all(end < a.end for end in seldom)


async def test_a_replica_reports_its_log_before_it_dispatches_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master answers sends once it has the report; dispatching the records first would delay them."""
    async with nodes(tmp_path, 2) as (a, b):
        await b.follow(await a.lead(1), 1)
        a.put(10)
        await same(a, b)
        undispatched: dict[int, int] = {}
        encode = client_connection.encode_ack

        def noted(offset: int) -> bytes:
            undispatched.setdefault(offset, b.store.replica_log.undispatched_bytes)
            return encode(offset)

        monkeypatch.setattr(client_connection, "encode_ack", noted)
        before = a.end
        a.put(1)
        await same(a, b)
        assert undispatched[a.end] == a.end - before


async def test_a_replica_that_is_far_behind_gets_large_blocks_past_its_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a file ends within a block, and while the log grows."""
    monkeypatch.setattr(connection, "FAR_BEHIND_BYTES", 16 * 1024)
    monkeypatch.setattr(client_connection, "LARGE_BYTES", 16 * 1024)
    moved: list[int] = []
    move = SocketToFileSplicer.splice

    def noted(passage: SocketToFileSplicer, target: int, at: int, most: int) -> int:
        moved.append(move(passage, target, at, most))
        return moved[-1]

    monkeypatch.setattr(SocketToFileSplicer, "splice", noted)
    async with nodes(tmp_path, 2) as (a, b):
        address = await a.lead(1)
        a.put(1500)
        await b.follow(address, 1)
        a.put(300)
        await same(a, b)
        assert sum(moved) > LOG_FILE
        assert a.epochs == b.epochs == [(1, 0)]
        assert a.offsets() == b.offsets()


def slow(seldom: list[int], node: BrokerNode) -> Callable[..., asyncio.TimerHandle]:
    """Replaces the loop's `call_later`, and notes the end of the log whenever dispatching is postponed."""
    call_later = asyncio.get_running_loop().call_later

    def noted(delay: float, callback: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        if getattr(callback, "__name__", "") == "_dispatch":
            seldom.append(node.end)
        return call_later(delay, callback, *args)

    return noted


async def test_a_connection_that_breaks_anywhere_loses_no_byte(tmp_path: Path) -> None:
    rng = random.Random(5)
    async with nodes(tmp_path, 2, {"haTransferBatchSize": "777"}) as (a, b):
        await a.lead(1)
        proxy = await Proxy.start(a.address)
        await b.follow(proxy.address, 1)
        for _ in range(25):
            a.put(rng.randrange(1, 40))
            proxy.cut_after(rng.randrange(0, 9000))
            await proxy.was_cut.wait()
        proxy.cut_after(None)
        await same(a, b)
        await proxy.stop()


class Proxy:
    """Relays bytes, and breaks each connection after a number of the master's bytes."""

    def __init__(self, target: str) -> None:
        self.target = target.split(":")
        self.was_cut = asyncio.Event()
        self.left: int | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        self.address = ""
        self.server: asyncio.Server | None = None

    @classmethod
    async def start(cls, target: str) -> Proxy:
        proxy = cls(target)
        proxy.server = await asyncio.start_server(proxy.serve, HOST, 0)
        proxy.address = f"{HOST}:{proxy.server.sockets[0].getsockname()[1]}"
        return proxy

    def cut_after(self, count: int | None) -> None:
        self.left = count
        self.was_cut.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self.target[0], int(self.target[1]))

        async def up() -> None:
            while data := await reader.read(65536):
                back.write(data)
            back.close()

        task = asyncio.create_task(up())
        self.tasks.add(task)
        with contextlib.suppress(ConnectionError):
            while data := await there.read(1000):
                if self.left is not None:
                    data = data[: self.left]
                    self.left -= len(data)
                writer.write(data)
                await writer.drain()
                if self.left == 0:
                    break
        task.cancel()
        writer.transport.abort()
        back.transport.abort()
        self.was_cut.set()

    async def stop(self) -> None:
        if self.server is not None:
            self.server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def test_what_an_isolated_master_wrote_alone_is_truncated_when_it_returns(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as (a, b):
        await a.lead(1)
        a.put(50)
        await b.follow(a.address, 1)
        await same(a, b)
        await b.follow(None, 1)
        common = b.end
        await until(lambda: not a.ha_status().ha_connection_info)
        a.put(80, b"alone" * 20)
        await b.lead(2)
        b.put(30, b"elected" * 10)
        await a.follow(b.address, 2)
        await same(b, a)
        assert a.epochs == b.epochs == [(1, 0), (2, common)]
        assert b"alone" not in a.log_bytes()


async def test_three_diverged_logs_become_equal(tmp_path: Path) -> None:
    async with nodes(tmp_path, 3) as (a, b, c):
        await a.lead(1)
        a.put(40)
        await b.follow(a.address, 1)
        await c.follow(a.address, 1)
        await same(a, b, c)
        await c.follow(None, 1)  # c is left behind in epoch 1
        a.put(20)
        await same(a, b)
        await b.lead(2)  # a has no byte of epoch 2
        b.put(25, b"second" * 9)
        a.put(33, b"alone-in-one" * 5)
        await c.lead(3)  # an unclean election: c knows nothing of epoch 2
        c.put(10, b"third" * 7)
        await a.follow(c.address, 3)
        await b.follow(c.address, 3)
        await same(c, a, b)
        assert a.epochs == b.epochs == c.epochs
        assert [epoch for epoch, _ in c.epochs] == [1, 3]


async def test_a_replica_several_epochs_behind_records_them_all(tmp_path: Path) -> None:
    async with nodes(tmp_path, 3) as (a, b, c):
        await a.lead(1)
        a.put(10)
        await c.follow(a.address, 1)
        await same(a, c)
        await c.follow(None, 1)
        for epoch in range(2, 6):
            leader, other = (b, a) if epoch % 2 == 0 else (a, b)
            if epoch == 2:
                await b.follow(a.address, 1)
                await same(a, b)
            await leader.lead(epoch)
            await other.follow(leader.address, epoch)
            leader.put(15)
            await same(leader, other)
        await c.follow(a.address, 5)
        await same(a, b, c)
        assert a.epochs == b.epochs == c.epochs
        assert [epoch for epoch, _ in c.epochs] == [1, 2, 3, 4, 5]


async def test_an_epoch_without_bytes_is_not_taken_for_a_common_one(tmp_path: Path) -> None:
    """After two elections over an empty log, what the first master wrote alone is not in the second master's
    log."""
    async with nodes(tmp_path, 2) as (a, b):
        await a.lead(1)
        await b.follow(a.address, 1)
        await until(lambda: b.epochs == [(1, 0)])
        await b.follow(None, 1)
        a.put(30, b"alone" * 20)
        await b.lead(2)
        await a.follow(b.address, 2)
        await until(lambda: a.end == 0)
        b.put(20)
        await same(b, a)
        assert a.epochs == b.epochs == [(2, 0)]


async def test_a_log_of_another_history_stays_unchanged_and_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with nodes(tmp_path, 2) as (a, b):
        await a.lead(1)
        a.put(10)
        await b.lead(2)
        b.put(20)
        await b.lead(3)
        b.put(20)
        end = b.end
        await a.lead(5)
        await b.follow(a.address, 5)
        await until(lambda: "no epoch of this log" in caplog.text)
        assert b.end == end
        assert not a.ha_status().ha_connection_info


async def test_a_replica_that_is_ahead_is_truncated_by_epochs(tmp_path: Path) -> None:
    """A master that lost its tail continues in a new epoch; the replica that still has the tail truncates
    it."""
    async with nodes(tmp_path, 2) as (a, b):
        await a.lead(1)
        a.put(30)
        kept = a.end
        a.put(30, b"lost" * 10)
        await b.follow(a.address, 1)
        await same(a, b)
        await a.follow(None, 1)
        a.store.truncate(kept)
        await a.lead(2)
        await b.follow(a.address, 2)
        await same(a, b)
        assert b.end == kept
        a.put(5)
        await same(a, b)
        assert a.epochs == b.epochs == [(1, 0), (2, kept)]


async def test_an_incomplete_record_is_truncated_before_the_replica_leads(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2, ALL_ACK) as (a, b):
        await a.lead(1)
        a.put(10)
        whole = a.end
        a.put(1)
        data = a.log_bytes()
        await b.follow(None, 1)
        b.store.replica_log.write(0, memoryview(data[:-7]))
        b.ha.epochs.append(EpochEntry(1, 0))
        assert b.offsets() == {}
        await b.lead(2)
        assert b.end == whole
        assert b.offsets() == {0: 4, 1: 3, 2: 3}  # nothing was confirmed, all of it counts (#7689)
        assert b.epochs == [(1, 0), (2, whole)]
        b.put(1)
        assert b.offsets()[0] == 5


async def test_a_log_that_ends_within_a_blank_record_goes_on_at_the_next_file(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as (a, b):
        await a.lead(1)
        size = a.store.config.mapped_file_size_commit_log
        while a.end < size:
            a.put(1, b"y" * 1000)
        first_file = a.log_bytes()[:size]
        blank = len(first_file.rstrip(b"\0"))
        await b.follow(None, 1)
        b.store.replica_log.write(0, memoryview(first_file[: blank + 20]))
        b.ha.epochs.append(EpochEntry(1, 0))
        await b.lead(2)
        assert b.end == size
        b.put(3)
        assert b.log_bytes()[:size] == first_file
        await a.follow(b.address, 2)
        await same(b, a)


async def test_the_same_master_under_a_new_epoch_rolls_nothing_back(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as (a, b):
        await a.lead(1)
        await b.follow(a.address, 1)
        end = a.put(20)
        await same(a, b)
        before = a.offsets()
        await a.lead(2, {1, 2}, 2)
        assert a.offsets() == before
        await until(lambda: b.epochs == [(1, 0), (2, end)], "the replica knows the epoch")
        a.put(20)
        await same(a, b)
        assert b.ha.client is not None
        assert b.ha.client.phase is HAClientPhase.FOLLOWING
        with pytest.raises(EpochMQError, match="is over"):
            await a.lead(1)


async def test_consumers_see_only_what_every_member_has(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2, ALL_ACK) as (a, b):
        await a.lead(1, {1, 2})
        a.put(9)
        queue = a.store.queue("orders", 0)
        assert a.store.get(queue, 0, 10).status is GetStatus.NO_MESSAGE_IN_QUEUE
        await b.follow(a.address, 1)
        await until(lambda: a.ha.confirm_offset == a.end)
        assert a.store.get(queue, 0, 10).count == 3
        await until(lambda: b.store.get(b.store.queue("orders", 0), 0, 10).count == 3)
        await b.follow(None, 1)
        await until(lambda: not a.ha_status().ha_connection_info)
        a.put(9)
        await asyncio.sleep(0.15)  # a round of the master's own
        assert a.store.get(queue, 0, 10).count == 3


async def test_a_replica_joins_the_set_by_proposal_and_leaves_with_its_connection(tmp_path: Path) -> None:
    async with nodes(tmp_path, 3, ALL_ACK) as (a, b, learner):
        proposals: list[frozenset[int]] = []

        def decide(proposal: object) -> None:
            proposals.append(proposal.members)  # type: ignore[attr-defined]
            a.ha.adopt(proposal.members, len(proposals) + 10)  # type: ignore[attr-defined]

        a.ha.on_proposals(decide)
        learner.live.update({"asyncLearner": "true"})
        await a.lead(1)
        a.put(10)
        await learner.follow(a.address, 1)
        await same(a, learner)
        assert proposals == []
        await b.follow(a.address, 1)
        await until(lambda: proposals == [frozenset({1, 2})])
        await b.follow(None, 1)
        await until(lambda: proposals == [frozenset({1, 2}), frozenset({1})])


async def test_a_replica_that_becomes_a_learner_while_it_connects_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order to drain a former master comes while it connects to its successor."""
    async with nodes(tmp_path, 2, ALL_ACK) as (a, learner):
        proposals: list[object] = []
        a.ha.on_proposals(proposals.append)

        async def ordered_meanwhile(_client: client.HAClient) -> None:
            learner.live.update({"asyncLearner": "true"})

        monkeypatch.setattr(client.HAClient, "_wait_until_flushed", ordered_meanwhile)
        await a.lead(1)
        a.put(10)
        await learner.follow(a.address, 1)
        await same(a, learner)
        sync = a.ha.sync_state
        assert sync is not None
        await until(lambda: 2 in sync.replicas and sync.replicas[2].ack_offset == a.end)
        assert sync.replicas[2].async_learner
        assert proposals == []


async def test_a_demoted_master_serves_nobody(tmp_path: Path) -> None:
    async with nodes(tmp_path, 3) as (a, b, c):
        await a.lead(1)
        a.put(10)
        await b.follow(a.address, 1)
        await c.follow(a.address, 1)
        await same(a, b, c)
        await b.lead(2)
        await a.follow(b.address, 2)
        assert (a.ha.role, b.ha.role) == (HARole.REPLICA, HARole.MASTER)
        follower = c.ha.client
        assert follower is not None
        await until(lambda: follower.phase is not HAClientPhase.FOLLOWING)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*a.address.split(":"))
        b.put(10)
        c.ha.follow(b.address)
        await same(b, a, c)


async def test_either_side_closes_a_silent_connection(tmp_path: Path) -> None:
    settings = {"haHousekeepingInterval": "300", "haSendHeartbeatInterval": "100"}
    async with nodes(tmp_path, 1, settings) as (a,):
        await a.lead(1)
        reader, writer = await asyncio.open_connection(*a.address.split(":"))
        async with asyncio.timeout(120):
            assert await reader.read() == b""
        writer.close()

        closed = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await reader.read(100):
                pass
            writer.close()
            closed.set()

        server = await asyncio.start_server(silent, HOST, 0)
        port = server.sockets[0].getsockname()[1]
        await a.follow(f"{HOST}:{port}", 2)
        async with asyncio.timeout(120):
            await closed.wait()
        server.close()


async def test_truncated_and_received_bytes_are_the_same_after_a_restart(tmp_path: Path) -> None:
    a, b = await BrokerNode(tmp_path / "a", 1).open(), await BrokerNode(tmp_path / "b", 2).open()
    await a.lead(1)
    a.put(40)
    await b.follow(a.address, 1)
    await same(a, b)
    await b.close()
    again = await BrokerNode(tmp_path / "b", 2).open()
    assert put(again.store, Message())[0] is PutStatus.SERVICE_NOT_AVAILABLE
    assert again.epochs == [(1, 0)]
    a.put(40)
    await again.follow(a.address, 1)
    await same(a, again)
    await a.close()
    await again.close()
