"""Samples rates and lags for as long as the console runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from epochmq.console.rate_samples import SampleRing, SeriesName
from epochmq.exits import UsageError
from epochmq_protocol.errors import EpochMQError

PERIOD_S = 5.0


async def sample_forever(
    read: Callable[[], Awaitable[Mapping[SeriesName, float]]], ring: SampleRing, period_s: float = PERIOD_S
) -> None:
    """Adds a sample every period, until it is cancelled. Where the cluster does not respond, the sample is a
    gap."""
    while True:
        try:
            values = await read()
        except (UsageError, EpochMQError, OSError):
            values = {}
        ring.add(time.monotonic(), values)
        await asyncio.sleep(period_s)
