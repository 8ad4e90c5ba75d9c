"""Finds the end of the log after a stop or a crash, and repairs consume queues and index to agree with it
(CommitLog.recoverNormally, recoverAbnormally).

After a clean stop, reading starts at the last record for which a queue has a unit, and only later records are
dispatched. (RocketMQ reads the whole file around it, which costs seconds for each GiB. This store does so
only if that record is invalid.) After a crash, when the abort file exists, reading starts at the newest file
whose first message is older than the checkpoint. Every record is dispatched; queues and index skip those that
they have. After a crash of the machine the newest index file is gone, so reading starts no later than the end
of the index. If only the process was killed, no write is lost, and the abort file names a message before
which queues and index have everything: reading starts there. After either crash it starts no later than at
the last unit of a queue whose files go on behind an invalid unit, of which a bit may have flipped. A bit that
has flipped in the last unit of a queue is repaired from the record.

The first invalid or incomplete record ends the log. Log and queues are truncated there on disk, so that a
later crash cannot bring old bytes back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

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
from epochmq_store.queues.batch_consume_queue import BatchConsumeQueue
from epochmq_store.queues.consume_queue import ConsumeQueue
from epochmq_store.queues.consume_queues import ConsumeQueues
from epochmq_store.state_files.checkpoint import Checkpoint
from epochmq_store.store_config import RECORD_OVERHEAD_BYTES, StoreConfig

log = logging.getLogger(__name__)

READ_BYTES: Final = 1 << 20
READ_AHEAD_BYTES: Final = 8 << 20


class RecoveryResult(Struct, frozen=True):
    """The result of a recovery. Offsets are physical."""

    clean: bool
    start: int  # where reading started
    end: int  # the end of the log
    records: int  # number of records read
    last_record: int  # start of the last record, or where reading started


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


def read_bytes(file: MappedFile, at: int, count: int) -> bytes:
    """Reads bytes of a log file. Raises OSError with advice."""
    try:
        return file.pread(at, count)
    except OSError as error:
        raise OSError(
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
        forget_dispatched: Callable[[], None] = lambda: None,
    ) -> None:
        """`forget_dispatched` withdraws what the abort file says."""
        self._config = config
        self._log = log
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._dispatcher = dispatcher
        # The abort file may name a message of a DLedger log that is committed again after this start: its
        # unit is then in memory for a while, and a start after another kill must not take it for written.
        self._forget_dispatched = forget_dispatched
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
        if clean:
            start, dispatch_from = self._start_after_clean_stop()
        elif self._is_dispatched_until(dispatched_until) and self._have_last_units():
            start, dispatch_from = dispatched_until - self._log.header_bytes_at(dispatched_until), -1
        else:
            self._forget_dispatched()
            self._trim_unbacked_tails()
            start = self._start_after_crash(reindex=reindex)
            start, dispatch_from = min([start, *map(self._last_record, self._queues.cut)]), -1
        self._dispatcher.repairing = not clean
        check_crc = check_crc or self._config.check_crc_on_recover
        result = self._scan(start, dispatch_from=dispatch_from, clean=clean, check_crc=check_crc)
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
        checkpoint.logics_msg_timestamp = min(checkpoint.logics_msg_timestamp, stored)
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
        """Whether the log has a record at this offset, and queues, index and checkpoint exist. (A person may
        have removed them after the kill, so that they are built again.)"""
        if offset < self._log.min_offset or self._queues.damaged or self._queues.max_physical <= offset:
            return False
        if self._config.message_index_enable and not self._index.files:
            return False
        if not self._checkpoint.physic_msg_timestamp:
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

    def _scan(self, start: int, *, dispatch_from: int, clean: bool, check_crc: bool) -> RecoveryResult:
        """Reads records from `start` on and dispatches those that start at or after `dispatch_from`."""
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
                if last >= dispatch_from:
                    self._dispatcher.dispatch(parsed)
                position = last + parsed.size
                records += 1
            elif parsed == record.BLANK and (following := self._log.files.find(file.start + file.size)):
                file = following
                position = file.start
            else:
                if parsed == record.BLANK and self._log.is_closed(file):
                    position = file.start + file.size
                break
        return RecoveryResult(clean=clean, start=start, end=position, records=records, last_record=last)


def crash_recovery_start(config: StoreConfig, log: CommitLog, checkpoint: Checkpoint) -> MappedFile:
    """The newest log file whose first message is older than the checkpoint (isMappedFileMatchedRecover). The
    log has at least one file. Raises OSError."""
    safe = config.message_index_enable and config.message_index_safe
    until = checkpoint.min_timestamp_index if safe else checkpoint.min_timestamp
    for file in reversed(log.files.files):
        head = file.pread(log.header_bytes_at(file.start), record_layout.HEAD_V4.size)
        _, magic = record_layout.SIZE_AND_MAGIC.unpack_from(head)
        if magic not in (const.MAGIC_V1, const.MAGIC_V2):
            continue
        if 0 < record.store_timestamp_at(head, 0) <= until:
            return file
    return log.files.files[0]
