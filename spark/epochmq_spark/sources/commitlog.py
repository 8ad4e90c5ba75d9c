"""Reads commit logs as rows, one for each message and each blank record: the data source `epochmq.commitlog`.

The column `body` is null unless the option `body=true`, the option `columns` or a stated schema asks for it.

With the option `pushFilters=true`, filters restrict what is read. It is off by default, because Spark rejects
a source with filter push-down if the session does not allow it
(`spark.sql.python.filterPushdown.enabled`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)

from epochmq_protocol.epoch_entries import OFFSET_MAX
from epochmq_spark import schemas, store_layout
from epochmq_spark.sources.file_ranges import FileRange, FileRangeReader, ReplicaDataSource
from epochmq_spark.sources.options import flag_option


class CommitLogSource(ReplicaDataSource):
    """Rows of `schemas.RECORDS`."""

    arrow_schema = schemas.RECORDS
    further_columns = pa.schema([schemas.RECORD_COLUMNS.field("properties_text")])
    further_options = ("body", "pushFilters")

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
    """Reads the segments of replicas, from `_low` to below `_high`."""

    def __init__(
        self,
        replicas: Sequence[store_layout.AuditedReplica],
        options: Mapping[str, str],
        *,
        with_body: bool = False,
    ) -> None:
        """`with_body`: whether bodies are read without the option `body`."""
        super().__init__(replicas, options)
        self._low, self._high = 0, OFFSET_MAX
        self._without = (
            frozenset[str]() if flag_option(options, "body", default=with_body) else frozenset({"body"})
        )

    def file_ranges(self, replica: store_layout.AuditedReplica) -> Iterator[FileRange]:
        """The segments, restricted to the wanted offsets."""
        for file in store_layout.scan_store(replica.location).log:
            begin = min(max(self._low - file.start, 0), file.size)
            end = min(max(self._high - file.start, 0), file.size)
            if begin < end:
                yield FileRange.of(replica, file, begin, end)

    def batches(self, file_range: FileRange) -> Iterator[pa.RecordBatch]:
        """The records of a range."""
        # Not at the top: Spark plans a source in two processes of its own, which need no compiled code.
        from epochmq_spark.sources.record_batches import read_records

        columns = schemas.RECORDS if self._columns is None else self._columns
        return read_records(file_range, columns, self._without)


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
