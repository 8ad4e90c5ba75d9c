"""`epochmq.consumequeue`: units of consume queues, one a row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from epochmq_spark import files, schemas, store_layout
from epochmq_spark.decode.queue_units import UNIT_BYTES, QueueUnits, units
from epochmq_spark.sources.file_ranges import FileRange, FileRangeReader, ReplicaDataSource

RANGE_BYTES = 20 * (1 << 20)


class ConsumeQueueSource(ReplicaDataSource):
    """Rows of `tables.UNITS`."""

    arrow_schema = schemas.UNITS

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "epochmq.consumequeue"

    def reader(self, schema: StructType) -> ConsumeQueueReader:
        """Reads it."""
        return ConsumeQueueReader(self.replicas(), self.options)


def queue_file_ranges(
    replica: store_layout.AuditedReplica, contents: store_layout.StoreContents
) -> Iterator[FileRange]:
    """The queues' files, in ranges that do not cut a unit. Light queues (%LMQ%) hold units of other topics'
    messages and are left out."""
    for queue in contents.queues:
        if queue.topic.startswith("%LMQ%"):
            continue
        for file in queue.files:
            for begin in range(0, file.size, RANGE_BYTES):
                end = min(begin + RANGE_BYTES, file.size)
                yield FileRange(
                    replica.group,
                    replica.name,
                    file.place,
                    file.start,
                    file.size,
                    begin,
                    end,
                    queue.topic,
                    queue.queue_id,
                )


def read_units(piece: FileRange) -> QueueUnits:
    """The units of a piece. Raises OSError."""
    return units(files.window(piece.place, piece.begin, piece.end), (piece.base + piece.begin) // UNIT_BYTES)


class ConsumeQueueReader(FileRangeReader):
    """Whole files, or ranges of them."""

    splits = False

    def file_ranges(self, replica: store_layout.AuditedReplica) -> Iterator[FileRange]:
        """Ranges of all queues' files."""
        return queue_file_ranges(replica, store_layout.contents(replica.place))

    def batches(self, piece: FileRange) -> Iterator[pa.RecordBatch]:
        """The units of a range."""
        found = read_units(piece)
        size = len(found.offsets)
        if size:
            columns = [
                pa.array([piece.group] * size),
                pa.array([piece.replica] * size),
                pa.array([piece.topic] * size),
                pa.array(np.full(size, piece.queue_id, np.int32)),
                pa.array(found.offsets),
                pa.array(found.physical),
                pa.array(found.sizes.astype(np.int32)),
                pa.array(found.tags),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schemas.UNITS)
