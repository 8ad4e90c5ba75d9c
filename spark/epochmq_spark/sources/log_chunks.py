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


def read_chunks(file_range: FileRange, buffer: ReadBuffer | None = None) -> Iterator[LogChunk]:
    """Finds the records that start in a range. The range is read into the buffer; without one it is mapped
    into memory. Raises OSError."""
    end = min(file_range.end + RECORD_BYTES_MAX, file_range.size)
    if buffer is None:
        data = files.read_range(file_range.location, file_range.begin, end)
    else:
        memory = buffer.of_size(end - file_range.begin)
        data = files.read_range_into(file_range.location, file_range.begin, end, memory)
    if len(data) < end - file_range.begin:
        now = file_range.begin + len(data)
        raise OSError(f"{file_range.location}: shrank from {file_range.size} to {now} bytes")
    base = file_range.base + file_range.begin
    stop, end_of_file = file_range.end - file_range.begin, file_range.size - file_range.begin
    rows = np.zeros((min(CHUNK_RECORDS, stop // w.SIZE_MIN + 2), w.COLUMNS), np.int64)
    spans = np.zeros((CHUNK_SPANS, w.SPAN_COLUMNS), np.int64)
    state = np.zeros(4, np.int64)
    state[w.NEXT] = w.RESYNC if file_range.begin else 0
    at = -1
    while at < stop:
        w.walk(data, 0, stop, base, end_of_file, rows, spans, state)
        at = int(state[w.NEXT])
        yield LogChunk(data, base, rows[: state[w.RECORDS]], spans[: state[w.SPANS]])
