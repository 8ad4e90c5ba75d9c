"""Finds the end of the log after a stop or a crash, and repairs consume queues and index to agree with it
(CommitLog.recoverNormally, recoverAbnormally).

After a clean stop, reading starts at the last record for which a queue has a unit, and only later records are
dispatched. (RocketMQ reads the whole file around it, which costs seconds for each GiB. This store does so
only if that record is invalid.) After a crash, when the abort file exists, reading starts at the newest file
whose first message is older than the checkpoint. Every record is dispatched; queues and index skip those that
they have. After a crash of the machine the newest index file is gone, so reading starts no later than the end
of the index. If only the process was killed, no write is lost, and the abort file names a message before
which queues and index have everything: reading starts there. A bit that has flipped in the last unit of a
queue is repaired from the record.

A queue may have lost units of older records: its files go on behind an invalid unit, of which a bit may have
flipped, or the last file has no unit, or a file is missing. Then the records from its last unit on are read
before, for these queues only, unless the first of its messages that is read anyway continues it.

The first invalid or incomplete record ends the log. Log and queues are truncated there on disk, so that a
later crash cannot bring old bytes back. Where the log was flushed according to the checkpoint, and before the
message of the abort file, a crash has not torn it: a broken record there is damage, and reading continues
behind it (`old_records`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Set
from typing import Final, NamedTuple

from msgspec import Struct

from epochmq_formats.queue_unit import PRE_BLANK_SIZE
from epochmq_protocol import message_const as const
from epochmq_protocol import record_layout
from epochmq_store import record
from epochmq_store.appending.commit_log_dispatcher import CommitLogDispatcher
from epochmq_store.appending.expected_units import places_of
from epochmq_store.files.mapped_file import MappedFile
from epochmq_store.index.key_index import KeyIndex
from epochmq_store.log.commit_log import CommitLog
from epochmq_store.log.damaged_ranges import DamagedRanges
from epochmq_store.queues.batch_consume_queue import BatchConsumeQueue
from epochmq_store.queues.consume_queue import ConsumeQueue
from epochmq_store.queues.consume_queues import ConsumeQueues
from epochmq_store.queues.inner_batch import inner_batch_of
from epochmq_store.recovering.old_records import OldRecords
from epochmq_store.state_files.checkpoint import Checkpoint
from epochmq_store.store_config import RECORD_OVERHEAD_BYTES, StoreConfig

log = logging.getLogger(__name__)

READ_BYTES: Final = 1 << 20
READ_AHEAD_BYTES: Final = 8 << 20
NAMED_QUEUES_MAX: Final = 20
"""The queues that a line of the log names."""


class RecoveryResult(Struct, frozen=True):
    """The result of a recovery. Offsets are physical."""

    clean: bool
    start: int  # where reading started for all queues
    end: int  # the end of the log
    records: int  # number of records read
    last_record: int  # start of the last record, or where reading started


class _Walked(NamedTuple):
    """Up to where records were read. Offsets are physical."""

    end: int
    records: int
    last_record: int


class ReadAhead:
    """Reads bytes by `pread` before they are parsed through a mapping. On an unreadable sector `pread` raises
    an error, while the mapping would kill the process by SIGBUS. Afterwards the pages are in memory."""

    def __init__(self, margin: int) -> None:
        """`margin`: the size of the longest record, bytes."""
        self.margin = margin
        self._file: MappedFile | None = None
        self._start = 0
        self._end = 0
        self._bytes = b""  # of the file, from _start to _end

    def read(self, file: MappedFile, at: int) -> None:
        """Checks that a record at this position can be read. Raises OSError."""
        continues = file is self._file and self._start <= at <= self._end
        if continues and (at + self.margin <= self._end or self._end == file.size):
            return
        if not continues:
            self._file, self._start, self._end, self._bytes = file, at, at, b""
        stop = min(max(at + self.margin, self._end + READ_AHEAD_BYTES), file.size)
        pieces = [self._bytes[at - self._start :]]
        self._start = at
        while self._end < stop:
            count = min(stop - self._end, READ_BYTES)
            piece = read_bytes(file, self._end, count)
            pieces.append(piece.ljust(count, b"\0"))
            self._end += count
        self._bytes = b"".join(pieces)

    def is_written(self, at: int) -> bool:
        """Whether the position given to the last `read` has the beginning of a record, and not of a hole,
        which a mapping must not touch."""
        return any(self._bytes[at - self._start : at - self._start + record_layout.SIZE_AND_MAGIC.size])


class SectorError(OSError):
    """Bytes of the log cannot be read."""


def read_bytes(file: MappedFile, at: int, count: int) -> bytes:
    """Reads bytes of a log file. Raises SectorError with advice."""
    try:
        return file.pread(at, count)
    except OSError as error:
        raise SectorError(
            error.errno,
            f"{file.path} cannot be read between {at} and {at + count} ({error.strerror}). Replace the disk, "
            "and restore the directory from a backup or from another replica",
        ) from error


class Recovery:
    """One recovery. Log, queues and index are loaded; the index without files that a crash may have
    damaged."""

    def __init__(
        self,
        *,
        config: StoreConfig,
        log: CommitLog,
        queues: ConsumeQueues,
        index: KeyIndex,
        checkpoint: Checkpoint,
        dispatcher: CommitLogDispatcher,
        damage: DamagedRanges | None = None,
        forget_dispatched: Callable[[], None] = lambda: None,
    ) -> None:
        """`damage` gets what is found damaged. `forget_dispatched` withdraws what the abort file says."""
        self._config = config
        self._log = log
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._dispatcher = dispatcher
        # The abort file may name a message of a DLedger log that is committed again after this start: its
        # unit is then in memory for a while, and a start after another kill must not take it for written.
        self._forget_dispatched = forget_dispatched
        self._for_all_from = 0  # earlier records are for the queues that lost units only
        self._cut: frozenset[ConsumeQueue] = frozenset()
        self._old = OldRecords(
            log, queues, DamagedRanges() if damage is None else damage, config.delays_ms, self
        )
        self._ahead = ReadAhead(config.max_message_size + RECORD_OVERHEAD_BYTES)

    def run(
        self,
        *,
        clean: bool,
        killed: bool = False,
        check_crc: bool = False,
        reindex: bool = False,
        dispatched_until: int = -1,
    ) -> RecoveryResult:
        """Recovers. `killed`: the machine has kept running since the last run, which cannot have lost a file.
        `check_crc` checks checksums even if the settings do not. `reindex` says that the index
        may lack its newest file. `dispatched_until` is what the abort file says after a kill, -1 without it.
        Raises DiskFullError, StoreDamagedError or OSError."""
        if not self._log.files.files:
            nothing = RecoveryResult(clean=clean, start=0, end=0, records=0, last_record=0)
            self._forget_dispatched()
            self._lower_checkpoint(nothing)
            self._queues.destroy()
            return nothing
        flushed_until = self._checkpoint.physic_msg_timestamp
        self._log.delete_files_after_gap(None if clean or killed or not flushed_until else flushed_until)
        clean = clean and not self._queues.damaged
        dispatched_start, dispatch_from = -1, -1
        if self._is_record(dispatched_until):
            dispatched_start = dispatched_until - self._log.header_bytes_at(dispatched_until)
        if clean:
            start, dispatch_from = self._start_after_clean_stop()
        elif dispatched_start >= 0 and self._is_dispatched_until(dispatched_until):
            start = dispatched_start
        else:
            self._forget_dispatched()
            if self._queues.cut:
                self._checkpoint.withdraw_queues()
            self._trim_unbacked_tails()
            start = self._start_after_crash(reindex=reindex)
        self._for_all_from = max(start, dispatch_from)
        self._find_cut_queues(start)
        self._dispatcher.repairing = not clean
        # The log cannot be torn before.
        trusted = max(start, dispatched_start, self._flushed_until(start))
        old = self._read_old_records(min([start, *map(self._last_record, self._cut)]), trusted)
        check_crc = check_crc or self._config.check_crc_on_recover
        found = self._scan(trusted, check_crc=check_crc)
        result = RecoveryResult(
            clean=clean,
            start=start,
            end=found.end,
            records=found.records + old.records,
            last_record=found.last_record if found.records else max(old.last_record, start),
        )
        self._dispatcher.repairing = False
        if clean:
            self._mend_last_units(result.end)
        self._lower_checkpoint(result)
        self._log.truncate(result.end)
        # Also for queues that end before the log's end: old units after a queue's end must not come back.
        self._queues.truncate(result.end)
        self._index.truncate(result.end)
        self._queues.correct_min_offsets(self._log.min_offset)
        self._dispatcher.position = result.end
        return result

    def _lower_checkpoint(self, found: RecoveryResult) -> None:
        """Lowers the checkpoint of queues and index to the last record that was read, before what they have
        of later ones is removed. A DLedger log may get such records back, when they are committed after the
        start. They are then in memory for a while, and a broker that starts after a kill, EpochMQ's or
        RocketMQ's, must not take them for written."""
        stored = max(self._log.store_timestamp(found.last_record), 0) if found.records else 0
        checkpoint = self._checkpoint
        # The queues that lost units have them in memory only.
        checkpoint.logics_msg_timestamp = 0 if self._cut else min(checkpoint.logics_msg_timestamp, stored)
        checkpoint.index_msg_timestamp = min(checkpoint.index_msg_timestamp, stored)
        if checkpoint.store():
            checkpoint.flush()

    def _start_after_clean_stop(self) -> tuple[int, int]:
        """The offset at which reading starts, and the end of the last record that a queue has a unit for."""
        newest = max(self._queues.values(), key=lambda queue: queue.max_physical, default=None)
        if newest is None or newest.max_offset == 0:
            return self._log.min_offset, -1
        unit = newest.unit(newest.max_offset - 1)
        dispatched = newest.max_physical
        if unit is not None:
            self._read_before_mapping(unit[0])
            last = self._log.parse(unit[0], self._config.delays_ms, check_crc=True)
            if isinstance(last, record.DispatchRequest) and unit[0] + last.size == dispatched:
                return unit[0] - self._log.header_bytes_at(unit[0]), dispatched
        for file in reversed(self._log.files.files):
            if file.start <= dispatched:
                return file.start, dispatched
        return self._log.min_offset, dispatched

    def _is_dispatched_until(self, offset: int) -> bool:
        """Whether queues, index and checkpoint exist, and all queues end with a record's unit. (A person may
        have removed them after the kill, so that they are built again.)"""
        if self._queues.damaged or self._queues.max_physical <= offset:
            return False
        if self._config.message_index_enable and not self._index.files:
            return False
        return self._checkpoint.physic_msg_timestamp > 0 and self._have_last_units()

    def _is_record(self, offset: int) -> bool:
        """Whether the log has a whole record at this offset."""
        if offset < self._log.min_offset:
            return False
        self._read_before_mapping(offset)
        return isinstance(
            self._log.parse(offset, self._config.delays_ms, check_crc=True), record.DispatchRequest
        )

    def _start_after_crash(self, *, reindex: bool) -> int:
        start = crash_recovery_start(self._config, self._log, self._checkpoint).start
        if reindex and self._config.message_index_enable:
            unindexed = self._log.files.find(max(self._index.end_physical, self._log.min_offset))
            if unindexed is not None:
                start = min(start, unindexed.start)
        return start

    def _flushed_until(self, start: int) -> int:
        """The start of a file of the log; everything before it was flushed. Read only if a file begins after
        `start`."""
        if self._log.files.files[-1].start <= start:
            return start
        return newest_file_before(self._log, self._checkpoint.log_timestamp).start

    def _find_cut_queues(self, start: int) -> None:
        """Finds the queues that lost units of records before `start`. A file that was new in a crash has no
        unit, too: then the queue's first record from `start` on continues it. Reads the log from there only
        if a queue may have lost units."""
        doubtful = {queue for queue in self._queues.cut if self._last_record(queue) < start}
        self._cut = frozenset(doubtful)
        if not doubtful:
            return

        def visit(message: record.DispatchRequest) -> bool:
            properties = self._properties(message)
            inner = inner_batch_of(properties)
            for topic, queue_id, offset in places_of(message, properties):
                queue = self._queues.get((topic, queue_id))
                if queue not in doubtful:
                    continue
                doubtful.remove(queue)
                if isinstance(queue, BatchConsumeQueue) and inner is not None:
                    offset = inner.base
                if offset == queue.max_offset:
                    self._cut -= {queue}
            return bool(doubtful)

        self._walk(start, visit, check_crc=False)
        if self._cut:
            self._forget_dispatched()
            self._checkpoint.withdraw_queues()
            names = sorted(f"{queue.topic}-{queue.queue_id}" for queue in self._cut)
            log.warning(
                "%d consume queues have lost units, and the log is read again for them: %s",
                len(names),
                ", ".join(names[:NAMED_QUEUES_MAX]),
            )

    def _properties(self, message: record.DispatchRequest) -> bytes:
        """The stored properties of a record of the log."""
        file = self._log.files.find(message.physical_offset)
        assert file is not None
        return record.properties_at(file.map, message.physical_offset - file.start, message.size)

    def queues_of(self, message: record.DispatchRequest) -> Set[ConsumeQueue] | None:
        """The queues that may lack the unit of a record; None for all."""
        return None if message.physical_offset >= self._for_all_from else self._cut

    def dispatch(self, message: record.DispatchRequest) -> None:
        """Dispatches a record to the queues that may lack its unit. Raises DiskFullError or OSError."""
        if message.physical_offset >= self._for_all_from:
            self._dispatcher.dispatch(message)
        elif self._cut:
            self._dispatcher.dispatch_to(message, self._cut)

    def _last_record(self, queue: ConsumeQueue) -> int:
        """Where the record of a queue's last unit begins; the start of the log without one. The queue lacks
        units of later records."""
        unit = queue.unit(queue.max_offset - 1) if queue.max_offset else None
        if unit is None or unit[0] < self._log.min_offset or self._log.files.find(unit[0]) is None:
            return self._log.min_offset
        return unit[0] - self._log.header_bytes_at(unit[0])

    def _read_before_mapping(self, offset: int) -> None:
        """Reads one record, or what stands in its place, as `ReadAhead` does."""
        file = self._log.files.find(offset)
        if file is None:
            return
        at = offset - file.start
        head = read_bytes(file, at, record_layout.HEAD_V4.size)
        if len(head) < record_layout.HEAD_V4.size:
            return
        size, _ = record_layout.SIZE_AND_MAGIC.unpack_from(head)
        if record_layout.HEAD_V4.size < size <= self._ahead.margin:
            read_bytes(file, at, size)

    def _trim_unbacked_tails(self) -> None:
        """Removes units without a record in the log from the end of every queue. Lost pages leave such units,
        and the last unit decides which records the queue accepts as new."""
        for queue in self._queues.values():
            kept = queue.max_offset
            while kept > queue.min_offset:
                unit = queue.unit(kept - 1)
                if unit is None:
                    break
                self._read_before_mapping(unit[0])
                found = self._log.parse(unit[0], self._config.delays_ms, check_crc=False)
                if (
                    isinstance(found, record.DispatchRequest)
                    and self._dispatcher.is_in_queue(queue, found)
                    and found.size == unit[1]
                ):
                    break
                kept -= 1
            queue.truncate_to(kept)

    def _have_last_units(self) -> bool:
        """Whether every queue ends with the unit of a record, after repairs of single bits that have flipped
        there. A queue that does not is `cut`, and its later records have to be read again."""
        newest = self._log.files.files[-1]
        end = newest.start + newest.size
        for queue in self._queues.values():
            if not queue.max_offset or isinstance(queue, BatchConsumeQueue):
                continue
            offset = queue.max_offset - 1
            unit = next(queue.units(offset, 1), None)
            if unit is None or unit[1] == PRE_BLANK_SIZE or 0 <= unit[0] < self._log.min_offset:
                continue
            found = self._record_in(queue, offset, unit[0])
            is_whole = found is not None and found.size == unit[1]
            if not is_whole and not self._mend_last_unit(queue, end):
                self._queues.cut.append(queue)
        return not self._queues.cut

    def _mend_last_units(self, end: int) -> None:
        """Repairs the last unit of a queue of which one bit has flipped, so that it leads out of the log.
        After a clean stop no unit does, unless the log has lost its end, or all messages of the queue have
        expired. Where the queue ends follows from this unit; the scrub repairs all others later."""
        for queue in self._queues.values():
            is_inside = self._log.min_offset < queue.max_physical <= end
            if queue.max_offset and not is_inside and not isinstance(queue, BatchConsumeQueue):
                self._mend_last_unit(queue, end)

    def _mend_last_unit(self, queue: ConsumeQueue, end: int) -> bool:
        """Whether the last unit of a queue was replaced: by one before `end` that differs from it in at most
        one bit of the position, and that the record there says."""
        offset = queue.max_offset - 1
        unit = next(queue.units(offset, 1), None)
        if unit is None:
            return False
        position = unit[0] & ((1 << 64) - 1)
        for physical in (position, *(position ^ (1 << bit) for bit in range(64))):
            found = self._record_in(queue, offset, physical) if physical < end else None
            if found is None:
                continue
            queue.repair(offset, physical, found.size, found.tags_code)
            queue.max_physical = physical + found.size
            log.warning(
                "the last unit of the consume queue %s-%d, at offset %d, was (position %d, size %d, code %d) "
                "and names no record of the log; it was replaced by (position %d, size %d, code %d)",
                queue.topic,
                queue.queue_id,
                offset,
                *unit,
                physical,
                found.size,
                found.tags_code,
            )
            return True
        return False

    def _record_in(self, queue: ConsumeQueue, offset: int, physical: int) -> record.DispatchRequest | None:
        """The record at this physical offset; None unless a whole one is there, with this place in the
        queue."""
        file = self._log.files.find(physical)
        if file is None or physical < self._log.min_offset:
            return None
        try:
            self._read_before_mapping(physical)
        except OSError:
            return None
        found = self._log.parse(physical, self._config.delays_ms, check_crc=True)
        if not isinstance(found, record.DispatchRequest):
            return None
        properties = record.properties_at(file.map, physical - file.start, found.size)
        return found if (queue.topic, queue.queue_id, offset) in places_of(found, properties) else None

    def _read_old_records(self, start: int, until: int) -> _Walked:
        """Dispatches the records of [start, until) of the log, where a crash has torn none: reading continues
        behind a broken one."""
        reached, last, records = start, -1, 0

        def visit(message: record.DispatchRequest) -> bool:
            nonlocal reached, last, records
            if message.physical_offset >= until:
                reached = until
                return False
            self._dispatch_after_damage(message)
            last = message.physical_offset
            reached = last + message.size
            records += 1
            return True

        while reached < until:
            with contextlib.suppress(SectorError):
                reached = self._walk(reached, visit, check_crc=False).end
            if reached < until:
                reached = self._old.read_file(reached, until)
        return _Walked(until, records + self._old.records, max(last, self._old.last_record))

    def _dispatch_after_damage(self, message: record.DispatchRequest) -> None:
        if self._old.found_damage:
            self._old.fill_gaps(message, self._properties(message))
        self.dispatch(message)

    def _scan(self, start: int, *, check_crc: bool) -> _Walked:
        """Dispatches the records from `start` on, up to the end of the log."""

        def visit(message: record.DispatchRequest) -> bool:
            self._dispatch_after_damage(message)
            return True

        return self._walk(start, visit, check_crc=check_crc)

    def _walk(
        self, start: int, visit: Callable[[record.DispatchRequest], bool], *, check_crc: bool
    ) -> _Walked:
        """Reads records from `start` on, until `visit` returns false, or up to the end of the log."""
        parse = self._log.parse_next
        delays_ms = self._config.delays_ms
        position = last = start
        records = 0
        file = self._log.files.find(start)
        while file is not None:
            at = position - file.start
            self._ahead.read(file, at)
            if not self._ahead.is_written(at):
                break
            parsed = parse(file, at, delays_ms, check_crc=check_crc)
            if isinstance(parsed, record.DispatchRequest):
                last = parsed.physical_offset
                position = last + parsed.size
                records += 1
                if not visit(parsed):
                    break
            elif parsed == record.BLANK and (following := self._log.files.find(file.start + file.size)):
                file = following
                position = file.start
            else:
                if parsed == record.BLANK and self._log.is_closed(file):
                    position = file.start + file.size
                break
        return _Walked(position, records, last)


def crash_recovery_start(config: StoreConfig, log: CommitLog, checkpoint: Checkpoint) -> MappedFile:
    """The newest log file whose first message is older than the checkpoint (isMappedFileMatchedRecover). The
    log has at least one file. Raises OSError."""
    safe = config.message_index_enable and config.message_index_safe
    return newest_file_before(log, checkpoint.min_timestamp_index if safe else checkpoint.min_timestamp)


def newest_file_before(log: CommitLog, until: int) -> MappedFile:
    """The newest log file whose first message was stored no later than `until`, epoch ms; the first file
    without one. Raises OSError."""
    for file in reversed(log.files.files):
        head = file.pread(log.header_bytes_at(file.start), record_layout.HEAD_V4.size)
        _, magic = record_layout.SIZE_AND_MAGIC.unpack_from(head)
        if magic not in (const.MAGIC_V1, const.MAGIC_V2):
            continue
        if 0 < record.store_timestamp_at(head, 0) <= until:
            return file
    return log.files.files[0]
