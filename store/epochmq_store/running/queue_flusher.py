"""Writes the units of consume queues into their files, syncs the files, and moves the checkpoint
(FlushConsumeQueueService).

A worker thread creates, reserves, writes and syncs the files; the event loop only copies units. A queue is
written when it holds two pages of units, or in a round of all queues (flushConsumeQueueThoroughInterval). A
round writes the units that the queues held at its start, QUEUES_PER_JOB queues at a time. Then it syncs all
files written since the previous round together. Its cost depends on the queues with new units only.

`write_all_then` writes all queues without a sync. It runs before a consumer's offset is written, so that an
audit of the directory finds no consumer ahead of its queue. All queues are also written when the log has
grown by `UNRECORDED_LOG_BYTES`. Each time the abort file gets the offset of the message that was the newest
one when the writing began: after a kill, recovery starts there.

Messages are acknowledged before their units are durable: recovery rebuilds the units that are newer than the
checkpoint from the log. The checkpoint moves at the end of a round only.

**A failed fsync is final**, as for the log: the checkpoint never moves again.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from epochmq_store.appending.appender import Appender
from epochmq_store.files.file_system_sync import FileSystemSync
from epochmq_store.files.fsync_failure import FsyncFailure, is_descriptor_shortage
from epochmq_store.files.mapped_file import DiskFullError
from epochmq_store.files.queue_files import QueueFile, QueueFiles
from epochmq_store.files.worker_thread import WorkerBusyError, WorkerThread
from epochmq_store.index.key_index import KeyIndex
from epochmq_store.queues.consume_queues import ConsumeQueues
from epochmq_store.queues.pending_units import UnitSource
from epochmq_store.state_files.abort_file import AbortFile
from epochmq_store.state_files.checkpoint import Checkpoint
from epochmq_store.store_config import StoreConfig

log = logging.getLogger(__name__)

QUEUES_PER_JOB: Final = 500
"""Queues that one job of the worker writes; the creation of 500 files takes about 50 ms."""
PAUSE_S: Final = 0.05  # between the jobs of a round
UNRECORDED_LOG_BYTES: Final = 64 << 20
UNRECORDED_LOG_BYTES_PER_QUEUE: Final = 16 << 10
"""All queues are written when the log has grown by 64 MiB, and by 16 KiB for each queue to write. So the
writing of 20,000 queues costs a few percent of a core."""

_Work = tuple[UnitSource, QueueFiles, int, bytes]


class QueueFlusher:
    """Flushes consume queues and the checkpoint, in that order."""

    def __init__(
        self,
        *,
        queues: ConsumeQueues,
        index: KeyIndex,
        appender: Appender,
        checkpoint: Checkpoint,
        config: StoreConfig,
        abort: AbortFile,
        failed: FsyncFailure,
        on_failure: Callable[[OSError], None],
        on_disk_full: Callable[[DiskFullError], None],
    ) -> None:
        """`on_failure` is called on the event loop after a failed fsync, `on_disk_full` when the disk has no
        space for units."""
        self._failed = failed
        self._index = index
        self._abort = abort
        self._pending = queues.pending
        self._file_system_sync = FileSystemSync(queues.directory)
        self._appender = appender
        self._checkpoint = checkpoint
        self._config = config
        self._running = False
        self._worker: WorkerThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._completed_at = 0.0
        self._round: deque[UnitSource] | None = None  # queues that the present round has not written yet
        self._round_time = 0  # store time, epoch ms, of the newest message at the start of the round
        self._unwritten: deque[UnitSource] | None = None  # queues that `write_all_then` has not written yet
        self._dispatched_until = -1  # what the abort file gets when they are written, a physical offset
        self._log_end_at_writing = 0  # the end of the log when the last writing of all queues began
        self._when_written: list[Callable[[], None]] = []
        self._next_when_written: list[Callable[[], None]] = []  # called after the next writing of all queues
        self._next: asyncio.TimerHandle | None = None
        self._on_failure = on_failure
        self._on_disk_full = on_disk_full

    def configure(self, config: StoreConfig) -> None:
        """Applies intervals."""
        self._config = config

    def start(self, worker: WorkerThread, loop: asyncio.AbstractEventLoop) -> None:
        """Flushes on this worker from now on."""
        self._worker = worker
        self._loop = loop
        self._completed_at = loop.time()
        self._log_end_at_writing = self._appender.log.max_offset
        if self._pending.waiting:  # what recovery found is written at once, for a start after another kill
            self._begin_writing_all()
        self._pending.write_on_worker(self._start_early_round)

    def stop(self) -> None:
        """Ends the ticks; queues are written on the calling thread from now on."""
        self._loop = None
        if self._next is not None:
            self._next.cancel()
            self._next = None
        self._pending.write_on_caller()

    def close(self) -> None:
        """Closes the descriptor of the file system."""
        self._file_system_sync.close()

    def tick(self) -> None:
        """Writes the queues that hold enough units, starts or continues the round of all queues, and writes
        the checkpoint; called periodically."""
        loop, worker = self._loop, self._worker
        if self._running or loop is None or worker is None:
            return
        if self._failed.error is not None:
            if self._unwritten is not None:
                self._end_writing_all()
            return
        if (
            self._round is None
            and loop.time() - self._completed_at >= self._config.flush_consume_queue_thorough_interval / 1000
        ):
            self._begin_round()
        if self._unwritten is None and self._log_has_grown():
            self._begin_writing_all()
        work = self._copy_units()
        written_until = self._dispatched_until if work and self._unwritten == deque() else -1
        pending = self._pending
        deleted_files, deleted_folders = pending.deleted_files, pending.deleted_folders
        ends_round = self._round is not None and not self._round
        if not work and self._unwritten is not None:
            self._end_writing_all()
        if not (work or deleted_files or deleted_folders or (ends_round and pending.unsynced)):
            if ends_round:
                self._end_round()
            if not self._checkpoint.store():
                return  # an idle broker does not write to the disk
            ends_round = False
        else:
            self._checkpoint.store()

        def run() -> None:
            synced: list[QueueFile] | None = None
            failure: OSError | DiskFullError | None = None
            try:
                _delete(deleted_files, deleted_folders)
                for queue, files, start, data in work:
                    files.write(start, data, queue.blank_unit, pending.unsynced)
                if written_until >= 0:
                    self._abort.record_dispatched(written_until)
                if ends_round:
                    found = list(pending.unsynced)
                    self._file_system_sync.sync(found)
                    synced = found
                self._checkpoint.flush()
            except (OSError, DiskFullError) as error:
                failure = error
                if isinstance(error, OSError) and not is_descriptor_shortage(error):
                    self._failed.report(error)
            loop.call_soon_threadsafe(self._handle_result, work, synced, failure)

        try:
            worker.submit(run)
        except WorkerBusyError:
            self._round = None  # its queues still wait to be written
            if self._unwritten is not None:
                self._unwritten.extend(queue for queue, *_ in work)
            return
        pending.deleted_files, pending.deleted_folders = [], []
        self._running = True

    def write_all_then(self, done: Callable[[], None]) -> None:
        """Writes all present units without a sync, and then calls `done` on the event loop, also after a
        failure. Without a worker thread or after a failed fsync, calls `done` at once."""
        if self._loop is None or self._failed.error is not None:
            done()
            return
        self._next_when_written.append(done)
        if self._unwritten is None:
            self._begin_writing_all()

    def _begin_writing_all(self) -> None:
        self._unwritten = deque(self._pending.waiting)
        self._dispatched_until = self._newest_dispatched()
        self._log_end_at_writing = self._appender.log.max_offset
        self._when_written, self._next_when_written = self._next_when_written, []
        self._tick_after(0.0)

    def _log_has_grown(self) -> bool:
        growth = self._appender.log.max_offset - self._log_end_at_writing
        queues = len(self._pending.waiting)
        return queues > 0 and growth >= UNRECORDED_LOG_BYTES + queues * UNRECORDED_LOG_BYTES_PER_QUEUE

    def _newest_dispatched(self) -> int:
        """Physical offset of a message. When all queues are written, their files and the index's have every
        message before it. -1 if nothing is known."""
        newest = self._pending.newest_record()
        backlog = self._index.backlog
        return min(newest, backlog[0][3]) if backlog else newest

    def note_truncation(self, offset: int) -> None:
        """Withdraws what the abort file says about messages at or after `offset`, before the log is truncated
        there. No job runs. Raises OSError."""
        self._dispatched_until = -1
        self._log_end_at_writing = min(self._log_end_at_writing, offset)
        self._abort.note_truncation(offset)

    def _end_writing_all(self) -> None:
        done, self._when_written = self._when_written, []
        self._unwritten = None
        if self._loop is None:
            return
        for call in done:
            call()
        if self._next_when_written:
            self._begin_writing_all()

    def flush_now(self) -> None:
        """Flushes all queues on the calling thread, at start and stop. Raises DiskFullError or OSError."""
        self._raise_earlier_failure()
        pending = self._pending
        try:
            pending.write_all()
            self._file_system_sync.sync(pending.unsynced)
        except OSError as error:
            if not is_descriptor_shortage(error):
                self._failed.report(error)
            raise
        pending.unsynced.clear()
        if self._appender.last_timestamp:
            self._checkpoint.logics_msg_timestamp = self._appender.last_timestamp

    def flush_checkpoint(self) -> None:
        """Writes and syncs the checkpoint on the calling thread, at the stop. Raises OSError."""
        self._checkpoint.store()
        try:
            self._checkpoint.flush()
        except OSError as error:
            self._failed.report(error)
            raise

    def _raise_earlier_failure(self) -> None:
        if (earlier := self._failed.error) is not None:
            raise OSError(earlier.errno, f"an earlier fsync failed: {earlier}")

    def _start_early_round(self) -> None:
        """Starts a round before its time, because the queues hold much memory."""
        if self._round is None and self._loop is not None and not self._running:
            self._begin_round()
            self._tick_after(0.0)

    def _begin_round(self) -> None:
        self._round = deque(self._pending.waiting)
        self._round_time = self._appender.last_timestamp

    def _end_round(self) -> None:
        assert self._loop is not None
        self._round = None
        self._completed_at = self._loop.time()
        if self._round_time:
            self._checkpoint.logics_msg_timestamp = self._round_time

    def _copy_units(self) -> list[_Work]:
        """Copies the units of the queues that this tick writes."""
        due, waiting = self._pending.due, self._pending.waiting
        work: list[_Work] = []

        def take(queue: UnitSource) -> None:
            due.pop(queue, None)
            files, start, data = queue.unwritten()
            if data:
                work.append((queue, files, start, data))
            else:
                queue.mark_written()

        while due and len(work) < QUEUES_PER_JOB:
            take(next(iter(due)))
        while self._round and len(work) < QUEUES_PER_JOB:
            queue = self._round.popleft()
            if queue in waiting:
                take(queue)
        while self._unwritten and len(work) < QUEUES_PER_JOB:
            queue = self._unwritten.popleft()
            if queue in waiting:
                take(queue)
        return work

    def _handle_result(
        self, work: list[_Work], synced: list[QueueFile] | None, failure: OSError | DiskFullError | None
    ) -> None:
        self._running = False
        for queue, *_ in work:
            queue.mark_written()
        if failure is not None:
            self._handle_failure(failure)
            self._end_writing_all()
            return
        if self._unwritten is not None and not self._unwritten:
            self._end_writing_all()
        if synced is not None:
            for file in synced:
                self._pending.unsynced.pop(file, None)
            if self._loop is not None:
                self._end_round()
        if self._round is not None or self._unwritten or len(self._pending.due) >= QUEUES_PER_JOB:
            self._tick_after(PAUSE_S)

    def _handle_failure(self, failure: OSError | DiskFullError) -> None:
        """Reports a failed fsync or a full disk. The next round retries after other failures."""
        self._round = None
        if self._loop is not None:
            self._completed_at = self._loop.time()
        if self._failed.error is not None:
            self._on_failure(self._failed.error)
        elif isinstance(failure, DiskFullError):
            self._on_disk_full(failure)
        else:
            log.warning("the write of consume queues failed and is retried: %s", failure)

    def _tick_after(self, delay_s: float) -> None:
        if self._loop is not None and self._next is None:
            self._next = self._loop.call_later(delay_s, self._scheduled_tick)

    def _scheduled_tick(self) -> None:
        self._next = None
        self.tick()


def _delete(removed: list[QueueFiles], folders: list[Path]) -> None:
    """Deletes files and directories. Logs those that cannot be deleted."""
    for files in removed:
        try:
            files.destroy()
        except OSError as error:
            log.error("the consume queue in %s cannot be deleted: %s", files.directory, error)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
