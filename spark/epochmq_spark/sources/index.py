"""`epochmq.index`: entries of index files, one a row. Option `indexSlots` when files are of unusual shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from epochmq_spark import files, layout, tables
from epochmq_spark.decode.queue_units import IndexEntries, index_entries, slots_of
from epochmq_spark.sources.base import Piece, PiecesReader, ReplicasSource, positive


class IndexSource(ReplicasSource):
    """Rows of `tables.INDEX`."""

    arrow_schema = tables.INDEX

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "epochmq.index"

    def reader(self, schema: StructType) -> IndexReader:
        """Reads it."""
        return IndexReader(self.replicas(), self.options)


def read_index(place: str, size: int, slots: int | None = None) -> IndexEntries:
    """An index file's entries. Raises OSError, also for a file whose shape is not known."""
    slots = slots or slots_of(size)
    if slots is None:
        raise OSError(f"{place}: {size} bytes are not those of an index file with four entries a slot")
    data = files.window(place, 0, size)
    if len(data) < size:
        raise OSError(f"{place}: {len(data)} bytes, expected {size}")
    return index_entries(data, slots)


class IndexReader(PiecesReader):
    """Whole files: slots and entries belong together."""

    splits = False

    def __init__(self, replicas: Sequence[layout.Replica], options: Mapping[str, str]) -> None:
        super().__init__(replicas, options)
        self._slots = positive(options, "indexSlots", 1) if "indexSlots" in options else None

    def pieces_of(self, replica: layout.Replica) -> Iterator[Piece]:
        """All index files."""
        for file in layout.contents(replica.place).index:
            yield Piece(replica.group, replica.name, file.place, file.start, file.size, 0, file.size)

    def batches(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """A file's entries."""
        found = read_index(piece.place, piece.size, self._slots)
        size = len(found.numbers)
        if size:
            columns = [
                pa.array([piece.group] * size),
                pa.array([piece.replica] * size),
                pa.array([piece.place.rsplit("/", 1)[-1]] * size),
                pa.array(found.numbers.astype(np.int32)),
                pa.array(found.hashes),
                pa.array(found.physical),
                pa.array(found.seconds.astype(np.int32)),
                pa.array(found.previous.astype(np.int32)),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=tables.INDEX)
