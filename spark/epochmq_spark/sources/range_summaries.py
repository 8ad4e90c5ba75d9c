"""Condenses a range of a log, a consume queue or an index into the rows of `epochmq.summary`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from epochmq_formats.dledger_log import INDEX_UNIT_SIZE
from epochmq_spark import files
from epochmq_spark.decode.entry_units import decode_entry_units
from epochmq_spark.decode.log_digests import LogDigests
from epochmq_spark.decode.queue_units import QueueUnits
from epochmq_spark.decode.state_values import DAY_MS
from epochmq_spark.decode.summary_rows import (
    BROKEN_MAX,
    EntryRows,
    SummaryKind,
    SummaryRows,
    add_bad_records,
    add_bad_times,
    add_digests,
    add_entries,
    add_entry_units,
    add_index,
    add_odd_times,
    add_spans,
    add_units,
    spans_of,
)
from epochmq_spark.log_spans import UNREAD, LogSpan
from epochmq_spark.sources.consumequeue import read_units
from epochmq_spark.sources.file_ranges import (
    ENTRY_INDEX_FILE,
    INDEX_FILE,
    LOG_FILE,
    QUEUE_FILE,
    FileRange,
)
from epochmq_spark.sources.index import IndexFileScan
from epochmq_spark.sources.log_chunks import ReadBuffer, read_chunks

SHARED_ROWS = 1000  # a batch that has so many is full
_BUFFER = ReadBuffer()  # shared: a worker reads one range at a time, and new pages are expensive


def summarise_ranges(ranges: Iterable[FileRange]) -> Iterator[pa.RecordBatch]:
    """The summary rows of ranges. Those of a replica's consume queues, of which there may be 100,000 with a
    row each, share batches: a batch costs as much as a hundred rows."""
    out: SummaryRows | None = None
    last: FileRange | None = None
    for one in ranges:
        if out is not None and (last is None or not _share_batches(last, one) or len(out) >= SHARED_ROWS):
            if len(out):
                yield out.batch()
            out = None
        if out is None:
            out = SummaryRows(one.group, one.replica)
        _add_range(out, one)
        last = one
    if out is not None and len(out):
        yield out.batch()


def _share_batches(one: FileRange, other: FileRange) -> bool:
    of_queues = one.file_kind == other.file_kind == QUEUE_FILE
    return of_queues and (one.group, one.replica) == (other.group, other.replica)


def _add_range(out: SummaryRows, file_range: FileRange) -> None:
    """Adds the rows of a range. If it cannot be read, there is a row UNREADABLE_FILE for its file. For a
    range of a log there is also a row SPAN with the detail UNREAD for the whole range, beside the rows of
    what was read before the error."""
    spans: list[LogSpan] = []
    try:
        if file_range.file_kind == QUEUE_FILE:
            units = read_units(file_range)
            add_units(out, file_range.topic, file_range.queue_id, units, file_range.log_start)
        elif file_range.file_kind == ENTRY_INDEX_FILE:
            add_entry_units(out, read_entry_units(file_range), file_range.log_start)
        elif file_range.file_kind == INDEX_FILE:
            _add_index_rows(out, file_range)
        else:
            _add_log_rows(out, file_range, spans)
    except OSError as error:
        _add_unreadable(out, file_range, error)
        if file_range.file_kind == LOG_FILE:
            begin, end = file_range.base + file_range.begin, file_range.base + file_range.end
            spans.append(LogSpan(begin, end, 0, 0, UNREAD))
    if spans:
        add_spans(out, spans)


def _add_log_rows(out: SummaryRows, file_range: FileRange, spans: list[LogSpan]) -> None:
    """Adds the rows of a range of a log but for its spans, which are appended to `spans`. If the range cannot
    be read to its end, there are the rows of what was read."""
    begin = max(file_range.begin - file_range.header_bytes, 0)  # a filler counts where it begins
    digests = LogDigests(file_range.base + begin, file_range.base + file_range.end)
    entries = EntryRows(out)
    latest_ms = int(time.time() * 1000) + DAY_MS
    try:
        for chunk in read_chunks(file_range, _BUFFER):
            digests.add(chunk.data, chunk.rows, chunk.base)
            add_bad_records(out, chunk.data, chunk.rows, chunk.base)
            add_bad_times(out, chunk.rows, chunk.base, latest_ms)
            if chunk.in_entries:
                entries.add(chunk.rows, chunk.base)
            spans += spans_of(chunk.spans, chunk.base)
    finally:
        add_digests(out, digests)
        entries.finish()


def read_entry_units(file_range: FileRange) -> QueueUnits:
    """The units of a range of an index file of DLedger. Raises OSError."""
    data = files.read_range(file_range.location, file_range.begin, file_range.end)
    return decode_entry_units(data, (file_range.base + file_range.begin) // INDEX_UNIT_SIZE)


def _add_index_rows(out: SummaryRows, file_range: FileRange) -> None:
    scan, broken = IndexFileScan(file_range.location, file_range.size), list[tuple[int, int]]()
    odd, name = 0, files.name_of(file_range.location)
    for part in scan.parts():
        odd += add_odd_times(out, name, part, scan.times_ms, file_range.log_start, BROKEN_MAX - odd)
        found = add_entries(out, part, file_range.log_start)
        broken += found[: BROKEN_MAX - len(broken)]
    if scan.count > 1:  # RocketMQ writes 1 into the header of an index file without entries
        broken += scan.orphaned_heads(BROKEN_MAX)
        add_index(out, name, (scan.low_offset, scan.high_offset), broken)


def _add_unreadable(out: SummaryRows, file_range: FileRange, error: Exception) -> None:
    zero: Any = [0]
    detail: list[str | None] = [f"{file_range.location}: {error}"]
    end = file_range.base + file_range.size
    out.add(SummaryKind.UNREADABLE_FILE, [file_range.base], [end], *(zero,) * 4, detail=detail)
