"""Collects lease renewals, so that one quorum round trip serves many of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from epochmq_controller.replica_groups.state_machine_types import HeartbeatReceived, HeartbeatsReceived

BATCH_INTERVAL_S = 0.01
"""The least time between two batches. Each batch needs one quorum round trip."""
READ_MARGIN_S = 0.001
"""How long before a batch is fed the renewals that have arrived meanwhile are read."""


class RenewalBatch:
    """The next batch of one controller. `feed` gets it. If a new batch has to wait, `on_wait` gets the time,
    on the loop's clock, until which no renewal need be read."""

    def __init__(self, feed: Callable[[HeartbeatsReceived], None], on_wait: Callable[[float], None]) -> None:
        self._feed = feed
        self._on_wait = on_wait
        self._heartbeats: list[HeartbeatReceived] = []
        self._fed_s = -math.inf

    def add(self, heartbeat: HeartbeatReceived) -> None:
        """Adds a renewal. The batch is fed in the next turn of the event loop, or `BATCH_INTERVAL_S` after
        the last one."""
        self._heartbeats.append(heartbeat)
        if len(self._heartbeats) == 1:
            loop = asyncio.get_running_loop()
            now_s, due_s = loop.time(), self._fed_s + BATCH_INTERVAL_S
            loop.call_at(max(now_s, due_s), self.feed_now)
            if due_s - READ_MARGIN_S > now_s:
                self._on_wait(due_s - READ_MARGIN_S)

    def feed_now(self) -> None:
        """Feeds the batch, if there is one. It must precede all later inputs of brokers."""
        batch, self._heartbeats = self._heartbeats, []
        if batch:
            self._fed_s = asyncio.get_running_loop().time()
            self._feed(HeartbeatsReceived(batch))
