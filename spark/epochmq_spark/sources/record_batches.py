"""Reads a range of a commit log as Arrow batches of the wanted columns and messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from epochmq_spark import files
from epochmq_spark.decode import walk as w
from epochmq_spark.decode.log_digests import topic_hash
from epochmq_spark.decode.record_columns import Records, batches_of, needed_for
from epochmq_spark.sources import topic_ranges as t
from epochmq_spark.sources.file_ranges import FileRange
from epochmq_spark.sources.log_chunks import CHUNK_RECORDS, read_chunks
from epochmq_spark.sources.log_filters import LogFilter

Array = Any
GAP_BYTES: Final = 256 * 1024  # over a network; what is farther apart is read by a request of its own
READ_BYTES: Final = 16 << 20  # over a network


class LogBatchReader:
    """Reads the messages that a filter wants, with the columns of a schema. Columns `without` are null."""

    def __init__(
        self, columns: pa.Schema, without: frozenset[str] = frozenset(), wanted: LogFilter | None = None
    ) -> None:
        self._columns, self._without = columns, without
        self._wanted = wanted if wanted is not None and wanted.restricts_rows else None
        self._needed = needed_for(set(columns.names) - without)
        self._topics: Array = None
        if self._wanted is not None and self._wanted.topics is not None:
            self._needed |= w.NEED_TOPIC
            self._topics = np.array([_hash(topic) for topic in self._wanted.topics], np.int64)

    def read(self, file_range: FileRange) -> Iterator[pa.RecordBatch]:
        """The records that start in a range. Raises OSError."""
        if isinstance(file_range, t.PlacedRange):
            yield from self._look_up(file_range)
        else:
            yield from self._walk(file_range)

    def _walk(self, file_range: FileRange) -> Iterator[pa.RecordBatch]:
        for chunk in read_chunks(file_range, needed=self._needed):
            yield from self._batches(file_range, chunk.data, chunk.base, chunk.rows)

    def _batches(
        self, file_range: FileRange, data: Array, base: int, rows: Array
    ) -> Iterator[pa.RecordBatch]:
        if self._wanted is not None:
            rows = rows[self._mask(rows, self._wanted)]
        if len(rows):
            names = file_range.group, file_range.replica, file_range.base
            records = Records(*names, data, base, rows, file_range.header_bytes > 0)
            yield from batches_of(records, self._columns, self._without)

    def _mask(self, rows: Array, wanted: LogFilter) -> Array:
        """Which rows may be wanted. The columns that filters are about are null in blank records."""
        mask = rows[:, w.MAGIC] != w.BLANK
        if self._topics is not None:
            mask &= np.isin(rows[:, w.TOPIC_HASH], self._topics)
        if wanted.queue_ids is not None:
            mask &= np.isin(rows[:, w.QUEUE_ID], list(wanted.queue_ids))
        times = rows[:, w.STORE_TIME]
        return mask & (times >= wanted.first_ms) & (times <= wanted.last_ms)

    def _look_up(self, placed: t.PlacedRange) -> Iterator[pa.RecordBatch]:
        """The messages at the places of a range. Where one of them is not what its unit says, the log is
        walked."""
        hashes = np.array([_hash(topic) for topic in placed.topics], np.int64)
        places = placed.rows()
        parts = list(_parts(places, is_local=files.local_path(placed.location) is not None))
        for number, (first, last) in enumerate(parts):
            chosen = places[first:last]
            begin = placed.begin if number == 0 else int(chosen[0, t.PLACE]) - placed.base
            end = placed.end if last == len(places) else int(places[last, t.PLACE]) - placed.base
            rows = np.zeros((len(chosen), w.COLUMNS), np.int64)
            low = int(chosen[0, t.PLACE]) - placed.base - placed.header_bytes
            high = int(chosen[-1, t.PLACE] + chosen[-1, t.SIZE]) - placed.base
            data = files.read_range(placed.location, max(low, 0), high)
            base = placed.base + max(low, 0)
            starts = chosen[:, t.PLACE] - base
            found = w.read_records(
                data,
                np.ascontiguousarray(starts),
                base,
                placed.size - max(low, 0),
                placed.header_bytes,
                self._needed | w.NEED_TOPIC,
                rows,
            )
            if found == len(chosen) and _are_expected(rows, chosen, hashes):
                yield from self._batches(placed, data, base, rows)
            else:
                yield from self._walk(replace(placed, begin=begin, end=end, places=b""))


def _hash(topic: str) -> int:
    return int(topic_hash(np.frombuffer(topic.encode("utf-8", "surrogatepass"), np.uint8)))


def _are_expected(rows: Array, places: Array, hashes: Array) -> bool:
    """Whether these are the messages that the units point to."""
    same = rows[:, w.TOPIC_HASH] == hashes[places[:, t.TOPIC]]
    for column, of_unit in ((w.SIZE, t.SIZE), (w.QUEUE_ID, t.QUEUE_ID), (w.QUEUE_OFFSET, t.QUEUE_OFFSET)):
        same &= rows[:, column] == places[:, of_unit]
    return bool(same.all())


def _parts(places: Array, *, is_local: bool) -> Iterator[tuple[int, int]]:
    """Which places are read together: [first, last). A file of this machine is mapped into memory."""
    first = 0
    for last in range(1, len(places) + 1):
        if last < len(places) and last - first < CHUNK_RECORDS:
            if is_local:
                continue
            gap = places[last, t.PLACE] - places[last - 1, t.PLACE] - places[last - 1, t.SIZE]
            end = places[last, t.PLACE] + places[last, t.SIZE]
            if gap < GAP_BYTES and end - places[first, t.PLACE] < READ_BYTES:
                continue
        yield first, last
        first = last
