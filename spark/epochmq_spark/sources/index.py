"""`epochmq.index`: entries of index files, one a row. Option `indexSlots` when files are of unusual shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from epochmq_spark import files, schemas, store_layout
from epochmq_spark.decode.queue_units import (
    INDEX_ENTRY_BYTES,
    INDEX_HEADER_BYTES,
    IndexChains,
    IndexEntries,
    entry_pairs,
    index_header,
    slot_count,
)
from epochmq_spark.sources.file_ranges import FileRange, FileRangeReader, ReplicaDataSource, positive

Array = Any


class IndexSource(ReplicaDataSource):
    """Rows of `tables.INDEX`."""

    arrow_schema = schemas.INDEX

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "epochmq.index"

    def reader(self, schema: StructType) -> IndexReader:
        """Reads it."""
        return IndexReader(self.replicas(), self.options)


PART_ENTRIES = 1 << 18
"""How many are read at a time. RocketMQ's files have room for 20 million, in 400 MB."""


class IndexFileScan:
    """An index file, read in parts. All of it raises OSError, also for a file whose shape is not known."""

    def __init__(self, place: str, size: int, slots: int | None = None) -> None:
        self.place, self._size = place, size
        found = slots or slot_count(size)
        if found is None:
            raise OSError(f"{place}: {size} bytes are not those of an index file with four entries a slot")
        self._entries_at = INDEX_HEADER_BYTES + 4 * found
        self._chains = IndexChains(found)
        self.begin, self.end, count = index_header(self._bytes(0, INDEX_HEADER_BYTES))
        self.count = max(min(count, (size - self._entries_at) // INDEX_ENTRY_BYTES), 1)

    def _bytes(self, start: int, end: int) -> Array:
        data = files.window(self.place, start, end)
        if len(data) < end - start:
            raise OSError(f"{self.place}: {start + len(data)} bytes, expected {self._size}")
        return data

    def part(self, first: int, count: int | None = None) -> Array:
        """The bytes of entries from the number `first` on, a part of them or so many."""
        at, last = self._entries_at, min(first + (count or PART_ENTRIES), self.count)
        return self._bytes(at + first * INDEX_ENTRY_BYTES, at + last * INDEX_ENTRY_BYTES)

    def firsts(self) -> range:
        """The number of the first entry of each part."""
        return range(1, self.count, PART_ENTRIES)

    def entries(self) -> Iterator[IndexEntries]:
        """All entries, once."""
        for first in self.firsts():
            yield self._chains.take(first, self.part(first))

    def lost(self, most: int) -> list[tuple[int, int]]:
        """(number, physical offset) of entries to which their slots do not lead, when all were read; at most
        so many of them."""
        heads = np.frombuffer(self._bytes(INDEX_HEADER_BYTES, self._entries_at), ">i4")
        numbers = self._chains.lost(heads)[:most].tolist()
        return [(one, int(entry_pairs(self.part(one, 1))[1][0])) for one in numbers]


class IndexReader(FileRangeReader):
    """Whole files: slots and entries belong together."""

    splits = False

    def __init__(self, replicas: Sequence[store_layout.AuditedReplica], options: Mapping[str, str]) -> None:
        super().__init__(replicas, options)
        self._slots = positive(options, "indexSlots", 1) if "indexSlots" in options else None

    def file_ranges(self, replica: store_layout.AuditedReplica) -> Iterator[FileRange]:
        """All index files."""
        for file in store_layout.contents(replica.place).index:
            yield FileRange(replica.group, replica.name, file.place, file.start, file.size, 0, file.size)

    def batches(self, piece: FileRange) -> Iterator[pa.RecordBatch]:
        """A file's entries. Raises OSError."""
        name = piece.place.rsplit("/", 1)[-1]
        for found in IndexFileScan(piece.place, piece.size, self._slots).entries():
            size = len(found.numbers)
            columns = [
                pa.array([piece.group] * size),
                pa.array([piece.replica] * size),
                pa.array([name] * size),
                pa.array(found.numbers.astype(np.int32)),
                pa.array(found.hashes),
                pa.array(found.physical),
                pa.array(found.seconds.astype(np.int32)),
                pa.array(found.previous.astype(np.int32)),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schemas.INDEX)
