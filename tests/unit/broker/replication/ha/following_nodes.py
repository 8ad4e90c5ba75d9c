"""A master and replicas that follow it, in one process."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from tests.unit.broker.replication.ha.broker_node import BrokerNode, until

ALL_ACK = {"allAckInSyncStateSet": "true"}


@contextlib.asynccontextmanager
async def nodes(
    directory: Path, count: int, settings: dict[str, str] | None = None
) -> AsyncIterator[list[BrokerNode]]:
    made = [BrokerNode(directory / str(i), i, settings) for i in range(1, count + 1)]
    for node in made:
        await node.open()
    try:
        yield made
    finally:
        for node in made:
            await node.close()


async def same(*group: BrokerNode) -> None:
    """Waits until all logs and queues are equal to the first node's, byte by byte."""
    first = group[0]
    await until(lambda: all(node.end == first.end for node in group), "equal ends")
    await until(lambda: all(node.offsets() == first.offsets() for node in group), "equal queues")
    for node in group:
        assert node.log_bytes() == first.log_bytes()
