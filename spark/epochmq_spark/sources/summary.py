"""Reads all logs, consume queues and index files of a replica once, and returns the digests that the audit
compares: the data source `epochmq.summary`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from epochmq_formats.dledger_log import INDEX_UNIT_SIZE
from epochmq_spark import schemas, store_layout
from epochmq_spark.sources.file_ranges import (
    ENTRY_INDEX_FILE,
    INDEX_FILE,
    QUEUE_FILE,
    FileRange,
    FileRangePartition,
    FileRangeReader,
    ReplicaDataSource,
)
from epochmq_spark.sources.queue_ranges import queue_file_ranges

ENTRY_INDEX_BYTES = INDEX_UNIT_SIZE << 20  # of an index file of DLedger read at a time


class SummarySource(ReplicaDataSource):
    """Rows of `schemas.SUMMARY`; `epochmq_spark.decode.summary_rows` defines their kinds."""

    arrow_schema = schemas.SUMMARY

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "epochmq.summary"

    def create_reader(self) -> SummaryReader:
        """The reader."""
        return SummaryReader(self.replicas(), self.options)


class SummaryReader(FileRangeReader):
    """Reads ranges of logs and consume queues, and whole index files. `listings` are those of stores, by
    location; others are listed."""

    def __init__(
        self,
        replicas: Sequence[store_layout.AuditedReplica],
        options: Mapping[str, str],
        listings: Mapping[str, store_layout.StoreContents] | None = None,
    ) -> None:
        super().__init__(replicas, options)
        self._listings = listings or {}

    may_split = False
    """`file_ranges` returns ranges of the right size already."""

    def file_ranges(self, replica: store_layout.AuditedReplica) -> Iterator[FileRange]:
        """All files of a replica. Logs and consume queues are split into ranges, index files are not."""
        contents = self._listings.get(replica.location) or store_layout.scan_store(replica.location)
        log_start = contents.log[0].start if contents.log else 0
        for file in contents.log:
            yield from FileRange.of(replica, file).split(self._partition_bytes)
        for queue_range in queue_file_ranges(replica, contents):
            yield queue_range.of_file_kind(QUEUE_FILE, log_start)
        for file in contents.index:
            yield FileRange.of(replica, file).of_file_kind(INDEX_FILE, log_start)
        for file in contents.entry_index:
            for units in FileRange.of(replica, file).split(ENTRY_INDEX_BYTES):
                yield units.of_file_kind(ENTRY_INDEX_FILE, log_start)

    def batches(self, file_range: FileRange) -> Iterator[pa.RecordBatch]:
        """The summary rows of a range; also if it cannot be read."""
        return self.read_all(FileRangePartition((file_range,)))

    def read_all(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The summary rows of a partition."""
        # Not at the top: Spark plans a source in two processes of its own, which need no compiled code.
        from epochmq_spark.sources.range_summaries import summarise_ranges

        return summarise_ranges(partition.ranges)
