"""What the data sources have in common: whose files they read, and how ranges become partitions.

Options of all: `path` (`load(PLACE)`; one replica, named by options `group` and `replica`), or `replicas` (a
JSON list of [group, name, place]); `partitionBytes` (64 MiB): how much is read at a time; `taskBytes` (the
same): how much a task reads in all."""

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
OPEN_COST_BYTES = 1024 * 1024  # what opening a file counts for when small ones are put together


@dataclass(frozen=True)
class FileRange:
    """A range of one file: the records that start in it."""

    group: str
    replica: str
    place: str
    base: int  # physical offset (log), logical byte (queue) of the file's first byte
    size: int  # of the file
    begin: int
    end: int
    topic: str = ""
    queue_id: int = 0
    kind: str = "log"
    log_start: int = 0  # of the replica's log

    def of(self, kind: str, log_start: int) -> FileRange:
        """The same, of a queue or an index."""
        return replace(self, kind=kind, log_start=log_start)


@dataclass
class FileRangePartition(InputPartition):
    """What one task reads."""

    pieces: tuple[FileRange, ...]


class ReplicaDataSource(DataSource):
    """A data source over replicas' directories."""

    arrow_schema: ClassVar[pa.Schema]

    def schema(self) -> StructType:
        """Its columns."""
        return from_arrow_schema(self.arrow_schema)

    def replicas(self) -> list[store_layout.AuditedReplica]:
        """Whose files. Raises ValueError when no option says so."""
        return replicas_of(self.options)


def replicas_of(options: Mapping[str, str]) -> list[store_layout.AuditedReplica]:
    """The replicas that options name. Raises ValueError."""
    if text := options.get("replicas"):
        return store_layout.decode(text)
    if place := options.get("path"):
        return [store_layout.AuditedReplica(options.get("group", ""), options.get("replica", place), place)]
    raise ValueError("no directory: expected load(DIR), or the option replicas")


class FileRangeReader(DataSourceReader):
    """A reader whose partitions are packed ranges of files."""

    def __init__(self, replicas: Sequence[store_layout.AuditedReplica], options: Mapping[str, str]) -> None:
        self._replicas = list(replicas)
        self._partition_bytes = positive(options, "partitionBytes", PARTITION_BYTES)
        self._task_bytes = positive(options, "taskBytes", PARTITION_BYTES)

    splits = True
    """Whether a file may be read in ranges."""

    @abstractmethod
    def file_ranges(self, replica: store_layout.AuditedReplica) -> Iterator[FileRange]:
        """Files to read, or ranges of them."""

    def partitions(self) -> Sequence[InputPartition]:
        """Files are cut into ranges of at most `partitionBytes`, and these put together up to `taskBytes`."""
        limit = self._partition_bytes
        packed: list[FileRangePartition] = []
        waiting: list[FileRange] = []
        weight = 0
        for replica in self._replicas:
            for piece in self.file_ranges(replica):
                for part in split(piece, limit) if self.splits else (piece,):
                    cost = part.end - part.begin + OPEN_COST_BYTES
                    if waiting and weight + cost > self._task_bytes + OPEN_COST_BYTES:
                        packed.append(FileRangePartition(tuple(waiting)))
                        waiting, weight = [], 0
                    waiting.append(part)
                    weight += cost
        if waiting:
            packed.append(FileRangePartition(tuple(waiting)))
        return packed or [FileRangePartition(())]

    @abstractmethod
    def batches(self, piece: FileRange) -> Iterator[pa.RecordBatch]:
        """The rows of a range."""

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        for piece in partition.pieces:
            yield from self.batches(piece)


def positive(options: Mapping[str, str], name: str, default: int) -> int:
    """An option that is a whole number, at least 1. Raises ValueError."""
    text = options.get(name, str(default)).strip()
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"option {name}: {text!r}, expected a whole number, at least 1")
    return int(text)


def split(piece: FileRange, limit: int) -> Iterator[FileRange]:
    """A range cut into such of at most `limit` bytes."""
    for begin in range(piece.begin, piece.end, limit):
        yield replace(piece, begin=begin, end=min(begin + limit, piece.end))
