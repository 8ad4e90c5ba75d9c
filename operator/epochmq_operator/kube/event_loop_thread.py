"""Runs an event loop on a thread of its own, for work that must not wait for the main event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

ENDS_WITHIN_S = 5.0

T = TypeVar("T")


class EventLoopThread:
    """An event loop on a thread. Use it through `event_loop_thread`."""

    def __init__(self, name: str) -> None:
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._turn()), name=name, daemon=True)

    async def _turn(self) -> None:
        self._started.set_result(asyncio.get_running_loop())
        await self._stop.wait()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the thread's event loop and returns its result. Cancelling the caller cancels
        the coroutine."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._started.result()))

    def start(self) -> None:
        """Starts the thread; returns when its event loop runs."""
        self._thread.start()
        self._started.result()

    def stop(self) -> None:
        """Stops the event loop, which cancels its tasks."""
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            self._started.result().call_soon_threadsafe(self._stop.set)
        self._thread.join(ENDS_WITHIN_S)


@contextlib.asynccontextmanager
async def event_loop_thread(name: str) -> AsyncIterator[EventLoopThread]:
    """A running event loop thread for the length of a block."""
    made = EventLoopThread(name)
    made.start()
    try:
        yield made
    finally:
        made.stop()
