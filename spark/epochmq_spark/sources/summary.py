"""`epochmq.summary`: the sums that audits compare, one pass over each byte of logs, queues and indexes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from epochmq_spark import schemas, store_layout
from epochmq_spark.checks.epoch_history import UNREAD
from epochmq_spark.decode.summary_rows import (
    BROKEN_MAX,
    SummaryRows,
    add_entries,
    add_index,
    add_records,
    add_spans,
    add_units,
)
from epochmq_spark.sources.consumequeue import queue_file_ranges, read_units
from epochmq_spark.sources.file_ranges import FileRange, FileRangeReader, ReplicaDataSource, split
from epochmq_spark.sources.index import IndexFileScan
from epochmq_spark.sources.log_chunks import ReadBuffer, chunks

_BUFFER = ReadBuffer()  # a worker reads one range at a time, and its pages are costly to get
LOG, QUEUE, INDEX = "log", "queue", "index"


class SummarySource(ReplicaDataSource):
    """Rows of `tables.SUMMARY`; `epochmq_spark.decode.summary_rows` says what they mean."""

    arrow_schema = schemas.SUMMARY

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "epochmq.summary"

    def reader(self, schema: StructType) -> SummaryReader:
        """Reads it."""
        return SummaryReader(self.replicas(), self.options)


class SummaryReader(FileRangeReader):
    """Ranges of logs, whole queue and index files."""

    splits = False

    def file_ranges(self, replica: store_layout.AuditedReplica) -> Iterator[FileRange]:
        """All files of a replica, logs in ranges."""
        there = store_layout.contents(replica.place)
        start = there.log[0].start if there.log else 0
        for file in there.log:
            whole = FileRange(replica.group, replica.name, file.place, file.start, file.size, 0, file.size)
            yield from split(whole, self._partition_bytes)
        for piece in queue_file_ranges(replica, there):
            yield piece.of(QUEUE, start)
        for file in there.index:
            whole = FileRange(replica.group, replica.name, file.place, file.start, file.size, 0, file.size)
            yield whole.of(INDEX, start)

    def batches(self, piece: FileRange) -> Iterator[pa.RecordBatch]:
        """Sums of a range."""
        out = SummaryRows(piece.group, piece.replica)
        try:
            if piece.kind == QUEUE:
                add_units(out, piece.topic, piece.queue_id, read_units(piece), piece.log_start)
            elif piece.kind == INDEX:
                _index(out, piece)
            else:
                for chunk in chunks(piece, _BUFFER):
                    add_records(out, chunk.data, chunk.rows, chunk.base)
                    add_spans(out, chunk.spans, chunk.base)
        except OSError as error:
            _unreadable(out, piece, error)
            if piece.kind == LOG:
                place = [piece.base + piece.begin], [piece.base + piece.end]
                out.add("span", *place, *([0],) * 4, detail=[UNREAD])
        if len(out):
            yield out.batch()


def _index(out: SummaryRows, piece: FileRange) -> None:
    file, broken = IndexFileScan(piece.place, piece.size), list[tuple[int, int]]()
    for part in file.entries():
        found = add_entries(out, part, piece.log_start)
        broken += found[: BROKEN_MAX - len(broken)]
    if file.count > 1:
        broken += file.lost(BROKEN_MAX)
        add_index(out, piece.place.rsplit("/", 1)[-1], (file.begin, file.end), broken)


def _unreadable(out: SummaryRows, piece: FileRange, error: Exception) -> None:
    nothing: Any = [0]
    said: list[str | None] = [f"{piece.place}: {error}"]
    out.add("file", [piece.base], [piece.base + piece.size], *(nothing,) * 4, detail=said)
