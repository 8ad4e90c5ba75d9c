"""Reads commit logs as rows, one for each message and each blank record: the data source `epochmq.commitlog`.

The column `body` is null unless the option `body=true`, the option `columns` or a stated schema asks for it.

The option `topics` names topics, whose messages are found through their consume queues (`topic_ranges`).

With the option `pushFilters=true`, filters restrict what is read (`log_filters`). It is off by default: Spark
rejects a source with filter push-down if the session does not allow it
(`spark.sql.python.filterPushdown.enabled`), and a further query of the same DataFrame may get the filters of
an earlier one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import Filter

from epochmq_spark import schemas, store_layout
from epochmq_spark.sources.file_ranges import FileRange, FileRangeReader, ReplicaDataSource
from epochmq_spark.sources.log_filters import LogFilter
from epochmq_spark.sources.options import flag_option, names_option
from epochmq_spark.sources.topic_ranges import log_ranges, topic_ranges


class CommitLogSource(ReplicaDataSource):
    """Rows of `schemas.RECORDS`."""

    arrow_schema = schemas.RECORDS
    further_columns = pa.schema([schemas.RECORD_COLUMNS.field("properties_text")])
    further_options = ("body", "pushFilters", "topics")

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "epochmq.commitlog"

    def create_reader(self) -> CommitLogReader:
        """The reader; with `pushFilters=true` one that accepts filters."""
        filtering = flag_option(self.options, "pushFilters")
        reader = FilteringCommitLogReader if filtering else CommitLogReader
        return reader(self.replicas(), self.options, with_body=self.is_schema_stated)


class CommitLogReader(FileRangeReader):
    """Reads the segments of replicas, as far as the filter wants them."""

    def __init__(
        self,
        replicas: Sequence[store_layout.AuditedReplica],
        options: Mapping[str, str],
        *,
        with_body: bool = False,
    ) -> None:
        """`with_body`: whether bodies are read without the option `body`."""
        super().__init__(replicas, options)
        self.wanted = LogFilter(topics=names_option(options, "topics"))
        self._without = (
            frozenset[str]() if flag_option(options, "body", default=with_body) else frozenset({"body"})
        )

    def file_ranges(self, replica: store_layout.AuditedReplica) -> Iterator[FileRange]:
        """The segments, restricted to the wanted offsets, or the places of messages of the wanted topics."""
        if not self.wanted.wants(replica):
            return
        contents = store_layout.scan_store(replica.location)
        window = self.wanted.low, self.wanted.high
        found = None
        if self.wanted.topics is not None:
            found = topic_ranges(replica, contents, self.wanted.topics, window, self._partition_bytes)
        yield from log_ranges(replica, contents.log, *window) if found is None else found

    def batches(self, file_range: FileRange) -> Iterator[pa.RecordBatch]:
        """The records of a range."""
        # Not at the top: Spark plans a source in two processes of its own, which need no compiled code.
        from epochmq_spark.sources.record_batches import LogBatchReader

        columns = schemas.RECORDS if self._columns is None else self._columns
        return LogBatchReader(columns, self._without, self.wanted).read(file_range)


class FilteringCommitLogReader(CommitLogReader):
    """Accepts filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Applies filters on group, replica, topic, queue, offset and store time; returns those that Spark
        must apply, too."""
        return [condition for condition in filters if not self.wanted.add(condition)]
