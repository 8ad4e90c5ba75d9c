"""An event loop on a thread of its own, for what must not wait until the main one has time."""

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
    """The thread. `started` and `stop` are for `aside`."""

    def __init__(self, name: str) -> None:
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._turn()), name=name, daemon=True)

    async def _turn(self) -> None:
        self._started.set_result(asyncio.get_running_loop())
        await self._stop.wait()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work comes to, done there; it is cancelled there when the caller is cancelled here."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._started.result()))

    def start(self) -> None:
        """Returns when work is taken."""
        self._thread.start()
        self._started.result()

    def stop(self) -> None:
        """Cancels what is left."""
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            self._started.result().call_soon_threadsafe(self._stop.set)
        self._thread.join(ENDS_WITHIN_S)


@contextlib.asynccontextmanager
async def event_loop_thread(name: str) -> AsyncIterator[EventLoopThread]:
    """One for the length of a block."""
    made = EventLoopThread(name)
    made.start()
    try:
        yield made
    finally:
        made.stop()
