"""The store's background work: worker threads, periodic flushes, expiry, and what follows from a full or
failing disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from epochmq_broker.store.fsync_failure import is_descriptor_shortage
from epochmq_broker.store.index_file import IndexFile
from epochmq_broker.store.key_index import INDEX_BACKLOG_MAX
from epochmq_broker.store.mapped_file import DiskFullError, MappedFile
from epochmq_broker.store.page_residency import PageResidency
from epochmq_broker.store.preallocator import BackgroundPreallocator
from epochmq_broker.store.queue_expiry import QueueExpiry
from epochmq_broker.store.queue_files import QueueFile
from epochmq_broker.store.statuses import RunningFlags
from epochmq_broker.store.worker_thread import WorkerBusyError, WorkerThread

if TYPE_CHECKING:
    from epochmq_broker.store.message_store import MessageStore

log = logging.getLogger(__name__)

DISK_CHECK_INTERVAL_MS = 1000  # how often a full disk is looked at again


class StoreMaintenance:
    """Runs while the store is started. Three threads: one flushes the log, one the queues, one works ahead
    of the log."""

    def __init__(self, store: MessageStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._log_worker = WorkerThread("store-flush-log")
        self._queue_worker = WorkerThread("store-flush-queues")
        self._ahead_worker = WorkerThread("store-ahead")
        self._residency = PageResidency()
        self._queue_expiry = QueueExpiry(
            store.queues,
            self._queue_worker,
            loop,
            lambda file: self._delete(self._queue_worker, file),
            lambda: store.log.max_offset,
        )
        self._allocator = BackgroundPreallocator(store.log, self._ahead_worker, loop)

    def start(self) -> None:
        """Begins."""
        store, config = self._store, self._store.config
        store.log_flusher.start(self._log_worker, self._loop)
        store.queue_flusher.start(self._queue_worker, self._loop)
        store.index.on_full = self._index_full
        store.reader.residency = self._residency
        self._every("log", lambda: self._store.config.flush_interval_commit_log, self._tick_log)
        self._every("queues", lambda: self._store.config.flush_interval_consume_queue, self._tick_queues)
        self._every("expiry", lambda: self._store.config.clean_resource_interval, self._tick_expiry)
        self._every("full", lambda: DISK_CHECK_INTERVAL_MS, self._tick_full)
        log.info("the store in %s has started", config.root)
        self._tick_expiry()

    def sync_abort_file(self) -> None:
        """Makes the abort file durable, soon."""
        self._submit(self._log_worker, self._store.abort.sync)

    def settle(self) -> None:
        """Returns when no thread touches the log's files any more; nothing is made ahead then."""
        self._allocator.forget()
        self._store.log_flusher.settle()
        self._queue_worker.run(lambda: None)

    def stop(self) -> None:
        """Ends all background work; what was queued is done."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._queue_expiry.stop()
        self._allocator.stop()
        for worker in (self._ahead_worker, self._log_worker, self._queue_worker):
            worker.stop()
        self._store.queue_flusher.stop()
        self._store.index.on_full = None
        self._store.reader.residency = None

    def _every(self, name: str, interval_ms: Callable[[], int], work: Callable[[], None]) -> None:
        def run() -> None:
            self._timers[name] = self._loop.call_later(max(interval_ms(), 1) / 1000, run)
            try:
                work()
            except Exception:
                # A tick that fails must not be the last one.
                log.exception("the store's upkeep failed: %s", name)

        self._timers[name] = self._loop.call_later(max(interval_ms(), 1) / 1000, run)

    def _tick_log(self) -> None:
        store = self._store
        store.appender.build_index(again=True)
        if (
            store.flags & RunningFlags.WRITE_INDEX_FILE_ERROR
            and len(store.index.waiting) < INDEX_BACKLOG_MAX // 2
        ):
            log.warning("messages are taken again: %d wait for the index", len(store.index.waiting))
            store.set_flag(RunningFlags.WRITE_INDEX_FILE_ERROR, False)
        self._store.log_flusher.tick()

    def _tick_queues(self) -> None:
        self._store.queue_flusher.tick()

    def _tick_full(self) -> None:
        """A disk that was full is tried again as soon as its use is below the limit. What is in memory is
        looked at anew."""
        self._residency.forget()
        if self._store.flags & RunningFlags.DISK_FULL:
            self._check_disk()

    def _tick_expiry(self) -> None:
        store = self._store
        self._check_disk()
        expired = store.expiry.expired()
        for file in expired:
            log.info("%s has expired", file.path)
            self._delete(self._log_worker, file)
        if expired:
            self._follow(store.log.min_offset)

    def _follow(self, min_offset: int) -> None:
        """Queues and index forget what the log has lost."""
        store = self._store
        self._queue_expiry.follow(min_offset)
        for index_file in store.index.expire(min_offset):
            self._delete(self._queue_worker, index_file)
        for expired in store.on_expire:
            expired(min_offset)

    def _check_disk(self) -> None:
        store = self._store
        use = store.expiry.measure()
        full = store.expiry.full
        if full != bool(store.flags & RunningFlags.DISK_FULL):
            state = "full, no messages are taken" if full else "no longer full"
            log.warning("the disk is %s: %.0f%% used", state, 100 * max(use.log, use.queues))
            store.set_flag(RunningFlags.DISK_FULL, full)

    def _index_full(self, file: IndexFile) -> None:
        """A full index file is written to disk once, and then trusted after a crash."""
        timestamp = file.end_timestamp

        def flush() -> None:
            try:
                file.flush()
            except OSError as error:
                if is_descriptor_shortage(error):
                    self._loop.call_soon_threadsafe(self._later, flush)
                    return
                self._store.sync_failure.report(error)
                self._loop.call_soon_threadsafe(self._store.report_fsync_failure, error)
            else:
                self._loop.call_soon_threadsafe(flushed)

        def flushed() -> None:
            checkpoint = self._store.checkpoint
            checkpoint.index_msg_timestamp = max(checkpoint.index_msg_timestamp, timestamp)

        try:
            self._queue_worker.submit(flush)
        except WorkerBusyError:
            log.warning("%s is not flushed now", file.path)

    def _later(self, flush: Callable[[], None]) -> None:
        """Flushes a full index file when there may be descriptors again."""

        def again() -> None:
            try:
                self._queue_worker.submit(flush)
            except WorkerBusyError:
                self._later(flush)

        if self._timers:  # not after the stop
            self._timers["index"] = self._loop.call_later(DISK_CHECK_INTERVAL_MS / 1000, again)

    def _submit(self, worker: WorkerThread, sync: Callable[[], None]) -> None:
        def run() -> None:
            try:
                sync()
            except OSError as error:
                self._store.sync_failure.report(error)
                self._loop.call_soon_threadsafe(self._store.report_fsync_failure, error)

        try:
            worker.submit(run)
        except WorkerBusyError:
            log.warning("%s is not synced now: the worker is busy", self._store.config.root / "abort")

    def _delete(self, worker: WorkerThread, file: MappedFile | QueueFile | IndexFile) -> None:
        def delete() -> None:
            try:
                file.delete()
            except (OSError, DiskFullError) as error:
                log.error("%s cannot be removed: %s", file.path, error)

        try:
            worker.submit(delete)
        except WorkerBusyError:
            delete()
