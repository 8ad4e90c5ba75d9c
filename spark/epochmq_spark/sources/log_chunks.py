"""Reads a range of a commit log segment and finds its records, some thousand at a time (a chunk)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from epochmq_spark import files
from epochmq_spark.decode import walk as w
from epochmq_spark.sources.file_ranges import FileRange

CHUNK_RECORDS = 32_768
CHUNK_SPANS = 1024
STEP_BYTES = 1024 * 1024
"""Bytes of a file of this machine that are read into a buffer at a time."""

STEP_RECORDS = 2048
"""Records of a chunk of what is read into a buffer. Their columns take 400 KB."""

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
    `spans` are those of `walk`. All are valid only until the next chunk is read. `in_entries`: each record is
    preceded by the header of its entry."""

    data: Array
    base: int
    rows: Array
    spans: Array
    in_entries: bool = False


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
    """A part of a range, and bytes of what follows it. Without memory to read into, or over a network, the
    part is the whole range."""

    def __init__(self, file_range: FileRange, memory: Array | None, descriptor: int | None) -> None:
        """The first part. `descriptor` is that of the file if it is one of this machine. Raises OSError."""
        self._range, self._memory, self._descriptor = file_range, memory, descriptor
        is_stepwise = memory is not None and descriptor is not None
        self._step = STEP_BYTES if is_stepwise else file_range.end - file_range.begin
        self.begin = file_range.begin
        self._longer = False
        self.data: Array = np.zeros(0, np.uint8)
        self._fill(OVERLAP_BYTES)

    @property
    def stop(self) -> int:
        """The end of this part, as a position in the data."""
        return min(self._step, self._range.end - self.begin)

    @property
    def is_complete(self) -> bool:
        """Whether a record that starts in this part must end in the data."""
        return len(self.data) >= self._wanted(RECORD_BYTES_MAX)

    def complete(self) -> None:
        """Reads as many bytes behind this part as a record may have. Raises OSError."""
        self._fill(RECORD_BYTES_MAX)
        self._longer = True

    def advance(self, at: int) -> None:
        """Moves to the part that starts at a position in the data, not before `stop`. Raises OSError."""
        rest = self.data[at:]
        if self._memory is not None:
            self._memory[: len(rest)] = rest
            rest = self._memory[: len(rest)]
        self.begin, self.data = self.begin + at, rest
        if self._longer:  # large records, or none: the same bytes would be read behind each of many parts
            self._step, self._longer = 4 * self._step, False
        self._fill(OVERLAP_BYTES)

    def _wanted(self, overlap: int) -> int:
        return min(self.stop + overlap, self._range.size - self.begin)

    def _fill(self, overlap: int) -> None:
        known, wanted = len(self.data), self._wanted(overlap)
        if known >= wanted:
            return
        location, begin, end = self._range.location, self.begin + known, self.begin + wanted
        if self._memory is None:
            more = files.read_range(location, begin, end)
        else:
            more = files.read_range_into(location, begin, end, self._memory[known:], self._descriptor)
        if len(more) < end - begin:
            raise OSError(f"{location}: shrank from {self._range.size} to {begin + len(more)} bytes")
        if self._memory is not None:
            self.data = self._memory[:wanted]
        else:
            self.data = np.concatenate((self.data, more)) if known else more


def read_chunks(
    file_range: FileRange, buffer: ReadBuffer | None = None, needed: int = w.NEED_ALL
) -> Iterator[LogChunk]:
    """Finds the records that start in a range. The range is read into the buffer, step by step if the file is
    on this machine, so that what was read is in the processor's cache when it is decoded; without a buffer it
    is mapped into memory. `needed`: what to find out about each record (`walk`). Raises OSError."""
    file_range = _with_headers(file_range)
    if file_range.begin >= file_range.end:
        return
    memory = None
    if buffer is not None:
        end = min(file_range.end + RECORD_BYTES_MAX, file_range.size)
        memory = buffer.of_size(end - file_range.begin)
    with files.descriptor_of(file_range.location) as descriptor:
        window = _Window(file_range, memory, descriptor)
        rows_max = CHUNK_RECORDS if memory is None else STEP_RECORDS
        rows = np.zeros((min(rows_max, window.stop // w.SIZE_MIN + 2), w.COLUMNS), np.int64)
        spans = np.zeros((CHUNK_SPANS, w.SPAN_COLUMNS), np.int64)
        state = np.zeros(w.STATE_SIZE, np.int64)
        state[w.NEXT] = w.RESYNC if file_range.begin else 0
        while True:
            yield from _chunks_of_window(window, file_range, needed, rows, spans, state)
            at = int(state[w.NEXT])
            if window.begin + at >= file_range.end:
                break
            window.advance(at)
            # A span that is not open ended before `at`, and no record starts between its end and `at`.
            state[w.NEXT] = 0 if state[w.OPEN] else w.RESYNC


def _chunks_of_window(
    window: _Window, file_range: FileRange, needed: int, rows: Array, spans: Array, state: Array
) -> Iterator[LogChunk]:
    base, header = file_range.base + window.begin, file_range.header_bytes
    end_of_file, stop, at = file_range.size - window.begin, window.stop, -1
    while at < stop:
        before = state.copy()
        w.walk(window.data, 0, stop, base, end_of_file, header, needed, rows, spans, state)
        at = int(state[w.NEXT])
        if at >= stop and not window.is_complete and not _ends_behind(rows, state, stop):
            window.complete()
            state[:] = before
            at = -1
            continue
        found = rows[: state[w.RECORDS]], spans[: state[w.SPANS]]
        yield LogChunk(window.data, base, *found, in_entries=header > 0)


def _with_headers(file_range: FileRange) -> FileRange:
    """The range in which the entries start whose records start in this range. A filler belongs to the range
    in which an entry in its place would."""
    header, is_last = file_range.header_bytes, file_range.end >= file_range.size
    end = file_range.end if is_last else file_range.end - header
    return replace(file_range, begin=max(file_range.begin - header, 0), end=end)


def _ends_behind(rows: Array, state: Array, stop: int) -> bool:
    """Whether the last record that was found ends at the end of the range or behind it. Otherwise a record
    may have been rejected only because its end was not read."""
    count = int(state[w.RECORDS])
    return count > 0 and bool(rows[count - 1, w.POSITION] + rows[count - 1, w.SIZE] >= stop)
