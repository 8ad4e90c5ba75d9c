"""Divides the files of replicas into file ranges, and packs the file ranges into Spark partitions: the base
of all data sources of the audit.

Options of all data sources:

- `path` (`load(LOCATION)`), `paths` (`load([LOCATION, …])`): stores, or volumes with a directory `store`;
  `*`, `?` and `[…]` match names. The option `replica` names a single one, `group` all of them; or
- `replicas`: a JSON list of [group, name, location].
- `partitionBytes` (64 MiB): the largest file range.
- `taskBytes` (64 MiB): the largest Spark partition of several file ranges. One task reads one partition; a
  larger file range is a partition by itself.
- `columns`: the columns to read, separated by commas. A schema that the user states (`spark.read.schema(…)`)
  does the same. Spark tells its Python data sources nothing else about which columns a query needs.

Any other option is an error, unless a source adds some."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from epochmq_spark import files, store_layout
from epochmq_spark.sources.options import check_names, columns_option, positive_option, stated_schema

OPTIONS = ("path", "paths", "replicas", "replica", "group", "partitionBytes", "taskBytes", "columns")
PARTITION_BYTES = 64 * 1024 * 1024  # the default of both options
OPEN_COST_BYTES = 1024 * 1024  # opening a file counts as much as reading so many bytes
LOG_FILE, QUEUE_FILE, INDEX_FILE, ENTRY_INDEX_FILE = "log", "queue", "index", "entry-index"  # kinds of files


@dataclass(frozen=True)
class FileRange:
    """A range of one file. A reader returns the records that start in it."""

    group: str
    replica: str
    location: str
    base: int
    """Where the file begins: in the log (physical offset), or in the consume queue (bytes)."""
    size: int
    """The size of the file."""
    begin: int
    end: int
    """`begin` and `end` are positions in the file."""
    topic: str = ""
    queue_id: int = 0
    file_kind: str = LOG_FILE
    log_start: int = 0
    """The physical offset at which the replica's log starts; only of a consume queue or an index."""
    header_bytes: int = 0
    """The size of what precedes each record: the header of its entry in a data file of DLedger."""

    @property
    def cost(self) -> int:
        """The bytes to read."""
        return self.end - self.begin

    def split(self, bytes_max: int) -> Iterator[FileRange]:
        """Ranges of at most `bytes_max` that make up this one."""
        for begin in range(self.begin, self.end, bytes_max):
            yield replace(self, begin=begin, end=min(begin + bytes_max, self.end))

    @classmethod
    def of(
        cls,
        replica: store_layout.AuditedReplica,
        file: store_layout.DataFile,
        begin: int = 0,
        end: int | None = None,
    ) -> FileRange:
        """A range of a file of a replica; the whole file without `begin` and `end`."""
        return cls(
            replica.group,
            replica.name,
            file.location,
            file.start,
            file.size,
            begin,
            file.size if end is None else end,
            header_bytes=file.header_bytes,
        )

    def of_file_kind(self, file_kind: str, log_start: int) -> FileRange:
        """The same range, marked as one of a consume queue or an index, with `log_start`."""
        return replace(self, file_kind=file_kind, log_start=log_start)


@dataclass
class FileRangePartition(InputPartition):
    """The file ranges that one task reads."""

    ranges: tuple[FileRange, ...]


class ReplicaDataSource(DataSource):
    """A data source over the directories of replicas."""

    arrow_schema: ClassVar[pa.Schema]
    """The columns without the option `columns`."""
    further_columns: ClassVar[pa.Schema] = pa.schema([])
    """Columns that a user can ask for, too."""
    further_options: ClassVar[tuple[str, ...]] = ()
    """The names of options of this source only."""
    is_schema_stated = True
    """Whether the user has stated a schema or columns: then Spark does not ask for a schema."""

    def schema(self) -> StructType:
        """The columns. Raises ValueError for wrong options and if there is nothing to read, as early as
        Spark's own sources do."""
        self._check_options()
        self.create_reader()
        chosen = columns_option(self.options, self._known_columns())
        self.is_schema_stated = chosen is not None
        return from_arrow_schema(self.arrow_schema if chosen is None else chosen)

    def reader(self, schema: StructType) -> FileRangeReader:
        """The reader of these columns. Raises ValueError for wrong options, and for columns that the source
        does not have."""
        self._check_options()
        chosen = stated_schema(schema, self._known_columns())
        of_option = columns_option(self.options, self._known_columns())
        if of_option is not None and of_option.names != chosen.names:
            text = self.options["columns"]
            raise ValueError(f"option columns: {text!r}, and a schema of other columns; expected one of them")
        reader = self.create_reader()
        reader.select(chosen)
        return reader

    @abstractmethod
    def create_reader(self) -> FileRangeReader:
        """A reader of all columns."""

    def _known_columns(self) -> pa.Schema:
        return pa.schema([*self.arrow_schema, *self.further_columns])

    def _check_options(self) -> None:
        check_names(self.options, (*OPTIONS, *self.further_options))

    def replicas(self) -> list[store_layout.AuditedReplica]:
        """The replicas that the options name. Raises ValueError if there are none."""
        return replicas_of_options(self.options)


def replicas_of_options(options: Mapping[str, str]) -> list[store_layout.AuditedReplica]:
    """The replicas that the options name. Raises ValueError, also if a path matches no store."""
    if text := options.get("replicas"):
        return store_layout.decode_replicas(text)
    patterns = paths_of_options(options)
    locations = [location for pattern in patterns for location in _stores(pattern)]
    name, group = options.get("replica"), options.get("group")
    if name and len(locations) > 1:
        raise ValueError(f"option replica: it names one directory, but there are {len(locations)}")
    return [
        store_layout.AuditedReplica(
            _group_of(location) if group is None else group, name or location, location
        )
        for location in locations
    ]


def _group_of(location: str) -> str:
    """The brokerName in the file `brokerIdentity` of a store; empty if there is none."""
    identity = store_layout.read_identity(location)
    return identity[1] if identity else ""


def paths_of_options(options: Mapping[str, str]) -> list[str]:
    """The paths that were given to `load`. Spark passes several of them as JSON in the option `paths`. Raises
    ValueError."""
    found = [options["path"]] if options.get("path") else []
    if text := options.get("paths"):
        try:
            listed = json.loads(text)
        except ValueError:
            listed = None
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            raise ValueError(f"option paths: {text!r}, expected a JSON list of directories")
        found += listed
    if not found:
        raise ValueError("no directory: expected load(DIR), or the option replicas")
    return found


def _stores(pattern: str) -> list[str]:
    """The stores that a path names. Raises ValueError if there is none."""
    try:
        found = [store_layout.store_directory(one) for one in files.expand(pattern)]
        for location in found:
            store_layout.check_is_store(location)
    except FileNotFoundError:
        found = []
    except OSError as error:
        raise ValueError(str(error)) from None
    if not found:
        raise ValueError(f"[PATH_NOT_FOUND] Path does not exist: {pattern}.")
    return found


class FileRangeReader(DataSourceReader):
    """Reads Spark partitions, each of which is one or more file ranges."""

    def __init__(self, replicas: Sequence[store_layout.AuditedReplica], options: Mapping[str, str]) -> None:
        self._replicas = list(replicas)
        self._partition_bytes = positive_option(options, "partitionBytes", PARTITION_BYTES)
        self._task_bytes = positive_option(options, "taskBytes", PARTITION_BYTES)
        self._columns: pa.Schema | None = None

    may_split = True
    """Whether `partitions` may split the ranges that `file_ranges` returns."""

    def select(self, columns: pa.Schema) -> None:
        """Makes the reader return these columns only, in this order. Without it, it returns all."""
        self._columns = columns

    @abstractmethod
    def file_ranges(self, replica: store_layout.AuditedReplica) -> Iterator[FileRange]:
        """The ranges to read of a replica."""

    def partitions(self) -> Sequence[FileRangePartition]:
        """Splits the ranges into ranges of at most `partitionBytes`, packs these up to `taskBytes`, and
        orders the partitions so that those of different replicas take turns."""
        partitions: list[FileRangePartition] = []
        ranges: list[FileRange] = []
        cost = 0
        for replica in self._replicas:
            for unsplit in self.file_ranges(replica):
                for part in unsplit.split(self._partition_bytes) if self.may_split else (unsplit,):
                    part_cost = part.cost + OPEN_COST_BYTES
                    if ranges and cost + part_cost > self._task_bytes + OPEN_COST_BYTES:
                        partitions.append(FileRangePartition(tuple(ranges)))
                        ranges, cost = [], 0
                    ranges.append(part)
                    cost += part_cost
        if ranges:
            partitions.append(FileRangePartition(tuple(ranges)))
        return interleaved(partitions) or [FileRangePartition(())]

    @abstractmethod
    def batches(self, file_range: FileRange) -> Iterator[pa.RecordBatch]:
        """The rows of a range."""

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The chosen columns of the rows of a partition."""
        for batch in self.read_all(partition):
            is_whole = self._columns is None or batch.schema.names == self._columns.names
            yield batch if self._columns is None or is_whole else batch.select(self._columns.names)

    def read_all(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        for file_range in partition.ranges:
            yield from self.batches(file_range)


def interleaved(partitions: Sequence[FileRangePartition]) -> list[FileRangePartition]:
    """The partitions in an order in which replicas take turns. Spark starts tasks in this order, so all
    volumes are read at the same time."""
    turns: Counter[tuple[str, str]] = Counter()
    numbered = []
    for partition in partitions:
        first = partition.ranges[0]
        key = first.group, first.replica
        numbered.append((turns[key], partition))
        turns[key] += 1
    return [partition for _, partition in sorted(numbered, key=lambda one: one[0])]
