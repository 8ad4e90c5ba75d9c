"""Compares blocks, buckets and epoch starts record by record, by reading the records again from each
replica."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from epochmq_formats.dledger_log import ENTRY_HEADER_SIZE, FILLER_SIZE_MIN, INDEX_UNIT_SIZE
from epochmq_formats.queue_unit import UNIT_BYTES
from epochmq_protocol.epoch_entries import OFFSET_MAX
from epochmq_spark import files, store_layout, topic_tables
from epochmq_spark.checks.consume_queues import (
    HoleRanges,
)
from epochmq_spark.checks.duplicate_messages import SentMessage, find_duplicates
from epochmq_spark.checks.entry_index import EntryLimits, EntryPlace, compare_entries
from epochmq_spark.checks.index_keys import IndexFileRange, KeyedMessage, compare_keys
from epochmq_spark.checks.log_extent import LogExtent
from epochmq_spark.checks.record_copies import RecordCopy, compare_records
from epochmq_spark.checks.two_histories import compare_histories
from epochmq_spark.decode import walk as w
from epochmq_spark.decode.entry_units import decode_entry_units
from epochmq_spark.decode.index_entries import entry_pairs
from epochmq_spark.decode.log_digests import BLOCK_BITS, BUCKET_BITS
from epochmq_spark.decode.summary_rows import text_of
from epochmq_spark.decode.unit_columns import decode_units
from epochmq_spark.findings import finding
from epochmq_spark.sources.file_ranges import FileRange
from epochmq_spark.sources.index import IndexFileScan
from epochmq_spark.sources.log_chunks import LogChunk, read_chunks

BLOCK_BYTES = 1 << BLOCK_BITS
UNITS_READ = 4096  # of a consume queue at a time, to find its first one
EPOCH_WINDOW_BYTES = 8 * 1024 * 1024  # of the log read on either side of the start of an epoch

Row = dict[str, Any]


@dataclass(frozen=True)
class AuditedLog:
    """A replica's log. Messages that end at or below `dispatched_end` must be in their consume queues.
    `last_index` is the index of the last entry of a DLedger log, -1 without one; what ends beyond
    `committed_end` may be in no index yet. A broker that was killed says that messages before `claimed_end`
    are in its queues, and does not read them again at its start."""

    replica: store_layout.AuditedReplica
    extent: LogExtent
    dispatched_end: int
    holes: tuple[tuple[int, int], ...]
    last_index: int = -1
    committed_end: int = OFFSET_MAX
    claimed_end: int = 0


@dataclass(frozen=True)
class IndexCoverage:
    """The first and the last physical offset in the headers of a replica's index files, and of its
    group's."""

    low: int
    high: int
    group_low: int
    group_high: int

    def expected(self, *, stopped: bool) -> tuple[int, int]:
        """The range in which all keys must be in the replica's index. A broker that stopped has there what
        others have. A running one may be writing the keys of its last message, or another file."""
        return (self.group_low, self.group_high) if stopped else (self.low, self.high - 1)


Listings = Mapping[str, store_layout.StoreContents]
"""Listings of stores, by location."""

_runs: list[str] = [""]  # the audit whose listings are cached
_listings: dict[str, store_layout.StoreContents] = {}  # those of the audit's driver


def start_task(run_id: str, listings: Callable[[], Listings] = dict) -> None:
    """Drops what was cached for another audit, and takes the driver's listings of this one. Tasks of one
    audit in one process share the listings."""
    if _runs[0] != run_id:
        clear_caches()
        _listings.update(listings())
        _runs[0] = run_id


def clear_caches() -> None:
    """Drops the cached directory listings: the next audit may find other files."""
    _runs[0] = ""
    _listings.clear()
    files.forget_opened()
    scan_store.cache_clear()
    queue_files_of.cache_clear()
    first_unit.cache_clear()
    topic_tables.topic_table.cache_clear()
    _index_parts.cache_clear()
    index_file_range.cache_clear()


def compare_block(group: str, number: int, logs: Sequence[AuditedLog]) -> list[Row]:
    """Findings of one block. A replica whose files cannot be read is left out and is a finding itself."""
    start, end = number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES
    copies: dict[str, list[RecordCopy]] = {}
    extents: dict[str, LogExtent] = {}
    unreadable = []
    for log in logs:
        name = log.replica.name
        try:
            copies[name] = read_copies(log, start, end)
        except OSError as error:
            unreadable.append(finding(group, name, "file.unreadable", detail=str(error)))
            continue
        extents[name] = log.extent
    if extents and not any(extent.with_epochs for extent in extents.values()):
        holes = {log.replica.name: log.holes for log in logs}
        return unreadable + compare_histories(group, copies, extents, holes)
    return unreadable + compare_records(group, copies, extents)


def compare_entry_bucket(log: AuditedLog, bucket: int, log_ranges: Sequence[tuple[int, int]]) -> list[Row]:
    """Findings of one bucket of entry indexes of a DLedger log, whose entries lie in these ranges (physical
    offsets of the first and the last record). Raises OSError."""
    contents = scan_store(log.replica.location)
    low, high = bucket << BUCKET_BITS, (bucket + 1) << BUCKET_BITS
    entries: dict[int, tuple[int, EntryPlace]] = {}
    for first, last in log_ranges:
        for chunk, row in messages_between(log, first, last + 1):
            if low <= (index := int(row[w.ENTRY_INDEX])) < high and chunk.in_entries:
                position = chunk.base + int(row[w.POSITION]) - ENTRY_HEADER_SIZE
                size = int(row[w.SIZE]) + ENTRY_HEADER_SIZE
                entries[position] = index, EntryPlace(position, size, int(row[w.ENTRY_TERM]))
    units: dict[int, EntryPlace] = {}
    for file in contents.entry_index:
        begin = max(low * INDEX_UNIT_SIZE - file.start, 0)
        end = min(high * INDEX_UNIT_SIZE - file.start, file.size)
        if begin < end:
            data = files.read_range(file.location, begin, end)
            part = decode_entry_units(data, (file.start + begin) // INDEX_UNIT_SIZE)
            columns = (part.offsets, part.physical, part.sizes, part.tags)
            for index, *place in zip(*(column.tolist() for column in columns), strict=True):
                units[index] = EntryPlace(*place)
    # A killed peer may have written the last entries, but not their units. Its next start writes them.
    unit_end = max(units, default=-1) if contents.aborted else log.last_index + 1
    limits = EntryLimits(log.extent.start, log.last_index, unit_end, HoleRanges(log.holes))
    who = log.replica.group, log.replica.name
    return compare_entries(who, list(entries.values()), units, limits)


def compare_index_block(log: AuditedLog, number: int, coverage: IndexCoverage) -> list[Row]:
    """Findings of the index entries that point into one block. Raises OSError."""
    contents = scan_store(log.replica.location)
    start, end = number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES
    messages = []
    for chunk, row in messages_between(log, start, end):
        if row[w.SYS_FLAG] & 0xC == 0xC or not (row[w.UNIQ_SIZE] or row[w.KEYS_SIZE]):
            continue
        if chunk.base + row[w.POSITION] + row[w.SIZE] > log.committed_end:
            continue
        messages.append(
            KeyedMessage(
                chunk.base + int(row[w.POSITION]),
                int(row[w.SIZE]),
                text_of(chunk.data, int(row[w.TOPIC_AT]), int(row[w.TOPIC_SIZE])),
                int(row[w.QUEUE_ID]),
                int(row[w.QUEUE_OFFSET]),
                text_in(chunk, row, w.UNIQ_AT),
                text_in(chunk, row, w.KEYS_AT),
                int(row[w.STORE_TIME]),
            )
        )
    entries: list[tuple[int, int]] = []
    for file in contents.index:
        entries += read_index_entries(file.location, file.size, max(start, log.extent.start), end)
    expected = coverage.expected(stopped=not contents.aborted)
    ranges = [index_file_range(file.location, file.size) for file in contents.index]
    return compare_keys(log.replica.group, log.replica.name, messages, entries, expected, ranges)


def check_epoch_starts(log: AuditedLog, epoch_starts: Sequence[tuple[int, int]]) -> list[Row]:
    """Findings around starts of epochs that are near each other, in ascending order (epoch, start): epochs
    that start inside a record, and messages that were stored again. Raises OSError."""
    who = log.replica.group, log.replica.name
    starts = [start for _, start in epoch_starts]
    sent: list[SentMessage] = []
    findings = []
    for chunk, row in messages_between(log, starts[0] - EPOCH_WINDOW_BYTES, starts[-1] + EPOCH_WINDOW_BYTES):
        physical = chunk.base + int(row[w.POSITION])
        size = int(row[w.SIZE])
        inside = epoch_starts[bisect_right(starts, physical) : bisect_left(starts, physical + size)]
        findings += [
            finding(
                *who,
                "epoch.inside-record",
                epoch=epoch,
                start_offset=start,
                detail=f"the record starts at {physical}",
            )
            for epoch, start in inside
        ]
        if row[w.UNIQ_SIZE]:
            sent.append(
                SentMessage(
                    physical,
                    size,
                    text_of(chunk.data, int(row[w.TOPIC_AT]), int(row[w.TOPIC_SIZE])),
                    int(row[w.QUEUE_ID]),
                    int(row[w.QUEUE_OFFSET]),
                    text_in(chunk, row, w.UNIQ_AT) or "",
                    int(row[w.BODY_SIZE]),
                    int(row[w.STORE_TIME]),
                )
            )
    return findings + find_duplicates(*who, epoch_starts, sent, EPOCH_WINDOW_BYTES)


def store_time(log: AuditedLog, offset: int) -> int | None:
    """The store time of the message at an offset, or in the entry at an offset, in epoch ms; None if none
    starts there, or if it cannot be read."""
    try:
        return next(
            (
                int(row[w.STORE_TIME])
                for chunk, row in messages_between(log, offset, offset + ENTRY_HEADER_SIZE + 1)
                if chunk.base + row[w.POSITION] - (ENTRY_HEADER_SIZE if chunk.in_entries else 0) == offset
            ),
            None,
        )
    except OSError:
        return None


@lru_cache(maxsize=4096)
def scan_store(location: str) -> store_layout.StoreContents:
    """The files of a store that had a log, as the audit's driver has listed them. Raises OSError if it has
    none any more."""
    contents = _listings.get(location) or store_layout.scan_store(location)
    if not contents.log:
        raise OSError("; ".join(f"{fault.location}: {fault.detail}" for fault in contents.faults))
    return contents


@lru_cache(maxsize=256)
def queue_files_of(location: str) -> dict[tuple[str, int], Sequence[store_layout.DataFile]]:
    """The files of a store's consume queues, by topic and queue id. Raises OSError as `scan_store`."""
    return {(one.topic, one.queue_id): one.files for one in scan_store(location).queues}


@lru_cache(maxsize=65_536)
def first_unit(location: str, topic: str, queue_id: int, log_start: int) -> tuple[int, int] | None:
    """(queue offset, physical offset) of the first unit of a store's queue that leads into the log; None
    without one. Raises OSError."""
    for part in sorted(queue_files_of(location).get((topic, queue_id), ()), key=lambda one: one.start):
        for at in range(0, part.size, UNITS_READ * UNIT_BYTES):
            data = files.read_range(part.location, at, min(at + UNITS_READ * UNIT_BYTES, part.size))
            units = decode_units(data, (part.start + at) // UNIT_BYTES)
            live = (units.physical >= log_start).nonzero()[0]
            if len(live):
                return int(units.offsets[live[0]]), int(units.physical[live[0]])
    return None


def read_log(log: AuditedLog, start: int, end: int) -> Iterator[LogChunk]:
    """The records that start in [start, end) and in the log's extent. Raises OSError."""
    replica = log.replica
    start, end = max(start, log.extent.start), min(end, log.extent.end)
    for file in scan_store(replica.location).log:
        begin, stop = max(start - file.start, 0), min(end - file.start, file.size)
        if begin < stop:
            yield from read_chunks(FileRange.of(replica, file, begin, stop))


def read_copies(log: AuditedLog, start: int, end: int) -> list[RecordCopy]:
    """One replica's records in a range, with their bytes. Raises OSError."""
    copies = []
    for chunk in read_log(log, start, end):
        for row in chunk.rows:
            at = int(row[w.POSITION])
            raw = bytes(chunk.data[at : at + int(row[w.SIZE])])
            blank = bool(row[w.MAGIC] == w.BLANK)
            header = b""
            if chunk.in_entries and blank:
                raw = raw[:FILLER_SIZE_MIN]  # the rest is not written, so old bytes may be there
            elif chunk.in_entries:
                header = bytes(chunk.data[at - ENTRY_HEADER_SIZE : at])
            copies.append(RecordCopy(chunk.base + at, raw, bool(row[w.CRC_OK]), blank, header))
    return copies


def messages_between(log: AuditedLog, start: int, end: int) -> Iterator[tuple[LogChunk, Any]]:
    """The messages of a log that start in a range."""
    for chunk in read_log(log, start, end):
        for row in chunk.rows:
            if row[w.MAGIC] != w.BLANK:
                yield chunk, row


def text_in(chunk: LogChunk, row: Any, column: int) -> str | None:
    return text_of(chunk.data, int(row[column]), int(row[column + 1])) if row[column + 1] else None


@lru_cache(maxsize=256)
def index_file_range(location: str, size: int) -> IndexFileRange:
    """The physical offsets that the header of an index file names. Raises OSError."""
    scan = IndexFileScan(location, size)
    return IndexFileRange(scan.low_offset, scan.high_offset, scan.is_full)


@lru_cache(maxsize=256)
def _index_parts(location: str, size: int) -> tuple[tuple[int, int, int], ...]:
    """For each part of an index file: the number of its first entry, the lowest and the highest physical
    offset. Raises OSError."""
    scan, parts = IndexFileScan(location, size), []
    for first in scan.part_starts():
        _, physical = entry_pairs(scan.read_part(first))
        parts.append((first, int(physical.min()), int(physical.max())))
    return tuple(parts)


def read_index_entries(location: str, size: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """(hash, physical offset) of the entries of an index file that point into [start, end). Raises
    OSError."""
    numbers = [first for first, low, high in _index_parts(location, size) if low < end and high >= start]
    if not numbers:
        return
    scan = IndexFileScan(location, size)
    for first in numbers:
        hashes, physical = entry_pairs(scan.read_part(first))
        inside = (physical >= start) & (physical < end)
        yield from zip(hashes[inside].tolist(), physical[inside].tolist(), strict=True)
