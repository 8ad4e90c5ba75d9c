"""The store of one broker: opening and closing a directory, and the way to everything in it
(DefaultMessageStore).

`load` opens and recovers (no event loop needed), `start` begins background work on the running loop, `stop`
ends it and leaves a directory that needs no recovery. All methods are called on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
from collections.abc import Callable
from pathlib import Path

from epochmq_broker.store.abort_file import AbortFile
from epochmq_broker.store.appender import Appender
from epochmq_broker.store.arrival_listeners import ArrivalListeners
from epochmq_broker.store.checkpoint import Checkpoint
from epochmq_broker.store.commit_log import CommitLog
from epochmq_broker.store.commit_log_dispatcher import CommitLogDispatcher
from epochmq_broker.store.consume_queue import ConsumeQueue
from epochmq_broker.store.consume_queues import ConsumeQueues
from epochmq_broker.store.fsync_failure import FsyncFailure, is_descriptor_shortage
from epochmq_broker.store.key_index import KeyIndex
from epochmq_broker.store.lock_file import LockFile
from epochmq_broker.store.log_expiry import LogExpiry
from epochmq_broker.store.log_flusher import LogFlusher, sync_all
from epochmq_broker.store.maintenance import StoreMaintenance
from epochmq_broker.store.mapped_file import DiskFullError, as_disk_full
from epochmq_broker.store.message_reader import MessageReader
from epochmq_broker.store.queue_flusher import QueueFlusher
from epochmq_broker.store.queue_lookup import QueueLookup
from epochmq_broker.store.recovery import Recovery, RecoveryResult
from epochmq_broker.store.replica_log_writer import ReplicaLogWriter
from epochmq_broker.store.statuses import PutStatus, RunningFlags
from epochmq_broker.store.store_config import StoreConfig
from epochmq_broker.store.suspect_rewrite import rewrite_suspect_files
from epochmq_broker.store.tail_state import CLEAN_TAIL, TailState
from epochmq_protocol.durable_files import replace_file

log = logging.getLogger(__name__)

CLEAN_QUEUES = "queues.clean"  # holds the time of the lock file at a clean stop
LOOPBACK_HOST = b"\x7f\0\0\x01\0\0\x2a\x9f"  # 127.0.0.1:10911


class MessageStore:
    """What the broker sees. The verbs that carry the load are its parts' own, bound once:

    - `append`, `append_batch`: see `Appender`;
    - `get`, `max_offset` (what readers may see of a queue), `query`: see `MessageReader`;
    - `existing_queue`, `topics`, `offset_by_time`, `store_time`, `earliest_time`, `position`: see
      `QueueLookup`;
    - `read`: see `CommitLog`; `when_flushed`: see `LogFlusher`; `on_arrival`: see `ArrivalListeners`;
    - `delete_expired_files`: see `LogExpiry.request`.
    """

    def __init__(self, config: StoreConfig, store_host: bytes = LOOPBACK_HOST) -> None:
        """`store_host` is this broker's address and port, encoded; new records carry it."""
        self.config = config
        self.flags = RunningFlags(0)
        root = config.root
        self.log = CommitLog(config.commit_log_dir, config.mapped_file_size_commit_log)
        self.queues = ConsumeQueues(root / "consumequeue", config.mapped_file_size_consume_queue)
        self.index = KeyIndex(root / "index", config.max_hash_slot_num, config.max_index_num)
        self.appender = Appender(self.log, self.index, config, store_host)
        self.reader = MessageReader(self.log, self.index, config)
        index = self.index if config.message_index_enable else None
        self.dispatcher = CommitLogDispatcher(self.log, self.queues, index, config.delays_ms)
        self.replica_log = ReplicaLogWriter(self.log, self.dispatcher)
        self.expiry = LogExpiry(self.log, config)
        self.on_arrival = ArrivalListeners(self._bind_arrivals, lambda: self.log.max_offset)
        self.on_flush: list[Callable[[int], None]] = []  # called with how far the log is on disk
        self.on_failure: list[Callable[[], None]] = []  # called when an fsync has failed
        self.on_expire: list[Callable[[int], None]] = []  # called with the log's new first offset
        self.append = self.appender.append
        self.append_batch = self.appender.append_batch
        self.get = self.reader.get
        self.max_offset = self.reader.max_offset
        self.query = self.reader.query
        self.queue_lookup = QueueLookup(self.queues, self.reader)
        self.existing_queue = self.queue_lookup.existing_queue
        self.topics = self.queue_lookup.topics
        self.offset_by_time = self.queue_lookup.offset_by_time
        self.store_time = self.queue_lookup.store_time
        self.earliest_time = self.queue_lookup.earliest_time
        self.position = self.queue_lookup.position
        self.read = self.reader.read
        self.delete_expired_files = self.expiry.request
        self.appender.refuse = PutStatus.SERVICE_NOT_AVAILABLE
        self.appender.on_failure = self._put_failed
        self.appender.on_index_backlog = self._index_is_behind
        self.tail = CLEAN_TAIL  # what the end of the log may lack since the life before; set by `load`
        self.abort = AbortFile(root / "abort")
        self.sync_failure = FsyncFailure(self.abort.flush_failed)
        self._lock: LockFile | None = None
        self._maintenance: StoreMaintenance | None = None
        self.recovery_start = 0  # where recovery began to read: what is before was flushed
        self.confirm_offset_at_load = 0  # what the checkpoint said before recovery
        self._queues_zeroed = False  # nothing but zeros lies behind the units of each queue
        self._behind = False  # the log ends with a part of a record, received from another replica
        self._confirmed: int | None = None  # what readers may see for replication's sake, None for all

    # Life

    def load(self) -> RecoveryResult:
        """Locks, opens and recovers the directory; messages can be put and read then. Raises
        StoreLockedError, StoreDamagedError, DiskFullError or OSError, the directory being closed again."""
        root = self.config.root
        _raise_file_limit()
        for directory in (root, self.config.commit_log_dir, self.queues.directory, self.index.directory):
            directory.mkdir(parents=True, exist_ok=True)
        zeroed = _queues_are_zeroed(root)
        self._lock = LockFile(root / "lock")
        (root / CLEAN_QUEUES).unlink(missing_ok=True)
        self._queues_zeroed = zeroed
        try:
            while True:
                try:
                    return self._load()
                except (DiskFullError, OSError) as error:
                    if isinstance(error, OSError) and not isinstance(as_disk_full(error), DiskFullError):
                        raise
                    # As at run time: what has expired, or must go on a full disk, makes room.
                    if not self._free_space():
                        raise
                    log.warning("the disk is full, expired files were removed to open the store: %s", error)
                    self._close_parts()
                    self.abort.abandon()
        except BaseException:
            self._close_files()
            self.abort.abandon()
            raise

    def _free_space(self) -> bool:
        """Removes the log files that go now; False when there is none. There are fewer each time."""
        self.expiry.measure()
        expired = self.expiry.expired()
        for file in expired:
            log.info("%s has expired", file.path)
            file.delete()
        return bool(expired)

    def _load(self) -> RecoveryResult:
        root = self.config.root
        self.tail = self.abort.look()
        clean, killed = self.tail is CLEAN_TAIL, self.tail.only_killed
        self.log.load()
        self.checkpoint = Checkpoint(root / "checkpoint")
        # From here on files are changed, and a start that ends half way is not a clean stop.
        self.abort.begin(self.tail, acknowledges_unflushed=not self.config.sync_flush)
        if self.tail.cache_suspect:
            log.warning("an fsync failed in this boot: writing what it may have lost to %s again", root)
            rewrite_suspect_files(self.config, self.log, self.checkpoint)
            self.abort.flushes_again()
        self.queues.load(zeroed=clean and self._queues_zeroed)
        trusted = None if clean or killed else self.checkpoint.index_msg_timestamp
        self.index.load(trusted_until=trusted, killed=killed)
        recovery = Recovery(self.config, self.log, self.queues, self.index, self.checkpoint, self.dispatcher)
        found = recovery.run(clean=clean, check_crc=self.tail.cache_suspect, reindex=trusted is not None)
        self.appender.build_index(again=True)
        stored = self.log.store_timestamp(found.last_record) if found.records else 0
        self.appender.last_timestamp = max(stored, 0)
        self.recovery_start = found.start
        self.confirm_offset_at_load = self.checkpoint.confirm_phy_offset
        # As Java leaves it: the start of the last message, read by nobody outside controller and
        # duplication mode.
        self.checkpoint.confirm_phy_offset = found.last_record
        self.log_flusher = LogFlusher(
            self.log, self.appender, self.checkpoint, self.config, self.sync_failure
        )
        self.queue_flusher = QueueFlusher(
            self.queues, self.appender, self.checkpoint, self.config, self.sync_failure
        )
        self.log_flusher.on_failure = self.queue_flusher.on_failure = self.report_fsync_failure
        self.queue_flusher.on_full = self._put_failed
        self.log_flusher.on_flushed = self._flushed
        self.when_flushed = self.log_flusher.when_flushed
        if not clean:
            # What a killed process left may be in memory only.
            self.queues.mark_unsynced()
            self._flush_log()
        for file in self.log.files.files:
            file.flushed = file.wrote
        self.log_flusher.flushed = self.log.max_offset
        self._show()
        self._apply_flags()
        self.abort.recovered()
        log.info(
            "the store in %s is open after a %s (end of the log: %s): %d records read, the log ends at %d",
            root,
            "clean stop" if clean else "crash",
            self.tail.state.name,
            found.records,
            found.end,
        )
        return found

    def _flush_log(self) -> None:
        # The kernel reports a loss once: the next start must hear of it from the abort file.
        sync_all([(file, file.wrote) for file in self.log.files.files], self.sync_failure)

    def start(self) -> None:
        """Begins flushing, expiry and working ahead, on the running loop."""
        self._maintenance = StoreMaintenance(self, asyncio.get_running_loop())
        self._maintenance.start()

    def stop(self) -> None:
        """Ends background work, flushes everything and closes the directory. After a failed fsync the abort
        file stays, so that the next start recovers. Raises nothing that would keep the lock."""
        if self._lock is None:
            return
        self.appender.refuse = PutStatus.SERVICE_NOT_AVAILABLE
        if self._maintenance is not None:
            self._maintenance.stop()
            self._maintenance = None
        clean = self._flush_all()
        self.log_flusher.stop()
        try:
            self.index.close()
        except (OSError, DiskFullError) as error:
            clean = False
            self._sync_failed(error)
            log.error("the index could not be closed cleanly: %s", error)
        if clean and not self._behind:
            self._note_zeroed_queues()
        self._close_files()
        if clean and not self._behind:
            self.abort.remove()
        self.abort.close()
        log.info(
            "the store in %s is closed%s",
            self.config.root,
            "" if clean else ", to be recovered at the next start",
        )

    def _note_zeroed_queues(self) -> None:
        """For the next start, unless a RocketMQ broker has the directory before: it locks the file too, which
        changes its time, and does not zero what it cuts."""
        root = self.config.root
        try:
            modified = (root / "lock").stat().st_mtime_ns
            replace_file(root / CLEAN_QUEUES, str(modified).encode())
        except OSError as error:
            log.warning("the next start will read all consume queues: %s", error)

    def _flush_all(self) -> bool:
        """Flushes log, queues and checkpoint for good; False when something is not on disk."""
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
        self.log.files.close()
        self.log.file = None
        for file in self.index.files:
            file.close()
        self.index.files = []
        self.index.waiting.clear()

    def configure(self, config: StoreConfig) -> None:
        """Takes over settings that may change while running; sizes and paths stay as they were."""
        self.config = config
        if not config.sync_flush and self.abort.acknowledges_unflushed() and self._maintenance is not None:
            self._maintenance.sync_abort_file()
        for part in (self.appender, self.reader, self.expiry, self.log_flusher, self.queue_flusher):
            part.configure(config)
        self._show()

    # Queues

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made on demand. Raises ValueError for a name that cannot be one."""
        return self.queues[topic, queue_id]

    # Replication

    def append_raw(self, start: int, data: bytes) -> int:
        """Writes bytes of another replica's log at the end of this one, which is where they must belong,
        and dispatches the records that are whole; how many. Raises ValueError, DiskFullError or OSError."""
        self.log.append_raw(start, data)
        if not self._behind:
            # What was put here itself is dispatched; behind a blank record the position is ahead already.
            self.dispatcher.position = max(self.dispatcher.position, start)
        count = self.dispatcher.catch_up()
        self.note_replicated_bytes()
        return count

    def note_replicated_bytes(self) -> None:
        """The log has grown, or what is dispatched of it, other than by a put."""
        behind = self.dispatcher.position < self.log.max_offset
        if self.dispatcher.last_timestamp > self.appender.last_timestamp:
            self.appender.last_timestamp = self.dispatcher.last_timestamp
        if behind != self._behind:
            self._behind = behind
            self._apply_flags()

    def truncate(self, offset: int, *, torn: bool = False) -> None:
        """Cuts the log, with queues and index, at the start of a record; what was cut does not come back
        after a crash. `torn`: the caller knows that a record starts there which is not whole. Raises
        ValueError when no record starts there, or OSError."""
        if offset >= self.log.max_offset:
            return
        torn = torn or (self._behind and offset == self.dispatcher.position)
        first = offset == self.log.min_offset
        if not torn and not first and self.log.parse(offset, (), check_crc=True) is None:
            raise ValueError(f"no record starts at {offset}")
        if self._maintenance is not None:
            self._maintenance.settle()
        # The log first: queues that know more than the log are cut at the next start, queues that know less
        # are not always completed.
        try:
            self.log.truncate(offset)
            self.queues.truncate(offset)
        except OSError as error:
            self._sync_failed(error)
            raise
        self.index.truncate(offset)
        self.log_flusher.truncated(offset)
        self.on_arrival.forget()
        self.dispatcher.position = min(self.dispatcher.position, offset) if self._behind else offset
        self._behind = self.dispatcher.position < offset
        self._pull_back_checkpoint()
        if self._confirmed is not None:
            self._confirmed = min(self._confirmed, offset)
        self._show()
        self._apply_flags()

    def set_confirm_offset(self, offset: int | None) -> None:
        """Lets readers see messages that end at or before this physical offset (the confirm offset), None
        for all."""
        if offset != self._confirmed:
            self._confirmed = offset
            self._show()

    def read_visible(self, offset: int) -> bytes | None:
        """The record that starts at this physical offset, None when there is none that readers may see."""
        limit = self.reader.limit
        found = self.read(offset)
        return None if found is None or (limit is not None and offset + len(found) > limit) else found

    # What the broker reports

    @property
    def min_phy_offset(self) -> int:
        """First byte of the log, -1 when it is empty."""
        return self.log.min_offset

    @property
    def max_phy_offset(self) -> int:
        """Behind the last byte of the log."""
        return self.log.max_offset

    @property
    def flushed_where(self) -> int:
        """How far the log is on disk."""
        return self.log_flusher.flushed

    @property
    def dispatch_behind_bytes(self) -> int:
        """Bytes of the log that are in no queue yet: part of a record at its end."""
        return self.log.max_offset - self.dispatcher.position if self._behind else 0

    @property
    def tail_state(self) -> TailState:
        """What the end of the log may lack since the life before."""
        return self.tail.state

    @property
    def may_lack_acknowledged(self) -> bool:
        """Whether bytes may be missing that were acknowledged in the life before."""
        return self.tail.may_lack_acknowledged

    def clear_log_doubt(self) -> None:
        """What the log lacked at its start is there again (a master's confirmed bytes were received), or this
        log is now the group's own: the next crash starts from INTACT. `tail` stays what it was. Blocks on the
        disk; on any thread. Raises OSError."""
        self.abort.clear_inherited()

    @property
    def writable(self) -> bool:
        """Whether puts are taken."""
        return self.appender.refuse is None

    def set_flag(self, flag: RunningFlags, on: bool) -> None:
        """Sets or clears a reason not to read or write."""
        self.flags = self.flags | flag if on else self.flags & ~flag
        self._apply_flags()

    @property
    def unflushed_bytes(self) -> int:
        """Bytes of the log that are not on disk yet."""
        return self.log.max_offset - self.log_flusher.flushed

    @property
    def disk_used_ratio(self) -> float:
        """Used share of the log's disk, 0 to 1, as last measured."""
        return self.expiry.use.log

    def when_queues_written(self, done: Callable[[], None]) -> None:
        """Calls `done` on the loop once the consume queues are in their files, as far as they are now; not
        synced."""
        self.queue_flusher.write_all_then(done)

    def delete_topic(self, topic: str) -> int:
        """Removes the topic's queues; its messages stay in the log until it expires. 1 if it had any, else
        0."""
        return self.queues.delete_topics({topic})

    def clean_expired_consume_queues(self) -> int:
        """Empties queues none of whose messages is left; how many."""
        return self.queues.drop_expired(self.log.min_offset)

    def report_fsync_failure(self, error: OSError) -> None:
        """An fsync has failed: no more writes until the store has been recovered."""
        log.critical("fsync failed, no more messages are taken: %s", error)
        self.sync_failure.report(error)
        self.set_flag(RunningFlags.FLUSH_FAILED, True)
        for listener in self.on_failure:
            listener()

    def _sync_failed(self, error: OSError | DiskFullError) -> None:
        """Something that syncs files has failed; a full disk or too few descriptors are no failed fsync."""
        if isinstance(error, OSError) and not is_descriptor_shortage(error):
            self.report_fsync_failure(error)

    def _put_failed(self, error: OSError | DiskFullError) -> None:
        log.error("a message found no space: %s", error)
        if isinstance(error, DiskFullError):
            self.set_flag(RunningFlags.DISK_FULL, True)

    def _index_is_behind(self) -> None:
        log.error("no more messages are taken: %d wait for the index", len(self.index.waiting))
        self.set_flag(RunningFlags.WRITE_INDEX_FILE_ERROR, True)

    def _apply_flags(self) -> None:
        reasons = self.flags & ~RunningFlags.NOT_READABLE
        refused = bool(reasons) or self._behind
        self.appender.refuse = PutStatus.SERVICE_NOT_AVAILABLE if refused else None

    def _bind_arrivals(self, listener: Callable[[ConsumeQueue, int, int], None] | None) -> None:
        self.appender.on_append = self.dispatcher.on_append = listener

    def _show(self) -> None:
        sync_flush = self.config.sync_flush
        limit = self._confirmed
        if sync_flush:
            flushed = self.log_flusher.flushed
            limit = flushed if limit is None else min(limit, flushed)
        self.reader.limit = limit
        # With sync flush what nobody waits for is flushed soon too: readers wait.
        self.on_arrival.wake = self.log_flusher.wake if sync_flush else None
        self.on_arrival.hold(limit is not None)
        if limit is not None:
            self.on_arrival.release(limit)

    def _flushed(self, offset: int) -> None:
        if self.config.sync_flush:
            limit = offset if self._confirmed is None else min(offset, self._confirmed)
            self.reader.limit = limit
            self.on_arrival.release(limit)
        for listener in self.on_flush:
            listener(offset)

    def _pull_back_checkpoint(self) -> None:
        """The checkpoint must not vouch for later times than the log now ends with."""
        newest = max(self.queues.values(), key=lambda queue: queue.max_physical, default=None)
        stored = 0
        if newest is not None and newest.max_offset > newest.min_offset:
            stored = max(self.reader.store_timestamp(newest, newest.max_offset - 1), 0)
        checkpoint = self.checkpoint
        checkpoint.physic_msg_timestamp = min(checkpoint.physic_msg_timestamp, stored)
        checkpoint.logics_msg_timestamp = min(checkpoint.logics_msg_timestamp, stored)
        checkpoint.store()
        checkpoint.flush()


def _raise_file_limit() -> None:
    """A mapped file holds a descriptor, and there is one for each queue: the soft limit is raised to the
    hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _queues_are_zeroed(root: Path) -> bool:
    """Whether the last broker that had the directory was one of ours, and stopped cleanly."""
    try:
        return int((root / CLEAN_QUEUES).read_bytes()) == (root / "lock").stat().st_mtime_ns
    except (OSError, ValueError):
        return False
