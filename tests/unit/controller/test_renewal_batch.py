"""Renewals are fed together, with a distance between two batches."""

from __future__ import annotations

import asyncio

from epochmq_controller.controller.renewal_batch import BATCH_INTERVAL_S, READ_MARGIN_S, RenewalBatch
from epochmq_controller.replica_groups.heartbeats import Heartbeat
from epochmq_controller.replica_groups.state_machine_types import HeartbeatReceived, HeartbeatsReceived

DEADLINE_S = 30


def renewal(number: int) -> HeartbeatReceived:
    beat = Heartbeat(0, 1000, None, "127.0.0.1:10911", 1, 0, 0, None)
    return HeartbeatReceived(("c", f"g{number}", 1), beat, None, 1, number)


async def test_the_first_renewal_waits_for_nothing_and_later_ones_for_the_interval() -> None:
    loop = asyncio.get_running_loop()
    fed: asyncio.Queue[tuple[float, list[object]]] = asyncio.Queue()
    waits: list[float] = []

    def feed(batch: HeartbeatsReceived) -> None:
        fed.put_nowait((loop.time(), [one.lease_token for one in batch.heartbeats]))

    batch = RenewalBatch(feed, waits.append)
    async with asyncio.timeout(DEADLINE_S):
        batch.add(renewal(1))
        batch.add(renewal(2))
        first_s, tokens = await fed.get()
        assert tokens == [1, 2]
        assert waits == []
        batch.add(renewal(3))
        batch.add(renewal(4))
        second_s, tokens = await fed.get()
    assert tokens == [3, 4]
    assert second_s - first_s >= BATCH_INTERVAL_S * 0.9
    assert all(abs(until_s - (first_s + BATCH_INTERVAL_S - READ_MARGIN_S)) < 0.002 for until_s in waits)
    assert len(waits) <= 1


async def test_a_batch_may_be_fed_early() -> None:
    fed: list[int] = []
    batch = RenewalBatch(lambda found: fed.append(len(found.heartbeats)), lambda _until_s: None)
    batch.feed_now()
    batch.add(renewal(1))
    batch.feed_now()
    batch.feed_now()
    assert fed == [1]
