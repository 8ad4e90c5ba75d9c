"""Creates groups with real histories: stores and replication of ours, in one process, with elections, lags
and truncations chosen by a seed. Their directories are healthy by construction."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from epochmq_store.statuses import PutStatus
from tests.unit.broker.replication.ha.broker_node import BrokerNode, until
from tests.unit.store.support import Message, put

SETTINGS = {"maxHashSlotNum": "100", "maxIndexNum": "400", "maxMessageSize": "2048"}
NAME = "group-a"


TOPICS = ("orders", "payments")


def random_message(
    rng: random.Random, numbers: list[int], topics: Sequence[str] = TOPICS, queues: int = 2
) -> Message:
    """A random message with keys and tags, in one of a few queues."""
    numbers[0] += 1
    properties = {"UNIQ_KEY": f"7F0000010A1E18B4AAC2{rng.getrandbits(32):08X}{numbers[0]:04X}"}
    if rng.random() < 0.5:
        properties["KEYS"] = " ".join(f"order-{rng.randrange(50)}" for _ in range(rng.randrange(1, 3)))
    if rng.random() < 0.5:
        properties["TAGS"] = rng.choice(["new", "paid", "Ünicode"])
    return Message(
        topic=rng.choice(topics),
        queue_id=rng.randrange(queues),
        body=rng.randbytes(rng.choice([1, 40, 300, 700])),
        properties=properties,
    )


class SeededGroup:
    """A group with a history chosen by a seed."""

    def __init__(
        self,
        root: Path,
        seed: int,
        count: int = 3,
        *,
        settings: Mapping[str, str] | None = None,
        topics: Sequence[str] = TOPICS,
        queues: int = 2,
    ) -> None:
        self.topics, self.queues = topics, queues
        self.rng = random.Random(seed)
        self.numbers = [0]
        self.epoch = 0
        self.led_epochs: dict[int, int] = {}  # the last epoch of which each node became master
        self.nodes = [
            BrokerNode(root / f"r{number}", number, SETTINGS | dict(settings or {}))
            for number in range(1, count + 1)
        ]
        self.master: BrokerNode = self.nodes[0]

    async def elect(self, node: BrokerNode) -> None:
        """Makes the node master of the next epoch, and returns when all others are in sync."""
        self.epoch += 1
        self.master = node
        self.led_epochs[node.id] = self.epoch
        address = await node.lead(self.epoch, {one.id for one in self.nodes})
        for other in self.nodes:
            if other is not node:
                await other.follow(address, self.epoch)
        await self.wait_in_sync()

    async def wait_in_sync(self) -> None:
        """Waits until all logs and queues equal the master's. Comparing lengths alone is not enough: a log
        that is still to be truncated may by chance be as long as the master's, with as many messages in its
        queues."""
        await until(lambda: len({node.end for node in self.nodes}) == 1, "equal ends", 60)
        await until(lambda: all(node.offsets() == self.master.offsets() for node in self.nodes), "queues", 60)
        await until(lambda: len({node.log_bytes() for node in self.nodes}) == 1, "equal logs", 60)

    def write(self, node: BrokerNode, count: int) -> None:
        """Writes messages to the node."""
        for _ in range(count):
            status, *_ = put(node.store, random_message(self.rng, self.numbers, self.topics, self.queues))
            assert status is PutStatus.PUT_OK, status
        if node.puts.on_append is not None:
            node.puts.on_append()

    async def run_history(self) -> None:
        """Opens the nodes, runs through the history, and stops all nodes."""
        for node in self.nodes:
            await node.open()
        try:
            await self.elect(self.nodes[0])
            for _ in range(self.rng.randrange(2, 5)):
                self.write(self.master, self.rng.randrange(30, 120))
                if self.rng.random() < 0.3:
                    await self.lose_master()
                elif self.rng.random() < 0.8:
                    await self.wait_in_sync()
                    await self.elect(self.rng.choice(self.nodes))
            self.write(self.master, self.rng.randrange(5, 40))
            await self.wait_in_sync()
        finally:
            for node in self.nodes:
                await node.close()

    async def lose_master(self) -> None:
        """Fails over from a master with an unreplicated tail, which is truncated when the master returns."""
        await self.wait_in_sync()
        old = self.master
        others = [node for node in self.nodes if node is not old]
        for node in others:
            await node.follow(None, self.epoch)
        self.write(old, self.rng.randrange(1, 20))
        await old.follow(None, self.epoch)
        self.epoch += 1
        self.master = self.rng.choice(others)
        self.led_epochs[self.master.id] = self.epoch
        address = await self.master.lead(self.epoch, {one.id for one in others})
        self.write(self.master, self.rng.randrange(5, 30))
        for node in self.nodes:
            if node is not self.master:
                await node.follow(address, self.epoch)
        await self.wait_in_sync()


def write_consumer_offsets(root: Path, group: SeededGroup) -> None:
    """Writes consumer offsets somewhere inside the queues."""
    rng = random.Random(group.epoch)
    table: dict[str, dict[str, int]] = {}
    for (topic, queue_id), queue in group.master.store.queues.items():
        if queue.max_offset:
            table.setdefault(f"{topic}@readers", {})[str(queue_id)] = rng.randrange(queue.max_offset + 1)
    for node in group.nodes:
        folder = root / f"r{node.id}" / "config"
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"dataVersion": {}, "offsetTable": table})
        (folder / "consumerOffset.json").write_text(text)
        (root / f"r{node.id}" / "brokerIdentity").write_text(f"DefaultCluster#{NAME}#{node.id}")


def create_healthy_group(root: Path, seed: int) -> list[Path]:
    """The directories of a healthy group."""
    shutil.rmtree(root, ignore_errors=True)
    group = SeededGroup(root, seed)
    asyncio.run(group.run_history())
    write_consumer_offsets(root, group)
    return [root / f"r{node.id}" for node in group.nodes]
