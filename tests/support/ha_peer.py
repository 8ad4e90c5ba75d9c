"""The other end of a connection of RocketMQ's HA service."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from epochmq_store.statuses import PutStatus
from tests.interop.java_env import JavaProcess, compile_java
from tests.support.net import free_port, loopback
from tests.unit.broker.replication.ha.broker_node import BrokerNode
from tests.unit.store.support import Message, put

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
