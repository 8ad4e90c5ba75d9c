"""Walking a range of a segment, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from epochmq_spark import files
from epochmq_spark.decode import walk as w
from epochmq_spark.sources.base import Piece

CHUNK_RECORDS = 32_768
CHUNK_SPANS = 1024
OVERHANG_BYTES = 8 * 1024 * 1024  # a record is smaller: RocketMQ takes messages of up to 4 MiB

Array = Any


@dataclass
class Chunk:
    """Records in the order of the log. `base` is the physical offset of data[0]."""

    data: Array
    base: int
    rows: Array
    spans: Array


def chunks(piece: Piece) -> Iterator[Chunk]:
    """The records that start in a piece. Raises OSError."""
    data = files.window(piece.place, piece.begin, min(piece.end + OVERHANG_BYTES, piece.size))
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
        yield Chunk(data, base, rows[: state[w.RECORDS]], spans[: state[w.SPANS]])
