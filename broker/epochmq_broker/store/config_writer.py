"""Writes the state files of a broker off its event loop.

One thread makes the newest content of each file durable, one file after the other in the order in which they
were given; content that was overtaken meanwhile is not written. So there are never more waiting than files.

Content that must outlive a kill from this moment on is also put into `NAME.pending`, unsynced, on the
caller's thread (`pending_file`). The pending file is emptied when its content, or newer content, is durable
in NAME. `read_config` takes what it holds when it is the newer one and whole; after a power loss NAME alone
counts.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from pathlib import Path
from typing import Final

from epochmq_broker.store.config_files import write_config
from epochmq_broker.store.pending_file import PendingFile, pending_path
from epochmq_broker.store.worker_thread import WorkerBusyError, WorkerThread

log = logging.getLogger(__name__)

ROUND_INTERVAL_S: Final = 0.5
"""Seconds between two rounds of writes; content that was given meanwhile goes with the next one."""
FILES_MAX: Final = 64  # a broker has fewer than ten


class ConfigWriter:
    """The writer of one broker. `write` and `flush` are called on one thread, that of the event loop."""

    def __init__(self) -> None:
        self._due: dict[Path, tuple[int, bytes]] = {}  # (generation, content)
        self._pending: dict[Path, int] = {}  # generation of the content in the pending file
        self._files: dict[Path, PendingFile] = {}
        self._generation = 0
        self._lock = threading.Lock()  # held for memory and pending files, never during a sync
        self._worker: WorkerThread | None = None
        self._ending = threading.Event()
        self._rest_until = 0.0

    def write(self, path: Path, data: bytes, *, survives_kill: bool = False) -> None:
        """Makes `data` the durable content of the file, soon. `survives_kill`: a process killed after the
        return has the content at its next start. Raises nothing: a write that fails is logged, and tried
        again at the next `retry`."""
        self.add(path, data)
        if survives_kill:
            with self._lock:
                try:
                    self._pending_file(path).write(data)
                    self._pending[path] = self._generation
                except OSError as error:
                    log.error("%s cannot be written ahead of its sync: %s", path, error)
        self.retry()

    def add(self, path: Path, data: bytes) -> None:
        """Makes the content due, for the next `retry` or `flush`."""
        assert path in self._due or len(self._due) < FILES_MAX
        with self._lock:
            self._generation += 1
            self._due[path] = (self._generation, data)

    def retry(self) -> None:
        """Writes what is due and could not be written."""
        if not self._due:
            return
        if self._worker is None:
            self._worker = WorkerThread("config-files", capacity=2)
        with contextlib.suppress(WorkerBusyError):  # the job that waits takes this along
            self._worker.submit(self._run)

    def flush(self) -> None:
        """Writes all that is due on the calling thread, for the start and the stop. Raises OSError; the rest
        is written all the same."""
        if self._worker is not None:
            self._ending.set()
            self._worker.stop()
            self._ending.clear()
            self._worker = None
        error = self._write_due()
        self._close_files()
        if error is not None:
            raise error

    def _run(self) -> None:
        # Every sync makes the file system wait for its journal, and with it the renames of pending files: a
        # broker that gets a thousand topics at once must not sync its table a thousand times.
        rest_s = self._rest_until - time.monotonic()
        if rest_s > 0:
            self._ending.wait(rest_s)
        self._write_due()  # what fails stays due
        self._rest_until = time.monotonic() + ROUND_INTERVAL_S

    def _write_due(self) -> OSError | None:
        """Writes each file that is due once; the first failure."""
        failure: OSError | None = None
        for path in list(self._due):
            with self._lock:
                generation, data = self._due.pop(path)
            try:
                write_config(path, data)
            except OSError as error:
                log.error("%s could not be written; it is tried again: %s", path, error)
                failure = failure or error
                with self._lock:
                    self._due.setdefault(path, (generation, data))
                continue
            with self._lock:
                self._settle(path, generation)
        return failure

    def _settle(self, path: Path, durable: int) -> None:
        """Empties the pending file, or has it stay the newer one of the two."""
        pending = self._pending.get(path)
        if pending is None:
            return
        with contextlib.suppress(OSError):  # it holds what is durable, too: the next start reads the same
            if pending <= durable:
                del self._pending[path]
                self._pending_file(path).write(b"")
            else:
                self._pending_file(path).touch()

    def _pending_file(self, path: Path) -> PendingFile:
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = PendingFile(path)
        return file

    def _close_files(self) -> None:
        """At the start and at the stop, with all content durable no pending file is left."""
        with self._lock:
            files, self._files = self._files, {}
            for path, file in files.items():
                file.close()
                if path not in self._pending:
                    pending_path(path).unlink(missing_ok=True)
