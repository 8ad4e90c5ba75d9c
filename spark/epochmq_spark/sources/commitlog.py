"""Reads commit logs as rows, one for each message and each blank record: the data source `epochmq.commitlog`.

The column `body` is null unless the option `body=true` asks for it.

With the option `pushFilters=true`, filters restrict what is read. It is off by default, because Spark rejects
a source with filter push-down if the session does not allow it
(`spark.sql.python.filterPushdown.enabled`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from epochmq_protocol.epoch_entries import OFFSET_MAX
from epochmq_spark import schemas, store_layout
from epochmq_spark.decode import walk as w
from epochmq_spark.decode.message_columns import bodies, born_times, hosts, properties, timestamps
from epochmq_spark.sources.file_ranges import FileRange, FileRangeReader, ReplicaDataSource
from epochmq_spark.sources.log_chunks import LogChunk, read_chunks

Array = Any


class CommitLogSource(ReplicaDataSource):
    """Rows of `schemas.RECORDS`."""

    arrow_schema = schemas.RECORDS

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "epochmq.commitlog"

    def reader(self, schema: StructType) -> CommitLogReader:
        """The reader; with `pushFilters=true` one that accepts filters."""
        filtering = self.options.get("pushFilters", "false").lower() == "true"
        reader = FilteringCommitLogReader if filtering else CommitLogReader
        return reader(self.replicas(), self.options)


class CommitLogReader(FileRangeReader):
    """Reads the segments of replicas, from `_low` to below `_high`."""

    def __init__(self, replicas: Sequence[store_layout.AuditedReplica], options: Mapping[str, str]) -> None:
        super().__init__(replicas, options)
        self._low, self._high = 0, OFFSET_MAX
        self._with_body = options.get("body", "false").lower() == "true"

    def file_ranges(self, replica: store_layout.AuditedReplica) -> Iterator[FileRange]:
        """The segments, restricted to the wanted offsets."""
        for file in store_layout.scan_store(replica.location).log:
            begin = min(max(self._low - file.start, 0), file.size)
            end = min(max(self._high - file.start, 0), file.size)
            if begin < end:
                yield FileRange.of(replica, file, begin, end)

    def batches(self, file_range: FileRange) -> Iterator[pa.RecordBatch]:
        """The records of a range."""
        for chunk in read_chunks(file_range):
            if len(chunk.rows):
                yield batch_of(file_range, chunk, with_body=self._with_body)


class FilteringCommitLogReader(CommitLogReader):
    """Accepts filters on group, replica and physical_offset."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Applies the filters on replicas and offsets; returns the others, which Spark applies."""
        for condition in filters:
            if not self._apply(condition):
                yield condition

    def _apply(self, condition: Filter) -> bool:
        name, value = getattr(condition, "attribute", None), getattr(condition, "value", None)
        if name == ("physical_offset",) and isinstance(value, int):
            match condition:
                case GreaterThan():
                    self._low = max(self._low, value + 1)
                case GreaterThanOrEqual():
                    self._low = max(self._low, value)
                case LessThan():
                    self._high = min(self._high, value)
                case LessThanOrEqual():
                    self._high = min(self._high, value + 1)
                case EqualTo():
                    self._low, self._high = max(self._low, value), min(self._high, value + 1)
                case _:
                    return False
            return True
        if isinstance(condition, EqualTo) and name in (("replica",), ("group",)):
            wanted = "name" if name == ("replica",) else "group"
            self._replicas = [replica for replica in self._replicas if getattr(replica, wanted) == value]
            return True
        return False


def batch_of(file_range: FileRange, chunk: LogChunk, *, with_body: bool = False) -> pa.RecordBatch:
    """A chunk as an Arrow batch."""
    data = chunk.data
    rows, size = chunk.rows, len(chunk.rows)
    blank = rows[:, w.MAGIC] == w.BLANK
    kinds = np.where(blank, "blank", "message")

    def number(column: int, kind: Any) -> pa.Array:
        return pa.array(rows[:, column].astype(kind), mask=blank)

    columns = [
        pa.array([file_range.group] * size),
        pa.array([file_range.replica] * size),
        pa.array(np.full(size, file_range.base)),
        pa.array(rows[:, w.POSITION] + chunk.base),
        pa.array(rows[:, w.SIZE]),
        pa.array(kinds.tolist()),
        texts(chunk, w.TOPIC_AT),
        number(w.QUEUE_ID, np.int32),
        number(w.QUEUE_OFFSET, np.int64),
        number(w.STORE_TIME, np.int64),
        number(w.SYS_FLAG, np.int32),
        pa.array(rows[:, w.CRC_OK] == 1),
        number(w.BODY_SIZE, np.int32),
        number(w.TAGS_CODE, np.int64),
        texts(chunk, w.TAGS_AT),
        texts(chunk, w.KEYS_AT),
        texts(chunk, w.UNIQ_AT),
        pa.array(rows[:, w.DIGEST]),
        timestamps(rows[:, w.STORE_TIME], blank),
        timestamps(born_times(data, rows), blank),
        *(pa.array(texts_of_hosts, pa.string()) for texts_of_hosts in hosts(data, rows)),
        pa.array(properties(data, rows), schemas.RECORDS.field("properties").type),
        pa.array(bodies(data, rows), pa.binary()) if with_body else pa.nulls(size, pa.binary()),
        *(
            pa.array(rows[:, column], mask=blank | (file_range.header_bytes == 0))
            for column in (w.ENTRY_INDEX, w.ENTRY_TERM)
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schemas.RECORDS)


def texts(chunk: LogChunk, column: int) -> pa.Array:
    """Slices of the log as strings; empty ones are null. `column` holds their positions, the next column
    their sizes."""
    starts, sizes = (
        np.ascontiguousarray(chunk.rows[:, column]),
        np.ascontiguousarray(chunk.rows[:, column + 1]),
    )
    offsets = np.empty(len(sizes) + 1, np.int32)
    out = np.empty(int(sizes.sum()), np.uint8)
    w.gather(chunk.data, starts, sizes, offsets, out)
    raw = pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(out)])
    try:
        strings = raw.cast(pa.string())
    except pa.ArrowInvalid:
        strings = pa.array([value.decode("utf-8", "replace") for value in raw.to_pylist()], pa.string())
    return pa.array(strings.to_pylist(), pa.string(), mask=sizes == 0) if (sizes == 0).any() else strings
