"""Stores that run with their flushers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from epochmq_store.message_store import MessageStore
from tests.unit.store.support import open_store

DEADLINE_S = 60


@asynccontextmanager
async def started_store(directory: Path, **changes: Any) -> AsyncIterator[MessageStore]:
    """A started store."""
    store = open_store(directory, **changes)
    store.start()
    try:
        yield store
    finally:
        store.stop()


async def wait_until(holds: Callable[[], bool]) -> None:
    """Waits until the condition holds; fails after DEADLINE_S."""
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110  # no event tells what these tests wait for
            await asyncio.sleep(0.001)
