"""Runs the jobs of worker threads on the one thread of the simulation, at a drawn time."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from epochmq_store.files.worker_thread import WorkerBusyError, WorkerThread
from tests.simulation.whole.hosts import Site
from tests.simulation.whole.loop import PROCESS

Job = Callable[[], None]

_Event = threading.Event


class _Worker:
    """Replaces the methods of `WorkerThread`."""

    def __init__(self, site: Site, name: str, capacity: int) -> None:
        self._site, self.name, self._capacity = site, name, capacity
        self._jobs: deque[Job] = deque()
        self._ends_at = 0.0
        process = PROCESS.get()
        if process is not None:
            process.kept.append(self)

    def submit(self, job: Job) -> None:
        if len(self._jobs) >= self._capacity:
            raise WorkerBusyError(self.name)
        self._jobs.append(job)
        loop = self._site.loop
        self._ends_at = max(loop.time() + self._site._job_delay_s(), self._ends_at + 1e-6)
        loop.call_at(self._ends_at, self.run_next)

    def run_next(self) -> None:
        if self._jobs:
            self._jobs.popleft()()

    def run_all(self) -> None:
        while self._jobs:
            self._jobs.popleft()()


class SimulatedEvent(_Event):
    """An event that jobs of worker threads set: a wait runs those of the waiting process, because there is
    no other thread."""

    def wait(self, timeout: float | None = None) -> bool:
        process = PROCESS.get()
        for worker in [] if process is None else process.kept:
            if self.is_set():
                break
            if isinstance(worker, _Worker) and worker.name == "store-preallocate":
                worker.run_all()
        return self.is_set()


def _pass_on(result: Future[Any], done: asyncio.Future[Any]) -> None:
    if result.cancelled() or done.cancelled():
        return
    if error := done.exception():
        result.set_exception(error)
    else:
        result.set_result(done.result())


def replace_threads(site: Site) -> None:
    """Replaces worker threads, and the events that wait for them, for the rest of this process."""

    def init(self: Any, name: str, capacity: int = 64) -> None:
        self._simulated = _Worker(site, name, capacity)

    def run_and_wait(self: Any, job: Job) -> None:
        self._simulated.run_all()
        job()

    def submit(self: Any, function: Any, /, *args: Any, **options: Any) -> Future[Any]:
        result: Future[Any] = Future()
        waiting = site.loop.run_in_executor(self, partial(function, *args, **options))
        waiting.add_done_callback(partial(_pass_on, result))
        return result

    ThreadPoolExecutor.submit = submit  # type: ignore[method-assign]
    WorkerThread.__init__ = init  # type: ignore[method-assign]
    WorkerThread.submit = lambda self, job: self._simulated.submit(job)  # type: ignore[method-assign,attr-defined]
    WorkerThread.run_and_wait = run_and_wait  # type: ignore[method-assign]
    WorkerThread.stop = lambda self: self._simulated.run_all()  # type: ignore[method-assign,attr-defined]
    threading.Event = SimulatedEvent  # type: ignore[misc]
