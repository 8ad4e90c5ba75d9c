"""Keeps the files of one compacted queue: log files with records and queue files with their units, in pairs
of the same name (CompactionLog.TopicPartitionLog, SparseConsumeQueue).

A file's name is the offset of its first byte in the compacted log; a pair has `log_bytes` of it. A record is
that of the commit log, except that its physical offset is the one in the compacted log. Units have the
format of batch consume queues. The last unit of a file that is not the last one marks the end. Queue offsets
rise, with gaps where older messages of a key were removed.

A pair that is not the last one is never written again. Every method waits for the disk and raises OSError.
The caller makes sure that one thread at a time uses it.
"""

from __future__ import annotations

import bisect
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from epochmq_broker.services.compaction.keyed_records import KeyedRecord, keyed_record
from epochmq_formats.batch_unit import END_UNIT, UNIT, UNIT_BYTES, BatchUnit
from epochmq_protocol.durable_files import sync_directory, sync_file
from epochmq_protocol.message_const import BLANK_MAGIC
from epochmq_protocol.record_layout import (
    BLANK_BYTES,
    LONG,
    PHYSICAL_OFFSET,
    PHYSICAL_OFFSET_AT,
    QUEUE_OFFSET,
    SIZE,
    SIZE_AND_MAGIC,
    fields_of_head,
)
from epochmq_store.files.mapped_file import StoreDamagedError

log = logging.getLogger(__name__)

NO_MESSAGE: Final = -1
_PLACE: Final = fields_of_head(SIZE, QUEUE_OFFSET, PHYSICAL_OFFSET)
_READ_BYTES: Final = 1 << 20
_NAME_DIGITS: Final = 20
_FILES_PER_LOG_MIN: Final = 5


class FileSizes(NamedTuple):
    """Bytes of each log file and of each queue file."""

    log: int
    queue: int


def file_sizes(log_bytes: int, queue_bytes: int) -> FileSizes:
    """The sizes for compactionMappedFileSize and compactionCqMappedFileSize (getCompactionLogSize): queue
    files hold whole units, and the size of log files is a multiple of theirs."""
    queue = queue_bytes // UNIT_BYTES * UNIT_BYTES
    multiple, rest = divmod(log_bytes, queue)
    if multiple < _FILES_PER_LOG_MIN:
        return FileSizes(_FILES_PER_LOG_MIN * queue, queue)
    return FileSizes((multiple if 0 < rest < queue >> 1 else multiple + 1) * queue, queue)


class FilePair:
    """A log file and its queue file. `end` is the position behind the last record in the log file."""

    __slots__ = ("end", "first", "last", "start", "units")

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = 0
        self.units = 0
        self.first = self.last = NO_MESSAGE  # queue offsets

    def add(self, first: int, last: int, units: int, end: int) -> None:
        """Counts records that were written at the end."""
        if self.first == NO_MESSAGE:
            self.first = first
        self.last, self.units, self.end = last, self.units + units, end

    @property
    def name(self) -> str:
        """The name of both files."""
        return f"{self.start:0{_NAME_DIGITS}d}"


class _Run:
    """Records that are written to the end of a pair together."""

    def __init__(self, pair: FilePair, sizes: FileSizes) -> None:
        self._sizes = sizes
        self._pair = pair
        self.records = bytearray()
        self.units = bytearray()
        self.first = self.last = NO_MESSAGE

    def take(self, record: KeyedRecord) -> bool:
        """Adds a record; False if it does not fit into the pair."""
        pair, size = self._pair, len(record.data)
        at = pair.end + len(self.records)
        used = pair.units * UNIT_BYTES + len(self.units)
        if used + UNIT_BYTES >= self._sizes.queue or at + size + BLANK_BYTES > self._sizes.log:
            return False
        start = len(self.records)
        self.records += record.data
        physical = pair.start + at
        LONG.pack_into(self.records, start + PHYSICAL_OFFSET_AT, physical)
        self.units += UNIT.pack(
            *BatchUnit(physical, size, record.tags_code, record.store_timestamp, record.queue_offset, 1)
        )
        if self.first == NO_MESSAGE:
            self.first = record.queue_offset
        self.last = record.queue_offset
        return True


class FilePairs:
    """The files of one queue in `log_directory` and `queue_directory`."""

    def __init__(self, log_directory: Path, queue_directory: Path, sizes: FileSizes) -> None:
        self.log_directory = log_directory
        self.queue_directory = queue_directory
        self.sizes = sizes
        self.pairs: list[FilePair] = []
        self._unsynced: dict[FilePair, None] = {}

    @property
    def min_offset(self) -> int:
        """Queue offset of the first message, NO_MESSAGE without messages."""
        return next((pair.first for pair in self.pairs if pair.units), NO_MESSAGE)

    @property
    def max_offset(self) -> int:
        """Queue offset after the last message, 0 without messages."""
        return next((pair.last + 1 for pair in reversed(self.pairs) if pair.units), 0)

    @property
    def max_physical(self) -> int:
        """Offset in the compacted log after its last record."""
        return self.pairs[-1].start + self.pairs[-1].end if self.pairs else 0

    # Opening

    def load(self, *, trusted: bool) -> None:
        """Opens the files. Unless `trusted`, the records of the last pair are compared with their units, and
        the pair ends before the first difference. A missing queue file is built from its log file. Raises
        StoreDamagedError for files of another size, and for a queue file without its log file."""
        self.pairs = []
        names = _file_names(self.log_directory)
        if names and not (self.log_directory / names[-1]).stat().st_size:
            (self.log_directory / names.pop()).unlink()
        for name in _file_names(self.queue_directory):
            if name not in names:
                self._check_leftover(name)
        for name in names:
            pair = FilePair(int(name))
            self._check_size(self.log_directory / name, self.sizes.log, "compactionMappedFileSize")
            queue_file = self.queue_directory / name
            if not queue_file.exists() or not queue_file.stat().st_size:
                self._rebuild_units(pair)
            self._check_size(queue_file, self.sizes.queue, "compactionCqMappedFileSize")
            if name == names[-1]:
                self._find_end(pair, compare=not trusted)
            else:
                self._count_units(pair)
            self.pairs.append(pair)

    def _check_leftover(self, name: str) -> None:
        """Removes an empty queue file without a log file."""
        path = self.queue_directory / name
        if any(unit.follows(None) for unit in self.units(FilePair(int(name)), 0, 1)):
            raise StoreDamagedError(
                f"{path} has units, but {self.log_directory / name} with their records is missing: "
                f"restore it, or remove {self.log_directory} and {self.queue_directory}"
            )
        path.unlink()

    @staticmethod
    def _check_size(path: Path, expected: int, key: str) -> None:
        found = path.stat().st_size
        if found != expected:
            raise StoreDamagedError(f"{path} has {found} bytes, expected {expected} ({key})")

    def _count_units(self, pair: FilePair) -> None:
        """Finds the end of a complete pair: its units are followed by the end mark or zeros only."""
        with (self.queue_directory / pair.name).open("rb", buffering=0) as file:

            def unit(number: int) -> BatchUnit:
                data = os.pread(file.fileno(), UNIT_BYTES, number * UNIT_BYTES)
                return BatchUnit._make(UNIT.unpack(data))

            numbers = range(self.sizes.queue // UNIT_BYTES)
            count = bisect.bisect_left(numbers, True, key=lambda number: not unit(number).follows(None))
            if count:
                last = unit(count - 1)
                pair.add(unit(0).base, last.base, count, last.physical - pair.start + last.size)

    def _find_end(self, pair: FilePair, *, compare: bool) -> None:
        """Finds the end of the last pair: before the first unit that does not follow its predecessor, or with
        `compare` whose record differs."""
        last: BatchUnit | None = None
        for unit in self.units(pair, 0, self.sizes.queue // UNIT_BYTES):
            at = unit.physical - pair.start
            if not unit.follows(last) or not 0 <= at <= self.sizes.log - unit.size:
                break
            if compare and not self._is_record(pair, unit):
                log.warning("%s lacks the record at %d, it ends there", self.log_directory / pair.name, at)
                break
            pair.add(unit.base, unit.base, 1, at + unit.size)
            last = unit

    def _is_record(self, pair: FilePair, unit: BatchUnit) -> bool:
        data = self.read(pair, unit.physical - pair.start, unit.size)
        if len(data) < _PLACE.size:
            return False
        return bool(_PLACE.unpack_from(data) == (unit.size, unit.base, unit.physical))

    def _rebuild_units(self, pair: FilePair) -> None:
        """Builds a queue file from its log file."""
        log.warning("%s is built again from its log file", self.queue_directory / pair.name)
        units = bytearray()
        for record in records_of_file(self.log_directory / pair.name, pair.start):
            physical = LONG.unpack_from(record.data, PHYSICAL_OFFSET_AT)[0]
            units += UNIT.pack(
                *BatchUnit(
                    physical,
                    len(record.data),
                    record.tags_code,
                    record.store_timestamp,
                    record.queue_offset,
                    1,
                )
            )
        self._create(self.queue_directory / pair.name, self.sizes.queue)
        _write_at(self.queue_directory / pair.name, 0, units)
        self._unsynced[pair] = None

    # Reading

    def find(self, queue_offset: int) -> tuple[FilePair, int] | None:
        """The pair and the number of the first unit at or after this queue offset."""
        for pair in self.pairs:
            if pair.units and pair.last >= queue_offset:
                return pair, self._first_unit(pair, queue_offset)
        return None

    def _first_unit(self, pair: FilePair, queue_offset: int) -> int:
        with (self.queue_directory / pair.name).open("rb", buffering=0) as file:

            def base(number: int) -> int:
                return BatchUnit._make(
                    UNIT.unpack(os.pread(file.fileno(), UNIT_BYTES, number * UNIT_BYTES))
                ).base

            return bisect.bisect_left(range(pair.units), queue_offset, key=base)

    def units(self, pair: FilePair, first: int, count: int) -> Iterator[BatchUnit]:
        """Up to `count` units of the queue file from this number on, whatever they hold."""
        step = _READ_BYTES // UNIT_BYTES
        while count > 0:
            found = self._read_units(pair, first, min(count, step))
            yield from map(BatchUnit._make, UNIT.iter_unpack(found))
            if not found:
                return
            first += len(found) // UNIT_BYTES
            count -= len(found) // UNIT_BYTES

    def _read_units(self, pair: FilePair, first: int, count: int) -> bytes:
        with (self.queue_directory / pair.name).open("rb", buffering=0) as file:
            found = os.pread(file.fileno(), count * UNIT_BYTES, first * UNIT_BYTES)
        return found[: len(found) // UNIT_BYTES * UNIT_BYTES]

    def read(self, pair: FilePair, at: int, size: int) -> bytes:
        """Bytes of the log file."""
        with (self.log_directory / pair.name).open("rb", buffering=0) as file:
            return os.pread(file.fileno(), size, at)

    def records(self, pair: FilePair) -> Iterator[tuple[BatchUnit, bytes]]:
        """The units of a pair with their records."""
        path = self.log_directory / pair.name
        with path.open("rb", buffering=_READ_BYTES) as file:
            for unit in self.units(pair, 0, pair.units):
                file.seek(unit.physical - pair.start)
                yield unit, file.read(unit.size)

    # Writing

    def append(self, records: Iterable[KeyedRecord]) -> None:
        """Writes the records whose queue offset is after the last one; creates pairs as needed."""
        newest = self.max_offset - 1
        run: _Run | None = None
        for record in records:
            if record.queue_offset <= newest:
                continue
            newest = record.queue_offset
            if len(record.data) + BLANK_BYTES > self.sizes.log:
                log.error(
                    "the message at queue offset %d has %d bytes and does not fit into a file of %s",
                    record.queue_offset,
                    len(record.data),
                    self.log_directory,
                )
                continue
            if run is None:
                run = _Run(self.pairs[-1] if self.pairs else self._add_pair(0), self.sizes)
            if not run.take(record):
                last = self.pairs[-1]
                self._write(last, run)
                self._write_end(last)
                run = _Run(self._add_pair(last.start + self.sizes.log), self.sizes)
                run.take(record)
        if run is not None:
            self._write(self.pairs[-1], run)

    def _write(self, pair: FilePair, run: _Run) -> None:
        if not run.records:
            return
        _write_at(self.log_directory / pair.name, pair.end, run.records)
        _write_at(self.queue_directory / pair.name, pair.units * UNIT_BYTES, run.units)
        pair.add(run.first, run.last, len(run.units) // UNIT_BYTES, pair.end + len(run.records))
        self._unsynced[pair] = None

    def _write_end(self, pair: FilePair) -> None:
        """Marks a pair as complete."""
        _write_at(self.queue_directory / pair.name, pair.units * UNIT_BYTES, END_UNIT)
        blank = SIZE_AND_MAGIC.pack(self.sizes.log - pair.end, BLANK_MAGIC)
        _write_at(self.log_directory / pair.name, pair.end, blank)

    def _add_pair(self, start: int) -> FilePair:
        pair = FilePair(start)
        self._create(self.log_directory / pair.name, self.sizes.log)
        self._create(self.queue_directory / pair.name, self.sizes.queue)
        self.pairs.append(pair)
        return pair

    @staticmethod
    def _create(path: Path, size: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(size)

    def sync(self) -> None:
        """Makes everything that was written durable."""
        if not self._unsynced:
            return
        pairs, self._unsynced = list(self._unsynced), {}
        for pair in pairs:
            for directory in (self.log_directory, self.queue_directory):
                if (directory / pair.name).exists():
                    sync_file(directory / pair.name)
        for directory in (self.log_directory, self.queue_directory):
            sync_directory(directory)

    def truncate_to(self, queue_offset: int) -> None:
        """Removes the messages at and after this queue offset; what is removed becomes zeros."""
        while self.pairs and len(self.pairs) > 1 and self.pairs[-1].first >= queue_offset:
            self._delete(self.pairs.pop())
        if not self.pairs or self.pairs[-1].last < queue_offset:
            return
        pair = self.pairs[-1]
        kept = self._first_unit(pair, queue_offset)
        end = pair.end
        if kept < pair.units:
            end = next(self.units(pair, kept, 1)).physical - pair.start
        last = next(self.units(pair, kept - 1, 1)).base if kept else NO_MESSAGE
        for path, keep, size in (
            (self.queue_directory / pair.name, kept * UNIT_BYTES, self.sizes.queue),
            (self.log_directory / pair.name, end, self.sizes.log),
        ):
            os.truncate(path, keep)
            os.truncate(path, size)
        pair.units, pair.end, pair.last = kept, end, last
        if not kept:
            pair.first = NO_MESSAGE
        self._unsynced[pair] = None

    def delete_all(self) -> None:
        """Deletes all files."""
        while self.pairs:
            self._delete(self.pairs.pop())

    def _delete(self, pair: FilePair) -> None:
        self._unsynced.pop(pair, None)
        for directory in (self.queue_directory, self.log_directory):
            (directory / pair.name).unlink(missing_ok=True)

    def forget_unsynced(self, pairs: Iterable[FilePair]) -> None:
        """Does not sync these pairs any more, because their files are gone."""
        for pair in pairs:
            self._unsynced.pop(pair, None)


def records_of_file(path: Path, start: int) -> Iterator[KeyedRecord]:
    """The records of a log file whose first byte has the offset `start`, up to its blank or first damage."""
    with path.open("rb", buffering=_READ_BYTES) as file:
        at = start
        while True:
            head = file.read(SIZE_AND_MAGIC.size)
            if len(head) < SIZE_AND_MAGIC.size:
                return
            size, magic = SIZE_AND_MAGIC.unpack(head)
            if magic == BLANK_MAGIC or size <= SIZE_AND_MAGIC.size:
                return
            data = head + file.read(size - len(head))
            found = keyed_record(data, at)
            if found is None:
                return
            yield found
            at += size


def _file_names(directory: Path) -> list[str]:
    """The names of the pairs' files, in order."""
    if not directory.is_dir():
        return []
    return sorted(
        path.name
        for path in directory.iterdir()
        if len(path.name) == _NAME_DIGITS and path.name.isdecimal() and path.is_file()
    )


def _write_at(path: Path, at: int, data: bytes | bytearray) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            written = os.pwrite(descriptor, view, at)
            view, at = view[written:], at + written
    finally:
        os.close(descriptor)
