"""Reads a range of a commit log segment and finds its records, some thousand at a time (a chunk)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from epochmq_spark import files
from epochmq_spark.decode import walk as w
from epochmq_spark.sources.file_ranges import FileRange

CHUNK_RECORDS = 32_768
CHUNK_SPANS = 1024
RECORD_BYTES_MAX = 8 * 1024 * 1024
"""Bytes that are read beyond the end of a range, because the last record that starts in the range may end
there. No record is larger: RocketMQ accepts messages of up to 4 MiB."""

OVERLAP_BYTES = 64 * 1024
"""Bytes that are read beyond the end of a range at first. The rest of `RECORD_BYTES_MAX` is read only if the
last record does not end in them."""

Array = Any


@dataclass
class LogChunk:
    """Some records of a range, in the order of the log. `base` is the physical offset of data[0]; `rows` and
    `spans` are those of `walk`. All are valid only until the next chunk is read."""

    data: Array
    base: int
    rows: Array
    spans: Array


class ReadBuffer:
    """Memory into which one range is read after the other."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def of_size(self, size: int) -> Array:
        """At least `size` bytes of the memory. Chunks of the previous range become invalid."""
        if len(self._bytes) < size:
            self._bytes = np.empty(size, np.uint8)
        return self._bytes


class _Window:
    """The bytes of a range, and a part of what follows it."""

    def __init__(self, file_range: FileRange, buffer: ReadBuffer | None) -> None:
        self._range = file_range
        self._end = min(file_range.end + RECORD_BYTES_MAX, file_range.size)
        self._memory = None if buffer is None else buffer.of_size(self._end - file_range.begin)
        self.data = self._read(file_range.begin, min(file_range.end + OVERLAP_BYTES, file_range.size))

    @property
    def is_complete(self) -> bool:
        """Whether a record that starts in the range must end in the data."""
        return self._range.begin + len(self.data) >= self._end

    def complete(self) -> None:
        """Reads as many bytes behind the range as a record may have. Raises OSError."""
        more = self._read(self._range.begin + len(self.data), self._end)
        if self._memory is None:
            self.data = np.concatenate((self.data, more))
        else:
            self.data = self._memory[: len(self.data) + len(more)]

    def _read(self, begin: int, end: int) -> Array:
        location = self._range.location
        if self._memory is None:
            data = files.read_range(location, begin, end)
        else:
            data = files.read_range_into(location, begin, end, self._memory[begin - self._range.begin :])
        if len(data) < end - begin:
            raise OSError(f"{location}: shrank from {self._range.size} to {begin + len(data)} bytes")
        return data


def read_chunks(file_range: FileRange, buffer: ReadBuffer | None = None) -> Iterator[LogChunk]:
    """Finds the records that start in a range. The range is read into the buffer; without one it is mapped
    into memory. Raises OSError."""
    window = _Window(file_range, buffer)
    base = file_range.base + file_range.begin
    stop, end_of_file = file_range.end - file_range.begin, file_range.size - file_range.begin
    rows = np.zeros((min(CHUNK_RECORDS, stop // w.SIZE_MIN + 2), w.COLUMNS), np.int64)
    spans = np.zeros((CHUNK_SPANS, w.SPAN_COLUMNS), np.int64)
    state = np.zeros(4, np.int64)
    state[w.NEXT] = w.RESYNC if file_range.begin else 0
    at = -1
    while at < stop:
        before = state.copy()
        w.walk(window.data, 0, stop, base, end_of_file, rows, spans, state)
        at = int(state[w.NEXT])
        if at >= stop and not window.is_complete and not _ends_behind(rows, state, stop):
            window.complete()
            state[:] = before
            at = -1
            continue
        yield LogChunk(window.data, base, rows[: state[w.RECORDS]], spans[: state[w.SPANS]])


def _ends_behind(rows: Array, state: Array, stop: int) -> bool:
    """Whether the last record that was found ends at the end of the range or behind it. Otherwise a record
    may have been rejected only because its end was not read."""
    count = int(state[w.RECORDS])
    return count > 0 and bool(rows[count - 1, w.POSITION] + rows[count - 1, w.SIZE] >= stop)
