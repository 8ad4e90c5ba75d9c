"""Runs blocking jobs (fsync, unlink, the creation of files) on a thread, outside the event loop."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Job = Callable[[], None]


class WorkerBusyError(Exception):
    """The worker's queue is full; the caller retries at its next tick."""


class WorkerThread:
    """One daemon thread that runs jobs in order. A job must not raise; it reports failures through a callback
    of its own."""

    def __init__(self, name: str, capacity: int = 64) -> None:
        self._jobs: queue.Queue[Job | None] = queue.Queue(capacity)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queues a job. Raises WorkerBusyError when `capacity` jobs are waiting."""
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            raise WorkerBusyError(self._thread.name) from None

    def run_and_wait(self, job: Job) -> None:
        """Runs a job on the worker after all queued ones and waits for its end; for shut-down and truncation.
        Raises the error of the job."""
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
        """Runs the queued jobs and ends the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
