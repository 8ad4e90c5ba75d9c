"""Reads all logs, consume queues and index files of a replica once, and returns the digests that the audit
compares: the data source `epochmq.summary`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from epochmq_protocol.dledger import INDEX_UNIT_SIZE
from epochmq_spark import files, schemas, store_layout
from epochmq_spark.decode.entry_units import decode_entry_units
from epochmq_spark.decode.log_digests import LogDigests
from epochmq_spark.decode.queue_units import QueueUnits
from epochmq_spark.decode.summary_rows import (
    BROKEN_MAX,
    EntryRows,
    SummaryKind,
    SummaryRows,
    add_bad_records,
    add_digests,
    add_entries,
    add_entry_units,
    add_index,
    add_spans,
    add_units,
    spans_of,
)
from epochmq_spark.log_spans import UNREAD, LogSpan
from epochmq_spark.sources.consumequeue import queue_file_ranges, read_units
from epochmq_spark.sources.file_ranges import (
    ENTRY_INDEX_FILE,
    INDEX_FILE,
    LOG_FILE,
    QUEUE_FILE,
    FileRange,
    FileRangeReader,
    ReplicaDataSource,
    split_range,
)
from epochmq_spark.sources.index import IndexFileScan
from epochmq_spark.sources.log_chunks import ReadBuffer, read_chunks

ENTRY_INDEX_BYTES = INDEX_UNIT_SIZE << 20  # of an index file of DLedger read at a time
_BUFFER = ReadBuffer()  # shared: a worker reads one range at a time, and new pages are expensive


class SummarySource(ReplicaDataSource):
    """Rows of `schemas.SUMMARY`; `epochmq_spark.decode.summary_rows` defines their kinds."""

    arrow_schema = schemas.SUMMARY

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "epochmq.summary"

    def reader(self, schema: StructType) -> SummaryReader:
        """The reader."""
        return SummaryReader(self.replicas(), self.options)


class SummaryReader(FileRangeReader):
    """Reads ranges of logs and consume queues, and whole index files."""

    may_split = False
    """`file_ranges` returns ranges of the right size already."""

    def file_ranges(self, replica: store_layout.AuditedReplica) -> Iterator[FileRange]:
        """All files of a replica. Logs and consume queues are split into ranges, index files are not."""
        contents = store_layout.scan_store(replica.location)
        log_start = contents.log[0].start if contents.log else 0
        for file in contents.log:
            yield from split_range(FileRange.of(replica, file), self._partition_bytes)
        for queue_range in queue_file_ranges(replica, contents):
            yield queue_range.of_file_kind(QUEUE_FILE, log_start)
        for file in contents.index:
            yield FileRange.of(replica, file).of_file_kind(INDEX_FILE, log_start)
        for file in contents.entry_index:
            for units in split_range(FileRange.of(replica, file), ENTRY_INDEX_BYTES):
                yield units.of_file_kind(ENTRY_INDEX_FILE, log_start)

    def batches(self, file_range: FileRange) -> Iterator[pa.RecordBatch]:
        """The summary rows of a range. If a range cannot be read, there is a row UNREADABLE_FILE for
        its file. For a range of a log there is also a row SPAN with the detail UNREAD for the whole range,
        beside the rows of what was read before the error."""
        out = SummaryRows(file_range.group, file_range.replica)
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
        add_spans(out, spans)
        if len(out):
            yield out.batch()


def _add_log_rows(out: SummaryRows, file_range: FileRange, spans: list[LogSpan]) -> None:
    """Adds the rows of a range of a log but for its spans, which are appended to `spans`. If the range cannot
    be read to its end, there are the rows of what was read."""
    begin = max(file_range.begin - file_range.header_bytes, 0)  # a filler counts where it begins
    digests = LogDigests(file_range.base + begin, file_range.base + file_range.end)
    entries = EntryRows(out)
    try:
        for chunk in read_chunks(file_range, _BUFFER):
            digests.add(chunk.data, chunk.rows, chunk.base)
            add_bad_records(out, chunk.data, chunk.rows, chunk.base)
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
    for part in scan.parts():
        found = add_entries(out, part, file_range.log_start)
        broken += found[: BROKEN_MAX - len(broken)]
    if scan.count > 1:  # RocketMQ writes 1 into the header of an index file without entries
        broken += scan.orphaned_heads(BROKEN_MAX)
        name = files.name_of(file_range.location)
        add_index(out, name, (scan.low_offset, scan.high_offset), broken)


def _add_unreadable(out: SummaryRows, file_range: FileRange, error: Exception) -> None:
    zero: Any = [0]
    detail: list[str | None] = [f"{file_range.location}: {error}"]
    end = file_range.base + file_range.size
    out.add(SummaryKind.UNREADABLE_FILE, [file_range.base], [end], *(zero,) * 4, detail=detail)
