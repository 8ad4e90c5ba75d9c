"""Writes the state files of a broker on a worker thread.

The thread makes the newest content of each file durable, one file after the other, in the order of the
requests. Content that newer content has replaced meanwhile is not written, so at most one request for each
file waits.

Content that must survive a kill from now on is also written to `NAME.pending`, unsynced, on the caller's
thread (`pending_file`). The pending file is emptied when its content, or newer content, is durable in NAME.
`read_state_file` uses the pending content if it is newer and complete. After a power loss only NAME
counts.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from pathlib import Path
from typing import Final

from epochmq_protocol.durable_files import PUBLIC_MODE
from epochmq_store.files.worker_thread import WorkerBusyError, WorkerThread
from epochmq_store.state_files.pending_file import PendingFile, pending_path
from epochmq_store.state_files.state_file_io import file_mode, write_state_file

log = logging.getLogger(__name__)

ROUND_INTERVAL_S: Final = 0.5
"""Seconds between two rounds of writes. The next round writes the content that arrived meanwhile."""
FILES_MAX: Final = 64  # a broker has fewer than ten state files


class StateFileWriter:
    """The writer of one broker. All methods are called on the thread of the event loop."""

    def __init__(self) -> None:
        self._due: dict[Path, tuple[int, bytes]] = {}  # (generation, content)
        self._pending: dict[Path, int] = {}  # generation of the content in the pending file
        self._files: dict[Path, PendingFile] = {}
        self._generation = 0
        self._lock = threading.Lock()  # held for memory and pending files, never during a sync
        self._worker: WorkerThread | None = None
        self._flushing = threading.Event()  # ends the pause before the next round
        self._next_round_at = 0.0

    def write(self, path: Path, data: bytes, *, survives_kill: bool = False) -> None:
        """Replaces the content of the file durably, soon. `survives_kill`: the next start after a kill has
        this content from the return of this call on. Raises nothing; a failed write is logged, and repeated
        by the next `retry`."""
        self.add(path, data)
        if survives_kill:
            with self._lock:
                try:
                    self._pending_file(path).write(data)
                    self._pending[path] = self._generation
                except OSError as error:
                    log.error("the pending file of %s cannot be written: %s", path, error)
        self.retry()

    def add(self, path: Path, data: bytes) -> None:
        """Sets the content that the next `retry` or `flush` writes."""
        assert path in self._due or len(self._due) < FILES_MAX
        with self._lock:
            self._generation += 1
            self._due[path] = (self._generation, data)

    def retry(self) -> None:
        """Submits all content that is not durable yet."""
        if not self._due:
            return
        if self._worker is None:
            self._worker = WorkerThread("state-files", capacity=2)
        with contextlib.suppress(WorkerBusyError):  # a waiting job will write this content, too
            self._worker.submit(self._run)

    def flush(self) -> None:
        """Writes all content on the calling thread, at start and stop. Raises OSError after writing the other
        files."""
        if self._worker is not None:
            self._flushing.set()
            self._worker.stop()
            self._flushing.clear()
            self._worker = None
        error = self._write_due()
        self._close_files()
        if error is not None:
            raise error

    def _run(self) -> None:
        # During a sync, the file system's journal delays the renames of pending files. A broker that gets a
        # thousand topics at once must not sync its table a thousand times.
        pause_s = self._next_round_at - time.monotonic()
        if pause_s > 0:
            self._flushing.wait(pause_s)
        self._write_due()  # failed files stay due
        self._next_round_at = time.monotonic() + ROUND_INTERVAL_S

    def _write_due(self) -> OSError | None:
        """Writes each due file once, and returns the first failure."""
        failure: OSError | None = None
        for path in list(self._due):
            with self._lock:
                generation, data = self._due.pop(path)
            try:
                write_state_file(path, data)
            except OSError as error:
                log.error("%s could not be written, the write will be retried: %s", path, error)
                failure = failure or error
                with self._lock:
                    self._due.setdefault(path, (generation, data))
                continue
            with self._lock:
                self._update_pending_file(path, generation)
        return failure

    def _update_pending_file(self, path: Path, durable: int) -> None:
        """Empties the pending file if generation `durable` includes its content; otherwise makes it newer
        than the state file."""
        pending = self._pending.get(path)
        if pending is None:
            return
        with contextlib.suppress(OSError):  # its content is durable, too: the next start reads the same
            if pending <= durable:
                del self._pending[path]
                self._pending_file(path).write(b"")
            else:
                self._pending_file(path).touch()

    def _pending_file(self, path: Path) -> PendingFile:
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = PendingFile(path, file_mode(path) or PUBLIC_MODE)
        return file

    def _close_files(self) -> None:
        """Closes the pending files, and deletes those without pending content."""
        with self._lock:
            files, self._files = self._files, {}
            for path, file in files.items():
                file.close()
                if path not in self._pending:
                    pending_path(path).unlink(missing_ok=True)
