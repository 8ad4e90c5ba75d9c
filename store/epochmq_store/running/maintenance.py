"""Runs the store's background work: periodic flushes, index builds, expiry and disk checks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from epochmq_store.appending.appender import Appender
from epochmq_store.files.fsync_failure import FsyncFailure, is_descriptor_shortage
from epochmq_store.files.mapped_file import DiskFullError, MappedFile
from epochmq_store.files.page_reclaim import own_page_reclaim
from epochmq_store.files.page_residency import PageResidency
from epochmq_store.files.queue_files import QueueFile
from epochmq_store.files.worker_thread import WorkerBusyError, WorkerThread
from epochmq_store.index.index_file import IndexFile
from epochmq_store.index.key_index import INDEX_BACKLOG_MAX, KeyIndex
from epochmq_store.log.commit_log import CommitLog
from epochmq_store.log.damaged_ranges import DamagedRanges
from epochmq_store.log.log_expiry import LogExpiry
from epochmq_store.log.preallocator import BackgroundPreallocator
from epochmq_store.queues.consume_queues import ConsumeQueues
from epochmq_store.queues.queue_expiry import QueueExpiry
from epochmq_store.reading.message_reader import MessageReader
from epochmq_store.running.log_flusher import LogFlusher
from epochmq_store.running.queue_flusher import QueueFlusher
from epochmq_store.running.running_state import RunningState
from epochmq_store.state_files.abort_file import AbortFile
from epochmq_store.state_files.checkpoint import Checkpoint
from epochmq_store.state_files.log_extent import LogExtentFile
from epochmq_store.statuses import RunningFlags
from epochmq_store.store_config import StoreConfig

log = logging.getLogger(__name__)

DISK_CHECK_INTERVAL_MS = 1000  # a full disk is checked again after so long


@dataclass(frozen=True)
class MaintenanceDependencies:
    """The parts of a store that its maintenance works on."""

    log: CommitLog
    queues: ConsumeQueues
    index: KeyIndex
    appender: Appender
    reader: MessageReader
    checkpoint: Checkpoint
    log_flusher: LogFlusher
    queue_flusher: QueueFlusher
    log_expiry: LogExpiry
    abort: AbortFile
    fsync_failure: FsyncFailure
    state: RunningState
    damage: DamagedRanges
    on_expire: list[Callable[[int], None]]
    """Called with the log's new first offset."""
    log_extent: LogExtentFile | None
    """None: the log keeps its own record of its files."""


class StoreMaintenance:
    """Runs while the store is started. Three threads flush the log, write the queues, and preallocate space
    for the log."""

    def __init__(
        self, store: MaintenanceDependencies, config: StoreConfig, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._store = store
        self._config = config
        self._loop = loop
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._log_worker = WorkerThread("store-flush-log")
        self._queue_worker = WorkerThread("store-flush-queues")
        self._preallocation_worker = WorkerThread("store-preallocate")
        self._residency = PageResidency(own_page_reclaim().has_run)
        self._residency.fault_in = self._fault_in
        store.damage.on_change = self._residency.clear
        self._queue_expiry = QueueExpiry(
            queues=store.queues,
            worker=self._queue_worker,
            loop=loop,
            delete=lambda file: self._delete(self._queue_worker, file),
            log_end=lambda: store.log.max_offset,
        )
        self._preallocator = BackgroundPreallocator(store.log, self._preallocation_worker, loop)

    def start(self) -> None:
        """Starts the periodic work."""
        store = self._store
        store.log_flusher.start(self._log_worker, self._loop)
        store.queue_flusher.start(self._queue_worker, self._loop)
        store.index.report_full_files(self._flush_full_index_file)
        store.reader.use_residency(self._residency)
        self._every("log", lambda: self._config.flush_interval_commit_log, self._tick_log)
        self._every("queues", lambda: self._config.flush_interval_consume_queue, self._tick_queues)
        self._every("expiry", lambda: self._config.clean_resource_interval, self._tick_expiry)
        self._every("full", lambda: DISK_CHECK_INTERVAL_MS, self._tick_full_disk)
        log.info("the store in %s has started", self._config.root)
        self._tick_expiry()

    def configure(self, config: StoreConfig) -> None:
        """Applies intervals from their next tick on."""
        self._config = config

    def sync_abort_file(self) -> None:
        """Syncs the abort file soon."""
        self._submit_sync(self._log_worker, self._store.abort.sync)

    def wait_idle(self) -> None:
        """Returns when no thread uses the log's files, and no file is created in advance."""
        self._preallocator.discard_prepared()
        self._store.log_flusher.wait_idle()
        self._queue_worker.run_and_wait(lambda: None)

    def stop(self) -> None:
        """Finishes the queued jobs and ends all background work."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._queue_expiry.stop()
        self._preallocator.stop()
        for worker in (self._preallocation_worker, self._log_worker, self._queue_worker):
            worker.stop()
        self._store.queue_flusher.stop()
        self._store.index.report_full_files(None)
        self._store.reader.use_residency(None)

    def _fault_in(self, file: MappedFile | QueueFile, start: int, stop: int) -> str:
        """What is damaged in the bytes [start, stop) of a file, if it is one of the log's."""
        damage, log_files = self._store.damage, self._store.log.files
        if not damage or log_files.find(file.start + start) is not file:
            return ""
        broken = damage.first_broken_within(file.start + start, file.start + stop)
        return "" if broken is None else broken.fault

    def _every(self, name: str, interval_ms: Callable[[], int], work: Callable[[], None]) -> None:
        def run() -> None:
            self._timers[name] = self._loop.call_later(max(interval_ms(), 1) / 1000, run)
            try:
                work()
            except Exception:
                # Later ticks must run even if this one fails.
                log.exception("the store's maintenance failed: %s", name)

        self._timers[name] = self._loop.call_later(max(interval_ms(), 1) / 1000, run)

    def _tick_log(self) -> None:
        store = self._store
        store.appender.build_index(retry=True)
        backlog = len(store.index.backlog)
        if store.state.flags & RunningFlags.WRITE_INDEX_FILE_ERROR and backlog < INDEX_BACKLOG_MAX // 2:
            log.warning("the store accepts messages again: %d are not in the index yet", backlog)
            store.state.set_flag(RunningFlags.WRITE_INDEX_FILE_ERROR, False)
        store.log_flusher.tick()
        self._note_first_file()

    def _tick_queues(self) -> None:
        self._store.queue_flusher.tick()

    def _tick_full_disk(self) -> None:
        """Accepts messages as soon as a full disk has space again. Also expires the knowledge about pages in
        memory."""
        self._residency.expire()
        if self._store.state.flags & RunningFlags.DISK_FULL:
            self._check_disk()

    def _tick_expiry(self) -> None:
        store = self._store
        self._check_disk()
        expired = store.log_expiry.take_expired()
        self._note_first_file()
        for file in expired:
            log.info("the log file %s has expired", file.path)
            self._delete(self._log_worker, file)
        if expired:
            self._expire_queues_and_index(store.log.min_offset)

    def _note_first_file(self) -> None:
        """Records the first file of the log, before expired files before it are deleted."""
        store = self._store
        extent, first = store.log_extent, store.log.min_offset
        if extent is None or store.log.max_offset <= max(first, 0):
            return
        if extent.known is not None and extent.known.first == first:
            return
        try:
            self._log_worker.submit(lambda: extent.write(first))
        except WorkerBusyError:
            extent.write(first)

    def _expire_queues_and_index(self, min_offset: int) -> None:
        store = self._store
        self._queue_expiry.expire_before(min_offset)
        for index_file in store.index.expire(min_offset):
            self._delete(self._queue_worker, index_file)
        for listener in store.on_expire:
            listener(min_offset)

    def _check_disk(self) -> None:
        store = self._store
        use = store.log_expiry.measure()
        full = store.log_expiry.is_full
        if full != bool(store.state.flags & RunningFlags.DISK_FULL):
            state = "full, the store rejects messages" if full else "no longer full"
            log.warning("the disk is %s: %.0f%% used", state, 100 * max(use.log, use.queues))
            store.state.set_flag(RunningFlags.DISK_FULL, full)

    def _flush_full_index_file(self, file: IndexFile) -> None:
        """Flushes a full index file, which is trusted after a crash from then on."""
        store = self._store
        timestamp = file.end_timestamp

        def flush() -> None:
            try:
                file.flush()
            except OSError as error:
                if is_descriptor_shortage(error):
                    self._loop.call_soon_threadsafe(self._retry_index_flush, flush)
                    return
                store.fsync_failure.report(error)
                self._loop.call_soon_threadsafe(store.state.report_fsync_failure, error)
            else:
                self._loop.call_soon_threadsafe(flushed)

        def flushed() -> None:
            checkpoint = store.checkpoint
            checkpoint.index_msg_timestamp = max(checkpoint.index_msg_timestamp, timestamp)

        try:
            self._queue_worker.submit(flush)
        except WorkerBusyError:
            log.warning("the index file %s is not flushed: the worker thread is busy", file.path)

    def _retry_index_flush(self, flush: Callable[[], None]) -> None:
        """Flushes a full index file later, when there may be file descriptors again."""

        def again() -> None:
            try:
                self._queue_worker.submit(flush)
            except WorkerBusyError:
                self._retry_index_flush(flush)

        if self._timers:  # empty after the stop
            self._timers["index"] = self._loop.call_later(DISK_CHECK_INTERVAL_MS / 1000, again)

    def _submit_sync(self, worker: WorkerThread, sync: Callable[[], None]) -> None:
        store = self._store

        def run() -> None:
            try:
                sync()
            except OSError as error:
                store.fsync_failure.report(error)
                self._loop.call_soon_threadsafe(store.state.report_fsync_failure, error)

        try:
            worker.submit(run)
        except WorkerBusyError:
            log.warning("%s is not synced: the worker thread is busy", self._config.root / "abort")

    def _delete(self, worker: WorkerThread, file: MappedFile | QueueFile | IndexFile) -> None:
        def delete() -> None:
            try:
                file.delete()
            except (OSError, DiskFullError) as error:
                log.error("%s cannot be deleted: %s", file.path, error)

        try:
            worker.submit(delete)
        except WorkerBusyError:
            delete()
