"""Walking a range of a segment, chunk by chunk."""

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
OVERHANG_BYTES = 8 * 1024 * 1024  # a record is smaller: RocketMQ takes messages of up to 4 MiB

Array = Any


@dataclass
class LogChunk:
    """Records in the order of the log. `base` is the physical offset of data[0]."""

    data: Array
    base: int
    rows: Array
    spans: Array


class ReadBuffer:
    """Memory that one range after the other is read into."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def of(self, size: int) -> Array:
        """At least `size` bytes; what was in them is gone."""
        if len(self._bytes) < size:
            self._bytes = np.empty(size, np.uint8)
        return self._bytes


def chunks(piece: FileRange, buffer: ReadBuffer | None = None) -> Iterator[LogChunk]:
    """The records that start in a piece; by memory map when there is no buffer. Raises OSError."""
    end = min(piece.end + OVERHANG_BYTES, piece.size)
    if buffer is None:
        data = files.window(piece.place, piece.begin, end)
    else:
        data = files.read_into(piece.place, piece.begin, end, buffer.of(end - piece.begin))
    if len(data) < end - piece.begin:
        raise OSError(f"{piece.place}: {piece.begin + len(data)} bytes by now, there were {piece.size}")
    base = piece.base + piece.begin
    stop, end_of_file = piece.end - piece.begin, piece.size - piece.begin
    rows = np.zeros((min(CHUNK_RECORDS, stop // w.SIZE_MIN + 2), w.COLUMNS), np.int64)
    spans = np.zeros((CHUNK_SPANS, w.SPAN_COLUMNS), np.int64)
    state = np.zeros(4, np.int64)
    state[w.NEXT] = w.RESYNC if piece.begin else 0
    at = -1
    while at < stop:
        w.walk(data, 0, stop, base, end_of_file, rows, spans, state)
        at = int(state[w.NEXT])
        yield LogChunk(data, base, rows[: state[w.RECORDS]], spans[: state[w.SPANS]])
