"""A thread for work that blocks and releases the interpreter: fsync, unlink, making files."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Job = Callable[[], None]


class WorkerBusyError(Exception):
    """The worker's queue is full; the caller tries again at its next tick."""


class WorkerThread:
    """One daemon thread that runs jobs in order. A job must not raise: what can fail reports through its
    own callback."""

    def __init__(self, name: str, capacity: int = 64) -> None:
        self._jobs: queue.Queue[Job | None] = queue.Queue(capacity)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queues a job. Raises WorkerBusyError when `capacity` jobs wait already."""
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            raise WorkerBusyError(self._thread.name) from None

    def run(self, job: Job) -> None:
        """Runs a job on the worker and waits for it; for shut-down paths only. Raises what the job raised."""
        done = threading.Event()
        failure: list[BaseException] = []

        def watched() -> None:
            try:
                job()
            except BaseException as error:
                failure.append(error)
            finally:
                done.set()

        self._jobs.put(watched)
        done.wait()
        if failure:
            raise failure[0]

    def stop(self) -> None:
        """Finishes what is queued and ends the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
