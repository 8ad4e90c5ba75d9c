"""Reads index files as rows, one for each entry: the data source `epochmq.index`. The option `indexSlots`,
the number of index slots, is needed for files that do not have four entries for each slot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from epochmq_formats.index_file import ENTRY_BYTES, HEADER, HEADER_BYTES, SLOT_BYTES
from epochmq_spark import files, schemas, store_layout
from epochmq_spark.decode.index_chains import IndexChains, IndexEntries
from epochmq_spark.decode.index_entries import (
    entry_pairs,
    index_header,
    slot_count,
)
from epochmq_spark.sources.file_ranges import FileRange, FileRangeReader, ReplicaDataSource
from epochmq_spark.sources.options import positive_option

Array = Any


class IndexSource(ReplicaDataSource):
    """Rows of `schemas.INDEX`."""

    arrow_schema = schemas.INDEX
    further_options = ("indexSlots",)

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "epochmq.index"

    def create_reader(self) -> IndexReader:
        """The reader."""
        return IndexReader(self.replicas(), self.options)


PART_ENTRIES = 1 << 18
"""Entries read at a time. RocketMQ's files have room for 20 million entries, in 400 MB."""


class IndexFileScan:
    """Reads an index file in parts of `PART_ENTRIES` entries. All methods raise OSError; the constructor
    does, too, if the number of slots is unknown. `low_offset` and `high_offset` are the physical offsets of
    the first and the last message in the index file, as its header says. `count` is the number of entries,
    including the unused entry 0. `times_ms` are the store times of the first and the last message."""

    def __init__(self, location: str, size: int, slots: int | None = None) -> None:
        self.location, self._size = location, size
        total_slots = slots or slot_count(size)
        if total_slots is None:
            raise OSError(
                f"{location}: {size} bytes are not the size of a file with four entries for each slot"
            )
        self._entries_at = HEADER_BYTES + SLOT_BYTES * total_slots
        self._chains = IndexChains(total_slots)
        header = self._read(0, HEADER_BYTES)
        self.low_offset, self.high_offset, count = index_header(header)
        self.times_ms: tuple[int, int] = HEADER.unpack(bytes(header))[:2]
        self.count = max(min(count, (size - self._entries_at) // ENTRY_BYTES), 1)

    @property
    def is_full(self) -> bool:
        """Whether there is room for no further entry."""
        return self.count >= (self._size - self._entries_at) // ENTRY_BYTES

    def _read(self, start: int, end: int) -> Array:
        data = files.read_range(self.location, start, end)
        if len(data) < end - start:
            raise OSError(f"{self.location}: {start + len(data)} bytes, expected {self._size}")
        return data

    def read_part(self, first: int, count: int | None = None) -> Array:
        """The bytes of the entries from number `first` on: `count` of them, or one part."""
        at, last = self._entries_at, min(first + (count or PART_ENTRIES), self.count)
        return self._read(at + first * ENTRY_BYTES, at + last * ENTRY_BYTES)

    def part_starts(self) -> range:
        """The numbers of the first entries of the parts."""
        return range(1, self.count, PART_ENTRIES)

    def parts(self) -> Iterator[IndexEntries]:
        """All parts of the file in turn. Can be called once."""
        for first in self.part_starts():
            yield self._chains.follow(first, self.read_part(first))

    def orphaned_heads(self, count_max: int) -> list[tuple[int, int]]:
        """(number, physical offset) of the newest entry of each chain to which its slot does not point, at
        most `count_max`. The older entries of such a chain cannot be found either and are not listed. Call
        it after all parts were read."""
        slots = np.frombuffer(self._read(HEADER_BYTES, self._entries_at), ">i4")
        numbers = self._chains.orphaned_heads(slots)[:count_max].tolist()
        return [(one, int(entry_pairs(self.read_part(one, 1))[1][0])) for one in numbers]


class IndexReader(FileRangeReader):
    """Reads whole index files."""

    may_split = False

    def __init__(self, replicas: Sequence[store_layout.AuditedReplica], options: Mapping[str, str]) -> None:
        super().__init__(replicas, options)
        self._slots = positive_option(options, "indexSlots", 1) if "indexSlots" in options else None

    def file_ranges(self, replica: store_layout.AuditedReplica) -> Iterator[FileRange]:
        """All index files."""
        for file in store_layout.scan_store(replica.location).index:
            yield FileRange.of(replica, file)

    def batches(self, file_range: FileRange) -> Iterator[pa.RecordBatch]:
        """A file's entries. Raises OSError."""
        name = files.name_of(file_range.location)
        for entries in IndexFileScan(file_range.location, file_range.size, self._slots).parts():
            size = len(entries.numbers)
            columns = [
                pa.array([file_range.group] * size),
                pa.array([file_range.replica] * size),
                pa.array([name] * size),
                pa.array(entries.numbers.astype(np.int32)),
                pa.array(entries.hashes),
                pa.array(entries.physical),
                pa.array(entries.seconds.astype(np.int32)),
                pa.array(entries.previous.astype(np.int32)),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schemas.INDEX)
