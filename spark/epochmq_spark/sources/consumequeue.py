"""Reads consume queue files as rows, one for each unit: the data source `epochmq.consumequeue`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from epochmq_formats.queue_unit import UNIT_BYTES
from epochmq_spark import files, schemas, store_layout
from epochmq_spark.decode.queue_units import QueueUnits
from epochmq_spark.decode.unit_columns import decode_units
from epochmq_spark.sources.file_ranges import FileRange, FileRangeReader, ReplicaDataSource
from epochmq_spark.sources.queue_ranges import queue_file_ranges


class ConsumeQueueSource(ReplicaDataSource):
    """Rows of `schemas.UNITS`."""

    arrow_schema = schemas.UNITS

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "epochmq.consumequeue"

    def create_reader(self) -> ConsumeQueueReader:
        """The reader."""
        return ConsumeQueueReader(self.replicas(), self.options)


def read_units(file_range: FileRange) -> QueueUnits:
    """The units of a range. Raises OSError."""
    data = files.read_range(file_range.location, file_range.begin, file_range.end)
    return decode_units(data, (file_range.base + file_range.begin) // UNIT_BYTES)


class ConsumeQueueReader(FileRangeReader):
    """Reads consume queues in ranges of whole units."""

    may_split = False
    """`queue_file_ranges` returns ranges of whole units."""

    def file_ranges(self, replica: store_layout.AuditedReplica) -> Iterator[FileRange]:
        """Ranges of the files of all queues."""
        return queue_file_ranges(replica, store_layout.scan_store(replica.location))

    def batches(self, file_range: FileRange) -> Iterator[pa.RecordBatch]:
        """The units of a range."""
        decoded = read_units(file_range)
        size = len(decoded.offsets)
        if size:
            columns = [
                pa.array([file_range.group] * size),
                pa.array([file_range.replica] * size),
                pa.array([file_range.topic] * size),
                pa.array(np.full(size, file_range.queue_id, np.int32)),
                pa.array(decoded.offsets),
                pa.array(decoded.physical),
                pa.array(decoded.sizes.astype(np.int32)),
                pa.array(decoded.tags),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schemas.UNITS)
