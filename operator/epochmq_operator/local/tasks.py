"""Runs tasks that end with the block that owns them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


@contextlib.asynccontextmanager
async def owned_task(awaitable: Awaitable[T]) -> AsyncIterator[asyncio.Future[T]]:
    """Runs the awaitable as a task; cancels it and waits for its end when the block is left."""
    task = asyncio.ensure_future(awaitable)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


async def wait_first(*futures: asyncio.Future[Any], timeout_s: float | None = None) -> None:
    """Waits until one of the futures is done, or until the timeout."""
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
