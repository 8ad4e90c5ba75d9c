"""Creates the log's next file and reserves its next chunk of disk space before they are needed
(AllocateMappedFileService)."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from pathlib import Path

from epochmq_store.files.mapped_file import DiskFullError, MappedFile, SpaceNotReadyError, reserve
from epochmq_store.files.worker_thread import Job, WorkerBusyError, WorkerThread
from epochmq_store.log.commit_log import RESERVE_BYTES, CommitLog

log = logging.getLogger(__name__)

WAIT_S = 0.5


class BackgroundPreallocator:
    """Works for one commit log on a worker thread.

    The log requests files and space long before it needs them. If the disk hangs and one of them is not ready
    in time, the first caller waits up to WAIT_S for it; later callers get SpaceNotReadyError until it is
    ready. What fails on the worker (on a full disk) is retried by the caller, who gets the error. `late`
    counts how often something was not ready in time."""

    def __init__(self, commit_log: CommitLog, worker: WorkerThread, loop: asyncio.AbstractEventLoop) -> None:
        self._log = commit_log
        self._worker = worker
        self._loop = loop
        self._requested: Path | None = None  # the file that is being created, or ready
        self._ready: MappedFile | None = None
        self._reserving = False
        self._lock = threading.Lock()
        self._jobs = 0  # submitted and not finished
        self._idle = threading.Event()
        self._idle.set()
        self._has_waited = False
        self.late = 0
        commit_log.prepare_with(self)

    def stop(self) -> None:
        """Finishes the running job; the log creates its files itself from now on. A file created in advance
        stays, as in RocketMQ."""
        self._log.prepare_with(None)
        self._worker.run_and_wait(_nothing)
        if self._ready is not None:
            self._ready.close()
            self._ready = None

    def wait_reserved(self) -> None:
        """Waits for a running reservation, during which nothing else may reserve or write the same bytes.
        Raises SpaceNotReadyError if it takes too long."""
        if self._reserving:
            self._wait()

    def _wait(self) -> None:
        if self._idle.is_set():
            return
        if not self._has_waited:
            self._has_waited = True
            self.late += 1
            if self._idle.wait(WAIT_S):
                return
            log.warning(
                "the disk is slow: space requested for the commit log is not reserved after %s s", WAIT_S
            )
        raise SpaceNotReadyError(errno.EAGAIN, "space for the commit log is not reserved yet")

    def _submit(self, job: Job) -> bool:
        """Submits a job, for whose end `_wait` waits; False when the worker is busy."""

        def run() -> None:
            try:
                job()
            finally:
                self._count(-1)

        self._count(1)
        try:
            self._worker.submit(run)
        except WorkerBusyError:
            self._count(-1)
            return False
        self._has_waited = False
        return True

    def _count(self, change: int) -> None:
        with self._lock:
            self._jobs += change
            if self._jobs:
                self._idle.clear()
            else:
                self._idle.set()

    def discard_prepared(self) -> None:
        """Waits for running jobs and deletes a file created in advance, because the log is truncated and will
        need another one."""
        self._worker.run_and_wait(_nothing)
        self._delete_ready()

    def prepare_file(self, path: Path, start: int, size: int) -> None:
        """Creates a file with its first chunk reserved. A repeated request for the same file has no
        effect."""
        if self._requested == path:
            return

        def work() -> None:
            try:
                file = self._log.files.create_now(path, start, size)
                file.reserve(min(RESERVE_BYTES, size))
            except (OSError, DiskFullError):
                return
            self._ready = file

        if self._submit(work):
            self._requested = path

    def reserve(self, file: MappedFile, end: int) -> None:
        """Reserves up to `end`; one reservation runs at a time."""
        if self._reserving:
            return
        start = file.reserved

        def work() -> None:
            try:
                reserve(file.fd, start, end)
            except (OSError, DiskFullError):
                done = start
            else:
                done = end
            self._loop.call_soon_threadsafe(reserved, done)

        def reserved(done: int) -> None:
            self._reserving = False
            file.reserved = max(file.reserved, done)

        self._reserving = self._submit(work)

    def create_file(self, path: Path, start: int, size: int) -> MappedFile:
        """The file created in advance if it is this one, otherwise a new file."""
        if self._requested is not None and self._requested != path:
            # The disk of the expected directory has filled up since.
            self._wait()
        if self._requested == path:
            self._wait()
            self._requested = None
            if (file := self._ready) is not None and _is_in_place(file):
                self._ready = None
                return file
        self._delete_ready()
        return self._log.files.create_now(path, start, size)

    def _delete_ready(self) -> None:
        if self._ready is not None:
            self._ready.delete()
        self._ready = self._requested = None


def _is_in_place(file: MappedFile) -> bool:
    """Whether the file still has its name. A RocketMQ broker that is started on the directory by mistake
    deletes empty files after the log's end before it finds the directory locked."""
    try:
        return os.path.samestat(os.fstat(file.fd), file.path.stat())
    except FileNotFoundError:
        return False


def _nothing() -> None:
    """A job whose end shows that all jobs before it have ended."""
