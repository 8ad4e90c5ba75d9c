"""Runs jobs that wait for the disk on a worker thread, one after another, beside an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class DiskWorker:
    """One worker thread. `on_failure` is called on the event loop if a job fails that has no handler of its
    own."""

    def __init__(self, name: str, on_failure: Callable[[Exception], None]) -> None:
        self._pool = ThreadPoolExecutor(1, name)
        self._on_failure = on_failure
        self._jobs: set[asyncio.Future[Any]] = set()

    def run(
        self,
        job: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        """Runs a job after the earlier ones, and then `done` with its result, or `failed`, on the event loop.
        The callers bound the number of jobs: each has at most one at a time for one purpose."""
        future = asyncio.get_running_loop().run_in_executor(self._pool, job)
        self._jobs.add(future)
        future.add_done_callback(partial(self._ended, done, failed or self._on_failure))

    def _ended(
        self, done: Callable[[T], None], failed: Callable[[Exception], None], future: asyncio.Future[T]
    ) -> None:
        self._jobs.discard(future)
        error = future.exception()
        if error is None:
            done(future.result())
        else:
            failed(error if isinstance(error, Exception) else OSError(str(error)))

    async def wait_idle(self) -> None:
        """Waits until no job runs or waits, including the jobs that callbacks add meanwhile."""
        while self._jobs:
            await asyncio.wait(self._jobs)
            await asyncio.sleep(0)  # lets callbacks add jobs

    def close(self) -> None:
        """Waits for the jobs that were submitted, and ends the thread. Blocks."""
        self._pool.shutdown()
