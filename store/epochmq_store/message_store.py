"""Opens and closes the store of one broker, and gives access to its parts (DefaultMessageStore).

`load` opens and recovers the directory and needs no event loop. `start` starts background work on the running
loop. `stop` ends it and leaves a directory that needs no recovery. All methods are called on the loop's
thread, unless their description says otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
from collections.abc import Callable

from epochmq_protocol.durable_files import make_directory
from epochmq_store.appending.appender import Appender, ArrivalListener
from epochmq_store.appending.commit_log_dispatcher import CommitLogDispatcher
from epochmq_store.appending.replica_log_writer import ReplicaLogWriter
from epochmq_store.files.fsync_failure import FsyncFailure
from epochmq_store.files.lock_file import LockFile
from epochmq_store.files.mapped_file import DiskFullError, StoreDamagedError, as_disk_full
from epochmq_store.index.key_index import KeyIndex
from epochmq_store.log.commit_log import CommitLog
from epochmq_store.log.damaged_ranges import DamagedRanges
from epochmq_store.log.log_expiry import LogExpiry
from epochmq_store.log.log_paths import DATA_PATHS_FILE, LOG_PATHS_FILE, record_paths
from epochmq_store.queues.consume_queue import ConsumeQueue
from epochmq_store.queues.consume_queues import ConsumeQueues
from epochmq_store.queues.light_queues import LightQueues
from epochmq_store.queues.queue_extension import BitMapOf
from epochmq_store.reading.message_reader import MessageReader
from epochmq_store.reading.queue_lookup import QueueLookup
from epochmq_store.recovering.recovery import Recovery, RecoveryResult
from epochmq_store.recovering.suspect_rewrite import rewrite_suspect_files, skip_earlier_errors
from epochmq_store.running.arrival_listeners import ArrivalListeners
from epochmq_store.running.log_flusher import LogFlusher, sync_all
from epochmq_store.running.maintenance import MaintenanceDependencies, StoreMaintenance
from epochmq_store.running.queue_flusher import QueueFlusher
from epochmq_store.running.read_visibility import ReadVisibility
from epochmq_store.running.running_state import RunningState
from epochmq_store.state_files import clean_queues_marker
from epochmq_store.state_files.abort_file import AbortFile
from epochmq_store.state_files.checkpoint import Checkpoint
from epochmq_store.state_files.log_extent import LogExtentFile, missing_files
from epochmq_store.state_files.tail_state import CLEAN_TAIL, without_files
from epochmq_store.store_config import StoreConfig

log = logging.getLogger(__name__)

LOOPBACK_HOST = b"\x7f\0\0\x01\0\0\x2a\x9f"  # 127.0.0.1:10911


class MessageStore:
    """The store as the broker uses it. Its parts are public attributes:

    - `state` (`RunningState`): whether messages are accepted, and why not;
    - `visibility` (`ReadVisibility`): which messages readers can see;
    - `reader` (`MessageReader`): get, offset by time, query by key;
    - `lookup` (`QueueLookup`): the same by topic and queue id;
    - `replica_log` (`ReplicaLogWriter`): appends bytes of a master's log;
    - `log_expiry` (`LogExpiry`): expires log files;
    - `damage` (`DamagedRanges`): what is known to be damaged in the log;
    - `on_arrival`, `on_flush`, `on_expire`, `on_truncate`: listeners.

    Seven methods of parts are bound as attributes, so that a send or a pull makes one call less: `append`,
    `append_batch` and `append_to_light_queues` (`Appender`), `get`, `max_offset` and `read`
    (`MessageReader`), `when_flushed` (`LogFlusher`).
    """

    def __init__(
        self,
        config: StoreConfig,
        store_host: bytes = LOOPBACK_HOST,
        *,
        log: CommitLog | None = None,
        make_appender: type[Appender] = Appender,
        is_batch_topic: Callable[[str], bool | None] = lambda _topic: None,
        bit_map: BitMapOf | None = None,
    ) -> None:
        """`store_host` is this broker's encoded address and port; new records contain it. `log` and
        `make_appender` replace the plain commit log, and what appends to it. `is_batch_topic`: whether the
        topic has batch consume queues; None if its settings are not known. `bit_map` computes the filter bit
        maps of queue extensions, None for none."""
        self.config = config
        root = config.root
        self.log = log or CommitLog(
            config.commit_log_dirs, config.mapped_file_size_commit_log, config.read_only_log_dirs
        )
        self.log.files.set_read_ahead(config.data_read_ahead_enable)
        self.log.configure(verify_property_crc=config.force_verify_prop_crc)
        self.queues = ConsumeQueues(
            root / "consumequeue",
            config.mapped_file_size_consume_queue,
            config.mapped_file_size_consume_queue_ext if config.enable_consume_queue_ext else 0,
            config.mapper_file_size_batch_consume_queue,
            is_batch_topic=is_batch_topic,
            store_timestamp=self.log.store_timestamp,
        )
        self.index = KeyIndex(root / "index", config.max_hash_slot_num, config.max_index_num)
        self.appender = make_appender(
            log=self.log, index=self.index, config=config, store_host=store_host, bit_map=bit_map
        )
        self.reader = MessageReader(self.log, self.index, config)
        self.lookup = QueueLookup(self.queues, self.reader)
        self.light_queues: LightQueues | None = None
        if config.enable_lmq:
            self.light_queues = LightQueues(
                self.queues,
                dispatches=config.enable_multi_dispatch,
                queues_max=config.max_lmq_consume_queue_num,
            )
        self.dispatcher = CommitLogDispatcher(
            log=self.log,
            queues=self.queues,
            index=self.index if config.message_index_enable else None,
            delays_ms=config.delays_ms,
            bit_map=bit_map,
            light_queues=self.light_queues,
        )
        self.replica_log = ReplicaLogWriter(self.log, self.dispatcher)
        self.log_expiry = LogExpiry(self.log, config)
        # A DLedger log keeps its own record of its files.
        self._log_extent = LogExtentFile(root) if log is None else None
        self.damage = DamagedRanges()
        self.abort = AbortFile(root / "abort")
        self.fsync_failure = FsyncFailure(self.abort.record_flush_failure)
        self.state = RunningState(self.appender, self.fsync_failure)

        def set_append_listener(listener: ArrivalListener | None) -> None:
            self.appender.notify_appends(listener)
            self.dispatcher.notify_appends(listener)

        self.on_arrival = ArrivalListeners(set_append_listener, lambda: self.log.max_offset)
        self.on_flush: list[Callable[[int], None]] = []  # called with the flushed offset of the log
        self.on_expire: list[Callable[[int], None]] = []  # called with the log's new first offset
        self.on_truncate: list[Callable[[int], None]] = []  # called with the offset of a truncation
        # Bound once for the hot paths; see the class.
        self.append = self.appender.append
        if config.enabled_append_prop_crc:
            self.append = self.appender.append_with_property_crc
        self.append_batch = self.appender.append_batch
        self.append_to_light_queues = self.appender.append_to_light_queues
        self.get = self.reader.get
        self.max_offset = self.reader.max_offset
        self.read = self.reader.read
        self.tail = CLEAN_TAIL  # the end of the log as `load` found it
        self.end_at_load = 0  # the end of the log after recovery (brokerInitMaxOffset)
        self.recovery_start = 0  # recovery started reading here; everything before was flushed
        self.confirm_offset_at_load = 0  # from the checkpoint, before recovery
        self._lock: LockFile | None = None
        self._maintenance: StoreMaintenance | None = None
        self.missing_from: int | None = None
        """The offset of the first of the log files that are missing at its start; None: none is."""
        self._queues_zeroed = False  # only zeros follow the units in the files of queues

    # Opening and closing

    def load(self) -> RecoveryResult:
        """Locks, opens and recovers the directory; then messages can be put and read. Closes the directory
        and raises StoreLockedError, StoreDamagedError, DiskFullError or OSError if that fails."""
        root = self.config.root
        _raise_file_limit()
        for path in self.config.read_only_log_dirs:
            if not path.is_dir():
                raise StoreDamagedError(f"{path}, in readOnlyCommitLogStorePaths, is no directory")
        for path in (root, *self.config.commit_log_dirs, self.queues.directory, self.index.directory):
            make_directory(path)
        zeroed = clean_queues_marker.queues_are_zeroed(root)
        if self._log_extent is not None:
            self._log_extent.read()
        self._lock = LockFile(root / "lock")
        clean_queues_marker.remove_marker(root)
        self._queues_zeroed = zeroed
        try:
            while True:
                try:
                    return self._open()
                except (DiskFullError, OSError) as error:
                    if isinstance(error, OSError) and not isinstance(as_disk_full(error), DiskFullError):
                        raise
                    # As while running: expired files, or any on a full disk, make room.
                    if not self._delete_expired_files():
                        raise
                    log.warning("the disk is full, the store deleted expired files to open: %s", error)
                    self._close_parts()
                    self.abort.abandon()
        except BaseException:
            self._close_files()
            self.abort.abandon()
            raise

    def _delete_expired_files(self) -> bool:
        """Deletes the log files that expire now; False without any, so the calls end."""
        self.log_expiry.measure()
        expired = self.log_expiry.take_expired()
        if expired and self._log_extent is not None:
            self._log_extent.write(self.log.min_offset)
        for file in expired:
            log.info("the log file %s has expired", file.path)
            file.delete()
        return bool(expired)

    def _assess_missing_files(self) -> None:
        """Doubts the log if a file beside it is missing: what the file held, or knew, may be acknowledged."""
        extent, files = self._log_extent, self.log.files.files
        if extent is None:
            return
        missing = missing_files(extent.known, [file.start for file in files])
        checkpoint = self.config.root / "checkpoint"
        if missing is None and files and any(files[0].pread(0, 8)) and not checkpoint.exists():
            missing = str(checkpoint)
        first: int | None = None if missing is None else 0  # the note of the first one may be lost, too
        if extent.known is not None:
            first = extent.known.first
        if first is not None and files and files[0].start > first:
            self.missing_from = first
        if missing is not None:
            log.error("in %s a file is missing, and messages may be: %s", self.config.root, missing)
            self.tail = without_files(self.tail)

    def _open(self) -> RecoveryResult:
        root = self.config.root
        self.tail = self.abort.read_tail()
        clean, killed = self.tail is CLEAN_TAIL, self.tail.only_killed
        if self.tail.cache_suspect:
            skip_earlier_errors(self.config)
        record_paths(root, LOG_PATHS_FILE, self.log.plain_directories)
        record_paths(root, DATA_PATHS_FILE, self.log.data_directories)
        self.log.load()
        self._assess_missing_files()
        # From here on files change, and a start that fails half-way is not a clean stop.
        self.abort.begin(self.tail, acknowledges_unflushed=not self.config.sync_flush)
        self.checkpoint = Checkpoint(root / "checkpoint")
        if self.tail.cache_suspect:
            log.warning("an fsync failed in this boot, the store rewrites the suspect files in %s", root)
            rewrite_suspect_files(self.config, self.log, self.checkpoint)
            self.abort.record_rewritten()
        self.queues.load(zeroed=clean and self._queues_zeroed, before_cut=self.checkpoint.withdraw_queues)
        trusted = None if clean or killed else self.checkpoint.index_msg_timestamp
        self.index.load(trusted_until=trusted, killed=killed)
        recovery = Recovery(
            config=self.config,
            log=self.log,
            queues=self.queues,
            index=self.index,
            checkpoint=self.checkpoint,
            dispatcher=self.dispatcher,
            damage=self.damage,
            forget_dispatched=lambda: self.abort.record_dispatched(-1),
        )
        recovered = recovery.run(
            clean=clean,
            killed=killed,
            check_crc=self.tail.cache_suspect,
            reindex=trusted is not None,
            dispatched_until=self.tail.dispatched_until,
        )
        self.appender.build_index(retry=True)
        stored = self.log.store_timestamp(recovered.last_record) if recovered.records else 0
        self.appender.last_timestamp = max(stored, 0)
        self.recovery_start = recovered.start
        self.end_at_load = recovered.end
        self.confirm_offset_at_load = self.checkpoint.confirm_phy_offset
        # The value that RocketMQ leaves: the start of the last message. Only controller and duplication mode
        # read it.
        self.checkpoint.confirm_phy_offset = recovered.last_record
        self.log_flusher = LogFlusher(
            log=self.log,
            appender=self.appender,
            checkpoint=self.checkpoint,
            config=self.config,
            failed=self.fsync_failure,
            on_flushed=self._handle_flush,
            on_failure=self.state.report_fsync_failure,
        )
        self.queue_flusher = QueueFlusher(
            queues=self.queues,
            index=self.index,
            appender=self.appender,
            checkpoint=self.checkpoint,
            config=self.config,
            abort=self.abort,
            failed=self.fsync_failure,
            on_failure=self.state.report_fsync_failure,
            on_disk_full=self.state.report_space_failure,
        )
        self.when_flushed = self.log_flusher.when_flushed
        if not clean:
            # The writes of a killed process may be in memory only. The kernel reports a loss once: `sync_all`
            # records it in the abort file for the next start.
            self.queues.mark_unsynced()
            sync_all([(file, file.wrote) for file in self.log.files.files], self.fsync_failure)
        self.log_flusher.begin_at_end()
        self.visibility = ReadVisibility(
            self.reader, self.on_arrival, self.log_flusher, sync_flush=self.config.sync_flush
        )
        self.state.update()
        if self.missing_from is None:
            self._note_log_extent()
        self.abort.record_recovered()
        if recovered.records and not (self.queues.pending.waiting or self.index.backlog):
            self.abort.record_dispatched(recovered.last_record)
        log.info(
            "the store in %s is open after a %s (end of the log: %s): %d records read, the log ends at %d",
            root,
            "clean stop" if clean else "crash",
            self.tail.state.name,
            recovered.records,
            recovered.end,
        )
        return recovered

    def start(self) -> None:
        """Starts flushes, expiry and preallocation on the running event loop."""
        dependencies = MaintenanceDependencies(
            log=self.log,
            queues=self.queues,
            index=self.index,
            appender=self.appender,
            reader=self.reader,
            checkpoint=self.checkpoint,
            log_flusher=self.log_flusher,
            queue_flusher=self.queue_flusher,
            log_expiry=self.log_expiry,
            abort=self.abort,
            fsync_failure=self.fsync_failure,
            state=self.state,
            damage=self.damage,
            on_expire=self.on_expire,
            log_extent=self._log_extent,
        )
        self._maintenance = StoreMaintenance(dependencies, self.config, asyncio.get_running_loop())
        self._maintenance.start()

    def stop(self) -> None:
        """Ends background work, flushes everything and closes the directory. After a failed fsync the abort
        file stays, so that the next start recovers. Errors are logged; the lock is released in any case."""
        if self._lock is None:
            return
        self.state.reject_messages()
        if self._maintenance is not None:
            self._maintenance.stop()
            self._maintenance = None
        clean = self._flush_all()
        self.log_flusher.stop()
        try:
            self.index.close()
        except (OSError, DiskFullError) as error:
            clean = False
            self.state.report_sync_error(error)
            log.error("the index could not be closed cleanly: %s", error)
        clean_and_dispatched = clean and not self.state.has_undispatched
        if clean_and_dispatched:
            clean_queues_marker.write_marker(self.config.root)
            last = self.log.files.find(max(self.log.max_offset - 1, 0))
            self._note_log_extent(None if last is None else last.start)
        self._close_files()
        if clean_and_dispatched:
            self.abort.remove()
        self.abort.close()
        log.info(
            "the store in %s is closed%s",
            self.config.root,
            "" if clean else ", to be recovered at the next start",
        )

    def _note_log_extent(self, last: int | None = None) -> None:
        """Records the first file of the log, and the last one at a clean stop."""
        extent = self._log_extent
        if extent is not None:
            if self.log.max_offset > max(self.log.min_offset, 0):
                extent.write(self.log.min_offset, last)
            else:
                extent.forget()

    def _flush_all(self) -> bool:
        """Flushes log, queues and checkpoint at the stop; False when that fails."""
        try:
            self.log_flusher.flush_now()
            self.queue_flusher.flush_now()
            self.queue_flusher.flush_checkpoint()
        except (OSError, DiskFullError) as error:
            log.error("the store could not be flushed: %s", error)
            return False
        return True

    def _close_files(self) -> None:
        self._close_parts()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _close_parts(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            self.checkpoint.close()
        with contextlib.suppress(AttributeError, OSError):
            self.queue_flusher.close()
        self.queues.close()
        self.log.close()
        self.index.close_files()

    def configure(self, config: StoreConfig) -> None:
        """Applies settings that may change while running; sizes and paths do not change."""
        self.config = config
        self.log.configure(verify_property_crc=config.force_verify_prop_crc)
        if config.data_read_ahead_enable != self.log.files.read_ahead:
            self.log.files.set_read_ahead(config.data_read_ahead_enable)
        unflushed = not config.sync_flush and self.abort.record_unflushed_acknowledgements()
        if unflushed and self._maintenance is not None:
            self._maintenance.sync_abort_file()
        for part in (self.appender, self.reader, self.log_expiry, self.log_flusher, self.queue_flusher):
            part.configure(config)
        if self._maintenance is not None:
            self._maintenance.configure(config)
        self.visibility.configure(sync_flush=config.sync_flush)
        if self.light_queues is not None:
            self.light_queues.configure(queues_max=config.max_lmq_consume_queue_num)

    # Queues

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, created on demand. Raises ValueError for an invalid name."""
        return self.queues[topic, queue_id]

    def readable_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue for reads: empty for an invalid name."""
        return self.queues.readable(topic, queue_id)

    def when_queues_written(self, done: Callable[[], None]) -> None:
        """Calls `done` on the event loop when the present units of all queues are in their files, without a
        sync."""
        self.queue_flusher.write_all_then(done)

    def delete_topic(self, topic: str) -> int:
        """Removes the topic's queues; its messages stay in the log until it expires. Returns 1 if the topic
        had queues, otherwise 0."""
        return self.queues.delete_topics({topic})

    def clean_expired_consume_queues(self) -> int:
        """Empties the queues that have no message left in the log, and returns their number."""
        return self.queues.drop_expired(self.log.min_offset)

    # Replication

    def note_replicated_bytes(self) -> None:
        """Updates the state after the replica log writer has appended or dispatched bytes."""
        if self.dispatcher.last_timestamp > self.appender.last_timestamp:
            self.appender.last_timestamp = self.dispatcher.last_timestamp
        undispatched = self.dispatcher.position < self.log.max_offset
        if undispatched != self.state.has_undispatched:
            self.state.set_undispatched(undispatched)
        self.visibility.note_dispatch()

    def truncate(self, offset: int, *, torn: bool = False) -> None:
        """Truncates the log durably at the start of a record, and with it queues and index. `torn`: the
        caller knows that an incomplete record starts there. Raises ValueError if no record starts there, or
        OSError."""
        if offset >= self.log.max_offset:
            return
        undispatched = self.state.has_undispatched
        torn = torn or (undispatched and offset == self.dispatcher.position)
        first = offset == self.log.min_offset
        if not torn and not first and self.log.parse(offset, (), check_crc=True) is None:
            raise ValueError(f"the log cannot be truncated at {offset}: no record starts there")
        if self._maintenance is not None:
            self._maintenance.wait_idle()
        if first and self._log_extent is not None:
            self._log_extent.forget()
        # The log first: the next start truncates queues that are ahead of the log, but it does not always
        # complete queues that are behind it.
        try:
            self.queue_flusher.note_truncation(offset)
            self.log.truncate(offset)
            self.queues.truncate(offset)
        except OSError as error:
            self.state.report_sync_error(error)
            raise
        self.index.truncate(offset)
        self.log_flusher.note_truncation(offset)
        self.dispatcher.position = min(self.dispatcher.position, offset) if undispatched else offset
        self.visibility.note_truncation(offset)
        self.state.has_undispatched = self.dispatcher.position < offset
        self._lower_checkpoint()
        self.state.update()
        for listener in self.on_truncate:
            listener(offset)

    def _lower_checkpoint(self) -> None:
        """Lowers the checkpoint to the store time of the last message after a truncation."""
        newest = max(self.queues.values(), key=lambda queue: queue.max_physical, default=None)
        stored = 0
        if newest is not None and newest.max_offset > newest.min_offset:
            stored = max(self.reader.store_timestamp(newest, newest.max_offset - 1), 0)
        checkpoint = self.checkpoint
        checkpoint.physic_msg_timestamp = min(checkpoint.physic_msg_timestamp, stored)
        checkpoint.logics_msg_timestamp = min(checkpoint.logics_msg_timestamp, stored)
        checkpoint.store()
        checkpoint.flush()

    def clear_log_doubt(self) -> None:
        """Records that the log lacks no acknowledged message any more: the missing bytes were received from a
        master, or this log now defines the group's content. `tail` does not change. Blocks on the disk; on
        any thread. Raises OSError."""
        self.abort.clear_inherited()

    # Offsets and usage

    @property
    def min_phy_offset(self) -> int:
        """Offset of the log's first byte, -1 in an empty log."""
        return self.log.min_offset

    @property
    def max_phy_offset(self) -> int:
        """Offset after the log's last byte."""
        return self.log.max_offset

    @property
    def flushed_where(self) -> int:
        """The physical offset up to which the log is on disk."""
        return self.log_flusher.flushed

    @property
    def unflushed_bytes(self) -> int:
        """Bytes of the log that are not on disk yet."""
        return self.log.max_offset - self.log_flusher.flushed

    @property
    def dispatch_behind_bytes(self) -> int:
        """Bytes of the log that are not dispatched, such as part of a record at its end."""
        return self.log.max_offset - self.dispatcher.position if self.state.has_undispatched else 0

    @property
    def disk_used_ratio(self) -> float:
        """Used share of the log's disk, 0 to 1, at the last measurement."""
        return self.log_expiry.use.log

    def _handle_flush(self, offset: int) -> None:
        self.visibility.note_flushed(offset)
        for listener in self.on_flush:
            listener(offset)


def _raise_file_limit() -> None:
    """Raises the soft limit of file descriptors to the hard one: each mapping may hold a descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
