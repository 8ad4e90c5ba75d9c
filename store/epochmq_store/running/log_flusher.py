"""Flushes the commit log to disk by group commit and periodically (FlushManager, GroupCommitService,
FlushRealTimeService).

fsync runs on a worker thread. The event loop decides what to flush and handles the result. One flush runs at
a time and includes all bytes written before its start; puts that arrive meanwhile share the next flush.

**A failed fsync is final.** The kernel reports a write-back error once and marks the pages clean. A second
fsync that succeeds tells nothing about the bytes of the first, which may exist in memory only. So the store
rejects writes, fails the waiting puts, and moves neither the flushed offset nor the checkpoint. It records
the failure in its abort file at once (`FsyncFailure`), so that the next start does not trust the page cache.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable

from epochmq_store.appending.appender import Appender
from epochmq_store.files.fsync_failure import FsyncFailure, is_descriptor_shortage
from epochmq_store.files.mapped_file import PAGE_BYTES, MappedFile
from epochmq_store.files.worker_thread import WorkerBusyError, WorkerThread
from epochmq_store.log.commit_log import CommitLog
from epochmq_store.state_files.checkpoint import Checkpoint
from epochmq_store.statuses import PutStatus
from epochmq_store.store_config import StoreConfig

log = logging.getLogger(__name__)

FlushCallback = Callable[[PutStatus], None]
_SHORTAGE_RETRY_S = 0.1  # pause after a flush that failed for lack of file descriptors
_WAITERS_MAX = 1 << 17  # waiting puts; further puts get FLUSH_DISK_TIMEOUT at once


class LogFlusher:
    """Flushes the commit log and notifies waiting puts. `flushed` is the physical offset up to which the log
    is on disk."""

    def __init__(
        self,
        *,
        log: CommitLog,
        appender: Appender,
        checkpoint: Checkpoint,
        config: StoreConfig,
        failed: FsyncFailure,
        on_flushed: Callable[[int], None],
        on_failure: Callable[[OSError], None],
    ) -> None:
        """`on_flushed` is called with the new value of `flushed`, `on_failure` after a failed fsync; both on
        the event loop."""
        self._failed = failed
        self._log = log
        self._appender = appender
        self._checkpoint = checkpoint
        self._config = config
        self._worker: WorkerThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiters: deque[tuple[int, float, FlushCallback]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._scheduled = False
        self._running = False
        self._again = False
        self._generation = 0  # of the log's end; a truncation starts a new one
        self._completed_at = 0.0
        self.flushed = 0
        self._on_flushed = on_flushed
        self._on_failure = on_failure

    def configure(self, config: StoreConfig) -> None:
        """Applies intervals and timeouts."""
        self._config = config

    def begin_at_end(self) -> None:
        """Takes all bytes that the log has after recovery for flushed."""
        for file in self._log.files.files:
            file.flushed = file.wrote
        self.flushed = self._log.max_offset

    def start(self, worker: WorkerThread, loop: asyncio.AbstractEventLoop) -> None:
        """Flushes on this worker from now on."""
        self._worker = worker
        self._loop = loop
        self._completed_at = loop.time()

    def when_flushed(self, end: int, callback: FlushCallback) -> None:
        """Calls `callback` on the event loop: with PUT_OK when the log is on disk up to `end`, or with
        FLUSH_DISK_TIMEOUT after syncFlushTimeout or after a failed fsync."""
        if end <= self.flushed:
            callback(PutStatus.PUT_OK)
            return
        if self._failed.error is not None or self._loop is None or len(self._waiters) >= _WAITERS_MAX:
            callback(PutStatus.FLUSH_DISK_TIMEOUT)
            return
        deadline = self._loop.time() + self._config.sync_flush_timeout / 1000
        self._waiters.append((end, deadline, callback))
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._time_out)
        self.flush_soon()

    def flush_soon(self) -> None:
        """Flushes after the present iteration of the event loop, so that one batch of requests shares one
        flush."""
        if self._running:
            self._again = True
        elif not self._scheduled and self._loop is not None:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def tick(self) -> None:
        """Flushes if enough pages are dirty or enough time has passed; called periodically."""
        if self._loop is None or self._running:
            return
        dirty = self._log.max_offset - self.flushed
        thorough = self._config.flush_commit_log_thorough_interval / 1000
        if dirty >= max(self._config.flush_commit_log_least_pages * PAGE_BYTES, 1) or (
            dirty and self._loop.time() - self._completed_at >= thorough
        ):
            self.flush_soon()

    def flush_now(self) -> None:
        """Flushes on the calling thread, at start and stop. Raises OSError, also after an earlier failed
        flush."""
        work = [(file, file.wrote) for file in self._dirty()]
        sync_all(work, self._failed)
        for file, wrote in work:
            file.flushed = wrote
        self.flushed = self._log.max_offset
        if self._appender.last_timestamp:
            self._checkpoint.physic_msg_timestamp = self._appender.last_timestamp

    def wait_idle(self) -> None:
        """Returns when no flush is running. The event loop handles its result later."""
        if self._worker is not None:
            self._worker.run_and_wait(lambda: None)

    def stop(self) -> None:
        """Ends the waiting puts with the result of the last `flush_now`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._loop = None
        waiters, self._waiters = self._waiters, deque()
        for end, _, callback in waiters:
            done = self._failed.error is None and end <= self.flushed
            callback(PutStatus.PUT_OK if done else PutStatus.FLUSH_DISK_TIMEOUT)

    def note_truncation(self, end: int) -> None:
        """Lowers the flushed offset after a truncation, and ignores the result of a flush that started
        before."""
        self.flushed = min(self.flushed, end)
        self._generation += 1

    def _dirty(self) -> list[MappedFile]:
        files = []
        for file in reversed(self._log.files.files):
            if file.flushed < file.wrote:
                files.append(file)
            elif file.wrote:
                break
        return files[::-1]

    def _flush(self) -> None:
        self._scheduled = False
        loop, worker = self._loop, self._worker
        if self._running or self._failed.error is not None or loop is None or worker is None:
            return
        work = [(file, file.wrote) for file in self._dirty()]
        if not work:
            return
        end = self._log.max_offset
        timestamp = self._appender.last_timestamp
        generation = self._generation

        def run() -> None:
            failure = None
            try:
                sync_all(work, self._failed)
            except OSError as error:
                failure = error
            loop.call_soon_threadsafe(done, failure)

        def done(failure: OSError | None) -> None:
            self._running = False
            if self._failed.error is not None:
                self._fail(self._failed.error)
            elif failure is not None:
                log.warning("the flush of the commit log failed and is retried: %s", failure)
                loop.call_later(_SHORTAGE_RETRY_S, self.flush_soon)
                return
            elif generation == self._generation:
                self._complete(work, end, timestamp)
            if self._waiters or self._again:
                self._flush()

        try:
            worker.submit(run)
        except WorkerBusyError:
            return  # the next tick or the next put retries
        self._running = True
        self._again = False

    def _complete(self, work: list[tuple[MappedFile, int]], end: int, timestamp: int) -> None:
        for file, wrote in work:
            file.flushed = max(file.flushed, wrote)
        self.flushed = max(self.flushed, end)
        if timestamp:
            self._checkpoint.physic_msg_timestamp = timestamp
        if self._loop is not None:
            self._completed_at = self._loop.time()
        self._on_flushed(self.flushed)
        waiters = self._waiters
        while waiters and waiters[0][0] <= self.flushed:
            waiters.popleft()[2](PutStatus.PUT_OK)

    def _fail(self, failure: OSError) -> None:
        self._on_failure(failure)
        waiters, self._waiters = self._waiters, deque()
        for _, _, callback in waiters:
            callback(PutStatus.FLUSH_DISK_TIMEOUT)

    def _time_out(self) -> None:
        self._timer = None
        if self._loop is None:
            return
        now = self._loop.time()
        while self._waiters and self._waiters[0][1] <= now:
            self._waiters.popleft()[2](PutStatus.FLUSH_DISK_TIMEOUT)
        if self._waiters:
            self._timer = self._loop.call_at(self._waiters[0][1], self._time_out)


def sync_all(
    work: Iterable[tuple[MappedFile, int]], failed: FsyncFailure, *, missing_ok: bool = False
) -> None:
    """Syncs files on any thread; `missing_ok` skips deleted files. Raises OSError for a failed fsync, this
    one or an earlier one, which is reported to `failed`; and for a shortage of file descriptors, which is
    not."""
    for file, _ in work:
        try:
            file.flush()
        except FileNotFoundError as error:
            if not missing_ok:
                failed.report(error)
                raise
        except OSError as error:
            if not is_descriptor_shortage(error):
                failed.report(error)
            raise
    if (earlier := failed.error) is not None:
        raise OSError(earlier.errno, f"an earlier fsync failed: {earlier}")
