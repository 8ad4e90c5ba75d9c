"""Finding the end of the log after a stop or a crash, and making consume queues and index agree with it.

After a clean stop the files are what they should be: reading starts at the last record any queue knows, and
only what no queue knows is dispatched. (Java reads the whole file around it. Here that is done only when
the record is not sound: at start-up it would cost seconds for each GiB.) After a crash (the abort file is
there) reading starts at the newest file whose first message is older than everything the checkpoint vouches
for, and every record is dispatched; queues and index skip what they have. After a crash of the machine, which
takes the newest index file, it starts no later than the index ends. The first record that is not
whole and sound ends the log; it and all behind it is cut from log and queues, on disk too, so that a later
crash cannot bring it back (CommitLog.recoverNormally and recoverAbnormally).
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from epochmq_broker.store import record
from epochmq_broker.store.checkpoint import Checkpoint
from epochmq_broker.store.commit_log import CommitLog
from epochmq_broker.store.commit_log_dispatcher import CommitLogDispatcher
from epochmq_broker.store.consume_queues import ConsumeQueues
from epochmq_broker.store.key_index import KeyIndex
from epochmq_broker.store.mapped_file import MappedFile
from epochmq_broker.store.store_config import RECORD_OVERHEAD_BYTES, StoreConfig

READ_BYTES: Final = 1 << 20
READ_AHEAD_BYTES: Final = 8 << 20


class RecoveryResult(Struct, frozen=True):
    """What recovery found: physical offsets, and how many records it read and dispatched."""

    clean: bool
    start: int
    end: int
    records: int
    last_record: int  # start of the last record, or of the file reading began with


class ReadAhead:
    """Reads what is about to be parsed through a mapping, by read calls: on an unreadable sector these raise
    an error, where the mapping would end the process by SIGBUS. The pages are in memory afterwards."""

    def __init__(self, margin: int) -> None:
        """`margin`: the longest record, in bytes."""
        self.margin = margin
        self._file: MappedFile | None = None
        self._end = 0

    def read(self, file: MappedFile, at: int) -> None:
        """Makes sure that a record at this position can be read. Raises OSError."""
        if file is self._file and at + self.margin <= self._end:
            return
        if file is not self._file or at > self._end:
            self._file, self._end = file, at
        stop = min(max(at + self.margin, self._end + READ_AHEAD_BYTES), file.size)
        while self._end < stop:
            count = min(stop - self._end, READ_BYTES)
            try:
                file.pread(self._end, count)
            except OSError as error:
                raise OSError(
                    error.errno,
                    f"{file.path} cannot be read between {self._end} and {self._end + count} "
                    f"({error.strerror}). Replace the disk, and restore the directory from a backup or from "
                    "another replica",
                ) from error
            self._end += count


class Recovery:
    """One recovery; log, queues and index are loaded, the index without what a crash made doubtful."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: ConsumeQueues,
        index: KeyIndex,
        checkpoint: Checkpoint,
        dispatcher: CommitLogDispatcher,
    ) -> None:
        self._config = config
        self._log = log
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._dispatcher = dispatcher
        self._ahead = ReadAhead(config.max_message_size + RECORD_OVERHEAD_BYTES)

    def run(self, *, clean: bool, check_crc: bool = False, reindex: bool = False) -> RecoveryResult:
        """Recovers. `check_crc`: whatever the settings say. `reindex`: the index may have lost its newest
        file. Raises DiskFullError, StoreDamagedError or OSError."""
        if not self._log.files.files:
            self._queues.destroy()
            return RecoveryResult(clean=clean, start=0, end=0, records=0, last_record=0)
        self._log.mend(None if clean else self._checkpoint.physic_msg_timestamp)
        clean = clean and not self._queues.damaged
        if clean:
            start, behind = self._start_after_clean_stop()
        else:
            self._trim_unbacked_tail()
            start, behind = self._start_after_crash(reindex=reindex), -1
        self._dispatcher.repairing = not clean
        check_crc = check_crc or self._config.check_crc_on_recover
        found = self._scan(start, behind=behind, clean=clean, check_crc=check_crc)
        self._dispatcher.repairing = False
        self._log.truncate(found.end)
        # Also where queues end in front of the log's end: what lies behind a queue's end must not come back.
        self._queues.truncate(found.end)
        self._index.truncate(found.end)
        self._queues.correct_min_offsets(self._log.min_offset)
        self._dispatcher.position = found.end
        return found

    def _start_after_clean_stop(self) -> tuple[int, int]:
        """Where reading starts, and the end of the last record any queue knows."""
        newest = max(self._queues.values(), key=lambda queue: queue.max_physical, default=None)
        if newest is None or newest.max_offset == 0:
            return self._log.min_offset, -1
        unit = newest.unit(newest.max_offset - 1)
        known = newest.max_physical
        if unit is not None:
            self._read_before_mapping(unit[0])
            last = self._log.parse(unit[0], self._config.delays_ms, check_crc=True)
            if isinstance(last, record.DispatchRequest) and unit[0] + last.size == known:
                return unit[0], known
        for file in reversed(self._log.files.files):
            if file.start <= known:
                return file.start, known
        return self._log.min_offset, known

    def _start_after_crash(self, *, reindex: bool) -> int:
        start = crash_recovery_start(self._config, self._log, self._checkpoint).start
        if reindex and self._config.message_index_enable:
            unindexed = self._log.files.find(max(self._index.end_physical, self._log.min_offset))
            if unindexed is not None:
                start = min(start, unindexed.start)
        return start

    def _read_before_mapping(self, offset: int) -> None:
        file = self._log.files.find(offset)
        if file is not None:
            ReadAhead(self._ahead.margin).read(file, offset - file.start)

    def _trim_unbacked_tail(self) -> None:
        """Takes units from the end of every queue that stand for no record of the log: lost pages leave
        such, and the last unit decides what the queue takes for new."""
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
                    and (found.topic, found.queue_id) == (queue.topic, queue.queue_id)
                    and found.size == unit[1]
                ):
                    break
                kept -= 1
            queue.cut(kept)

    def _scan(self, start: int, *, behind: int, clean: bool, check_crc: bool) -> RecoveryResult:
        """Reads records from `start` on and dispatches those that begin at or behind `behind`."""
        parse = record.parse
        delays_ms = self._config.delays_ms
        position = last = start
        records = 0
        file = self._log.files.find(start)
        while file is not None:
            at = position - file.start
            self._ahead.read(file, at)
            if not any(file.pread(at, record.SIZE_AND_MAGIC.size)):
                break  # nothing was written here; it may be a hole, and is not looked at
            found = parse(file.map, at, file.size, position, delays_ms, check_crc=check_crc)
            if isinstance(found, record.DispatchRequest):
                last = position
                if position >= behind:
                    self._dispatcher.dispatch(found)
                position += found.size
                records += 1
            elif found == record.BLANK and (following := self._log.files.find(file.start + file.size)):
                file = following
                position = file.start
            else:
                break
        return RecoveryResult(clean=clean, start=start, end=position, records=records, last_record=last)


def crash_recovery_start(config: StoreConfig, log: CommitLog, checkpoint: Checkpoint) -> MappedFile:
    """The newest log file of which everything before its first message is safe (isMappedFileMatchedRecover);
    there is at least one file. Raises OSError."""
    safe = config.message_index_enable and config.message_index_safe
    until = checkpoint.min_timestamp_index if safe else checkpoint.min_timestamp
    for file in reversed(log.files.files):
        head = file.pread(0, record.HEAD_V4.size)
        _, magic = record.SIZE_AND_MAGIC.unpack_from(head)
        if magic not in (record.MAGIC_V1, record.MAGIC_V2):
            continue
        if 0 < record.store_timestamp_at(head, 0) <= until:
            return file
    return log.files.files[0]
