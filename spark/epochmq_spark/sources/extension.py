"""Reads the extensions of consume queues as rows, one for each unit: the data source
`epochmq.queueextension`."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from epochmq_formats.extension_unit import ADDRESS_ZERO, END_MARK, HEAD, UNIT_BYTES_MAX, decode_unit
from epochmq_spark import files, schemas, store_layout
from epochmq_spark.sources.file_ranges import FileRange, FileRangeReader, ReplicaDataSource

BATCH_ROWS = 10_000


class QueueExtensionSource(ReplicaDataSource):
    """Rows of `schemas.EXTENSION`."""

    arrow_schema = schemas.EXTENSION

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "epochmq.queueextension"

    def create_reader(self) -> QueueExtensionReader:
        """The reader."""
        return QueueExtensionReader(self.replicas(), self.options)


class QueueExtensionReader(FileRangeReader):
    """Reads whole files."""

    may_split = False
    """A unit is found only from the one before it."""

    def file_ranges(self, replica: store_layout.AuditedReplica) -> Iterator[FileRange]:
        """The files of all queues."""
        for queue in store_layout.scan_store(replica.location).extensions:
            for part in queue.files:
                yield FileRange(
                    replica.group,
                    replica.name,
                    part.location,
                    part.start,
                    part.size,
                    0,
                    part.size,
                    queue.topic,
                    queue.queue_id,
                )

    def batches(self, file_range: FileRange) -> Iterator[pa.RecordBatch]:
        """The units up to the end of the file, or to a damaged one, which has a row with a fault."""
        data = memoryview(files.read_range(file_range.location, 0, file_range.size))
        columns = {
            "group": file_range.group,
            "replica": file_range.replica,
            "topic": file_range.topic,
            "queue_id": file_range.queue_id,
        }
        rows: list[dict[str, object]] = []
        at = 0
        while at + HEAD.size <= len(data) and data[at : at + len(END_MARK)] != END_MARK:
            row: dict[str, object] = {**columns, "address": file_range.base + at + ADDRESS_ZERO}
            try:
                unit = decode_unit(data[at : at + UNIT_BYTES_MAX])
            except ValueError as error:
                rows.append(row | {"fault": str(error)})
                break
            if unit is None:
                break
            row |= {"tags_code": unit.tags_code, "store_timestamp": unit.store_timestamp}
            rows.append(row | {"bit_map": unit.bit_map})
            at += HEAD.size + len(unit.bit_map)
            if len(rows) >= BATCH_ROWS:
                yield pa.RecordBatch.from_pylist(rows, schema=schemas.EXTENSION)
                rows = []
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=schemas.EXTENSION)
