"""Reads the timer log and the timer wheel as rows: the data sources `epochmq.timerlog` and
`epochmq.timerwheel`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from epochmq_formats.timer_log import UNIT_BYTES, units_end
from epochmq_spark import files, schemas, store_layout
from epochmq_spark.decode import timer_files as t
from epochmq_spark.sources.file_ranges import FileRange, FileRangeReader, ReplicaDataSource

RANGE_BYTES = UNIT_BYTES * (1 << 17)


class TimerLogSource(ReplicaDataSource):
    """Rows of `schemas.TIMER_LOG`."""

    arrow_schema = schemas.TIMER_LOG

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "epochmq.timerlog"

    def create_reader(self) -> TimerLogReader:
        """The reader."""
        return TimerLogReader(self.replicas(), self.options)


class TimerLogReader(FileRangeReader):
    """Reads timer logs in ranges of whole units."""

    may_split = False
    """`file_ranges` returns ranges of whole units."""

    def file_ranges(self, replica: store_layout.AuditedReplica) -> Iterator[FileRange]:
        """Ranges of all files."""
        for part in store_layout.scan_store(replica.location).timer_log:
            end = units_end(part.size)
            for begin in range(0, end, RANGE_BYTES):
                stop = min(begin + RANGE_BYTES, end)
                yield FileRange(
                    replica.group, replica.name, part.location, part.start, part.size, begin, stop
                )

    def batches(self, file_range: FileRange) -> Iterator[pa.RecordBatch]:
        """The valid units of a range, up to the first one that is not."""
        data = files.read_range(file_range.location, file_range.begin, file_range.end)
        units = t.decode_units(data)
        units = units[: t.valid_count(units)]
        first = file_range.base + file_range.begin
        columns = {
            "position": first + np.arange(len(units), dtype=np.int64) * UNIT_BYTES,
            "previous": units["previous"],
            "magic": units["magic"],
            "due_time": t.due_times(units),
            "physical_offset": units["physical"],
            "size": units["size"],
            "topic_hash": units["topic_hash"],
        }
        if len(units):
            yield _batch(file_range, columns, schemas.TIMER_LOG)


class TimerWheelSource(ReplicaDataSource):
    """Rows of `schemas.TIMER_WHEEL`."""

    arrow_schema = schemas.TIMER_WHEEL

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "epochmq.timerwheel"

    def create_reader(self) -> TimerWheelReader:
        """The reader."""
        return TimerWheelReader(self.replicas(), self.options)


class TimerWheelReader(FileRangeReader):
    """Reads timer wheels in ranges of whole slots."""

    may_split = False
    """`file_ranges` returns ranges of whole slots."""

    def file_ranges(self, replica: store_layout.AuditedReplica) -> Iterator[FileRange]:
        """Ranges of the wheel."""
        wheel = store_layout.scan_store(replica.location).timer_wheel
        if wheel is not None:
            step = t.SLOT.itemsize << 17
            end = wheel.size - wheel.size % t.SLOT.itemsize
            for begin in range(0, end, step):
                stop = min(begin + step, end)
                yield FileRange(replica.group, replica.name, wheel.location, 0, wheel.size, begin, stop)

    def batches(self, file_range: FileRange) -> Iterator[pa.RecordBatch]:
        """The slots that were ever used."""
        data = files.read_range(file_range.location, file_range.begin, file_range.end)
        slots = np.frombuffer(data, t.SLOT)
        used = np.flatnonzero(slots["time"] != 0)
        columns = {
            "slot": used + file_range.begin // t.SLOT.itemsize,
            **{name: slots[name][used] for name in ("time", "first", "last", "num")},
        }
        if len(used):
            yield _batch(file_range, columns, schemas.TIMER_WHEEL)


def _batch(file_range: FileRange, columns: dict[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    size = len(next(iter(columns.values())))
    arrays = [pa.array([file_range.group] * size), pa.array([file_range.replica] * size)]
    for field in schema:
        if field.name in columns:
            numbers = np.asarray(columns[field.name]).astype(field.type.to_pandas_dtype())
            arrays.append(pa.array(numbers))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
