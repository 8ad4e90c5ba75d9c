"""Makes the log's next file, and reserves its next stretch, before they are needed
(AllocateMappedFileService)."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from pathlib import Path

from epochmq_broker.store.commit_log import RESERVE_BYTES, CommitLog
from epochmq_broker.store.mapped_file import DiskFullError, MappedFile, SpaceNotReadyError, reserve
from epochmq_broker.store.worker_thread import Job, WorkerBusyError, WorkerThread

log = logging.getLogger(__name__)

WAIT_S = 0.5


class BackgroundPreallocator:
    """Works ahead of one commit log on a worker thread. Files and space are asked for long before they are
    needed. What is not ready all the same, because the disk hangs, is waited for once, WAIT_S at most; from
    then on the caller gets SpaceNotReadyError until it is there. What cannot be made ahead (a full disk) is
    tried again, and fails, in the caller. `late` counts how often something was not ready."""

    def __init__(self, commit_log: CommitLog, worker: WorkerThread, loop: asyncio.AbstractEventLoop) -> None:
        self._log = commit_log
        self._worker = worker
        self._loop = loop
        self._asked: Path | None = None  # the file being made, or ready
        self._ready: MappedFile | None = None
        self._reserving = False
        self._lock = threading.Lock()
        self._jobs = 0  # asked for and not done
        self._idle = threading.Event()
        self._idle.set()
        self._has_waited = False
        self.late = 0
        commit_log.files.make = self._make
        commit_log.preallocator = self

    def stop(self) -> None:
        """Finishes what runs and lets the log do its own work again. A file made ahead stays, as Java's
        do."""
        self._log.files.make = self._log.files.create_now
        self._log.preallocator = None
        self._worker.run(_nothing)
        if self._ready is not None:
            self._ready.close()
            self._ready = None

    def settle(self) -> None:
        """Waits for a reservation that runs: nobody else may reserve, or write, that stretch meanwhile.
        Raises SpaceNotReadyError when that takes long."""
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
            log.warning("the disk is slow: space for the log that was asked for long ago is not there yet")
        raise SpaceNotReadyError(errno.EAGAIN, "space for the log is not there yet")

    def _submit(self, job: Job) -> bool:
        """Gives the worker a job, whose end `_wait` waits for; False when the worker is busy."""

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

    def forget(self) -> None:
        """Waits for what runs and removes a file made ahead: the log has been cut, and will need another
        one."""
        self._worker.run(_nothing)
        self._drop_ready()

    def prepare(self, path: Path, start: int, size: int) -> None:
        """Makes a file with its first stretch reserved. Asking again for the same one does nothing."""
        if self._asked == path:
            return

        def work() -> None:
            try:
                file = self._log.files.create_now(path, start, size)
                file.reserve(min(RESERVE_BYTES, size))
            except (OSError, DiskFullError):
                return
            self._ready = file

        if self._submit(work):
            self._asked = path

    def reserve(self, file: MappedFile, end: int) -> None:
        """Reserves up to `end`, one stretch at a time."""
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

    def _make(self, path: Path, start: int, size: int) -> MappedFile:
        """The prepared file when it is this one, else a new one."""
        if self._asked == path:
            self._wait()
            self._asked = None
            if (file := self._ready) is not None and _is_in_place(file):
                self._ready = None
                return file
        self._drop_ready()
        return self._log.files.create_now(path, start, size)

    def _drop_ready(self) -> None:
        if self._ready is not None:
            self._ready.delete()
        self._ready = self._asked = None


def _is_in_place(file: MappedFile) -> bool:
    """Whether the file still has its name. A second Java broker started on the directory by mistake removes
    empty files behind the log's end before it finds out that the directory is locked."""
    try:
        return os.path.samestat(os.fstat(file.fd), file.path.stat())
    except FileNotFoundError:
        return False


def _nothing() -> None:
    """A job to wait for: all before it are done."""
