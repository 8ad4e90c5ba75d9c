"""Divides the files of replicas into ranges, and packs the ranges into Spark partitions: the common part of
the data sources.

Options of all data sources: `path` (`load(LOCATION)`: one replica, named by the options `group` and
`replica`) or `replicas` (a JSON list of [group, name, place]); `partitionBytes` (64 MiB): how much is read at
a time; `taskBytes` (the same): how much one task reads."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from epochmq_spark import store_layout

PARTITION_BYTES = 64 * 1024 * 1024
OPEN_COST_BYTES = 1024 * 1024  # the cost of opening a file, when small files are packed into one task
LOG_FILE, QUEUE_FILE, INDEX_FILE = "log", "queue", "index"  # kinds of files


@dataclass(frozen=True)
class FileRange:
    """A range of one file. A reader returns the records that start in it."""

    group: str
    replica: str
    location: str
    base: int  # of the file's first byte: physical offset (log), logical byte (queue)
    size: int  # of the file
    begin: int
    end: int
    topic: str = ""
    queue_id: int = 0
    file_kind: str = LOG_FILE
    log_start: int = 0  # of the replica's log

    def of_file_kind(self, file_kind: str, log_start: int) -> FileRange:
        """The same range, of a consume queue or an index, with the offset at which the replica's log
        starts."""
        return replace(self, file_kind=file_kind, log_start=log_start)


@dataclass
class FileRangePartition(InputPartition):
    """The ranges that one task reads."""

    ranges: tuple[FileRange, ...]


class ReplicaDataSource(DataSource):
    """A data source over the directories of replicas."""

    arrow_schema: ClassVar[pa.Schema]

    def schema(self) -> StructType:
        """The columns."""
        return from_arrow_schema(self.arrow_schema)

    def replicas(self) -> list[store_layout.AuditedReplica]:
        """The replicas that the options name. Raises ValueError if there are none."""
        return replicas_of_options(self.options)


def replicas_of_options(options: Mapping[str, str]) -> list[store_layout.AuditedReplica]:
    """The replicas that the options name. Raises ValueError."""
    if text := options.get("replicas"):
        return store_layout.decode_replicas(text)
    if location := options.get("path"):
        name = options.get("replica", location)
        return [store_layout.AuditedReplica(options.get("group", ""), name, location)]
    raise ValueError("no directory: expected load(DIR), or the option replicas")


class FileRangeReader(DataSourceReader):
    """A reader whose partitions are packed file ranges."""

    def __init__(self, replicas: Sequence[store_layout.AuditedReplica], options: Mapping[str, str]) -> None:
        self._replicas = list(replicas)
        self._partition_bytes = positive_option(options, "partitionBytes", PARTITION_BYTES)
        self._task_bytes = positive_option(options, "taskBytes", PARTITION_BYTES)

    may_split = True
    """Whether `partitions` may split the ranges that `file_ranges` returns."""

    @abstractmethod
    def file_ranges(self, replica: store_layout.AuditedReplica) -> Iterator[FileRange]:
        """The ranges to read of a replica."""

    def partitions(self) -> Sequence[InputPartition]:
        """Splits the ranges into ranges of at most `partitionBytes`, and packs these up to `taskBytes`."""
        partitions: list[FileRangePartition] = []
        packed: list[FileRange] = []
        weight = 0
        for replica in self._replicas:
            for whole in self.file_ranges(replica):
                for part in split_range(whole, self._partition_bytes) if self.may_split else (whole,):
                    cost = part.end - part.begin + OPEN_COST_BYTES
                    if packed and weight + cost > self._task_bytes + OPEN_COST_BYTES:
                        partitions.append(FileRangePartition(tuple(packed)))
                        packed, weight = [], 0
                    packed.append(part)
                    weight += cost
        if packed:
            partitions.append(FileRangePartition(tuple(packed)))
        return partitions or [FileRangePartition(())]

    @abstractmethod
    def batches(self, file_range: FileRange) -> Iterator[pa.RecordBatch]:
        """The rows of a range."""

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        for file_range in partition.ranges:
            yield from self.batches(file_range)


def positive_option(options: Mapping[str, str], name: str, default: int) -> int:
    """An option that is a whole number, at least 1. Raises ValueError."""
    text = options.get(name, str(default)).strip()
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"option {name}: {text!r}, expected a whole number, at least 1")
    return int(text)


def split_range(file_range: FileRange, bytes_max: int) -> Iterator[FileRange]:
    """A range split into ranges of at most `bytes_max`."""
    for begin in range(file_range.begin, file_range.end, bytes_max):
        yield replace(file_range, begin=begin, end=min(begin + bytes_max, file_range.end))
