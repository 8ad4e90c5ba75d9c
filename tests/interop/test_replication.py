"""Replication between RocketMQ's brokers and EpochMQ's: a RocketMQ slave follows an EpochMQ master, an
EpochMQ replica a RocketMQ master, with epochs and without, and the logs are equal, byte for byte."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from epochmq_store.statuses import PutStatus
from tests.interop.java_cluster import NO_TIMER_MESSAGES, java_broker
from tests.interop.java_env import JavaProcess, compile_java
from tests.support.group_processes import Factory, our_broker
from tests.support.net import free_port, loopback
from tests.support.pair import Pair
from tests.support.process import wait_until
from tests.unit.broker.replication.ha.broker_node import BrokerNode, until
from tests.unit.store.support import Message, put

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("master", "replica"),
    [pytest.param(our_broker, java_broker, id="java-follows-ours"),
     pytest.param(java_broker, our_broker, id="ours-follows-java")],
)  # fmt: skip
def test_a_slave_follows_a_master_of_the_other_implementation(
    tmp_path: Path, master: Factory, replica: Factory
) -> None:
    settings = {**NO_TIMER_MESSAGES, "inSyncReplicas": 2, "slaveTimeout": 4000}
    with Pair(tmp_path, [master, replica], broker=settings, octet=62) as pair:
        wait_until(lambda: bool(pair.ha()["haConnectionInfo"]), what="a replica is connected")
        for number in range(250):
            pair.deliver(body=os.urandom(20_000), queue_id=number % 4)
        end = pair.wait_followed()
        assert pair.log_bytes(1, end) == pair.log_bytes(0, end)
        # The replica dies and comes back with a shorter log.
        pair.brokers[1].process.kill()
        codes = {pair.send(body=os.urandom(20_000)).code for _ in range(2)}
        assert codes == {12}
        pair.brokers[1].start()
        end = pair.wait_followed()
        assert pair.log_bytes(1, end) == pair.log_bytes(0, end)
        pair.deliver()
        # The master stops for a while.
        pair.master.process.signal(signal.SIGSTOP)
        pair.master.process.signal(signal.SIGCONT)
        pair.deliver()
        end = pair.wait_followed()
        assert pair.log_bytes(1, end) == pair.log_bytes(0, end)


# With epochs: RocketMQ's AutoSwitchHAService, which gets its roles from the test instead of a controller.

LOG_FILE = 1 << 20
SETTINGS = {
    "mappedFileSizeCommitLog": str(LOG_FILE),
    "allAckInSyncStateSet": "true",
    "haSendHeartbeatInterval": "500",
}
"""The settings of EpochMQ's side, the same as those of `HAPeer`."""


class HAPeer:
    """A Java replica or master (`HAPeer.java`)."""

    def __init__(self, directory: Path, broker_id: int) -> None:
        host = loopback(63)
        ha, self.port = free_port(host), free_port(host)
        self.host, self.address = host, f"{host}:{ha}"
        self.store = directory / "store"
        self.process = JavaProcess(
            "HAPeer",
            [str(self.store), str(LOG_FILE), str(broker_id), host, str(ha), host, str(self.port)],
            home=directory,
            classes=compile_java("HAPeer.java"),
            heap_mb=256,
        )

    async def tell(self, line: str) -> str:
        """Sends one command and reads its response."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(line.encode() + b"\n")
            return (await reader.readline()).decode().strip()
        finally:
            writer.close()

    async def start(self) -> None:
        self.process.start()
        async with asyncio.timeout(180):
            while True:
                assert self.process.alive, self.process.output()
                try:
                    await self.tell("state")
                    return
                except OSError:
                    await asyncio.sleep(0.1)

    async def state(self) -> tuple[int, int, int, list[tuple[int, int]]]:
        """Max offset of the log, confirm offset, max offset of the queue, epochs."""
        end, confirmed, queue, _, *epochs = (await self.tell("state")).split(" ")
        pairs = [tuple(map(int, one.split("-"))) for one in "".join(epochs).split(",") if one]
        return int(end), int(confirmed), int(queue), [(epoch, start) for epoch, start in pairs]

    def log_bytes(self, end: int) -> bytes:
        """The bytes of the log up to `end`."""
        files = sorted((self.store / "commitlog").iterdir())
        return b"".join(path.read_bytes() for path in files)[:end]


async def agree(ours: BrokerNode, java: HAPeer) -> None:
    """Waits until both logs have the same end, and compares every byte. A RocketMQ replica may wait for a
    minute and a half for its own dispatcher before it truncates its log."""
    theirs = mine = None
    try:
        async with asyncio.timeout(240):
            while theirs is None or theirs != mine:
                await asyncio.sleep(0.05)
                theirs = await java.state()
                queue = ours.store.queue("orders", 0).max_offset
                mine = (ours.end, ours.ha.confirm_offset, queue, ours.epochs)
    except TimeoutError as error:
        error.add_note(f"end, confirmed, end of the queue, epochs: RocketMQ's {theirs}, ours {mine}")
        raise
    assert ours.ha.confirm_offset == ours.end
    assert java.log_bytes(ours.end) == ours.log_bytes()
    ours_file = (ours.directory / "epochFileCheckpoint").read_bytes()
    assert (java.store / "epochFileCheckpoint").read_bytes() == ours_file


def fill(ours: BrokerNode, count: int) -> None:
    """Puts messages into the queue that the Java side reads."""
    for _ in range(count):
        assert put(ours.store, Message(body=os.urandom(900)))[0] is PutStatus.PUT_OK
    if ours.puts.on_append is not None:
        ours.puts.on_append()


async def test_masters_take_turns_and_bytes_written_alone_are_truncated(tmp_path: Path) -> None:
    java = HAPeer(tmp_path / "java", 2)
    ours = await BrokerNode(tmp_path / "ours", 1, SETTINGS).open()
    try:
        await java.start()
        # EpochMQ's is the master, RocketMQ's follows, over several files.
        await ours.lead(1)
        fill(ours, 2500)
        assert await java.tell(f"slave {ours.address} 1") == "true"
        await agree(ours, java)
        fill(ours, 100)
        await agree(ours, java)
        # EpochMQ's writes alone, RocketMQ's is elected.
        assert await java.tell("slave 127.0.0.1:9 1") == "true"
        await until(lambda: not ours.ha_status().ha_connection_info)
        fill(ours, 70)
        assert await java.tell("master 2") == "true"
        assert await java.tell("write 300 700") == "ok"
        await ours.follow(java.address, 2)
        await agree(ours, java)
        assert [epoch for epoch, _ in ours.epochs] == [1, 2]
        # RocketMQ's writes alone, EpochMQ's is elected.
        await ours.follow(None, 2)
        assert await java.tell("write 90 800") == "ok"
        await ours.lead(3)
        fill(ours, 200)
        assert await java.tell(f"slave {ours.address} 3") == "true"
        await agree(ours, java)
        assert [epoch for epoch, _ in ours.epochs] == [1, 2, 3]
        # The same master under another epoch.
        await ours.lead(4)
        fill(ours, 50)
        await agree(ours, java)
        assert [epoch for epoch, _ in ours.epochs] == [1, 2, 3, 4]
    except BaseException as error:
        error.add_note(java.process.output(6000))
        raise
    finally:
        java.process.kill()
        await ours.close()
