"""Looking closely: the records of a block of the log, read again from each replica."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from epochmq_spark import layout
from epochmq_spark.audits.blocks import Copy, Extent, compare
from epochmq_spark.decode import walk as w
from epochmq_spark.decode.summary import BLOCK_BITS
from epochmq_spark.sources.base import Piece
from epochmq_spark.sources.log_pass import Chunk, chunks

BLOCK_BYTES = 1 << BLOCK_BITS


@dataclass(frozen=True)
class Reach:
    """A replica, and the extent of its log."""

    replica: layout.Replica
    start: int
    end: int
    common: int
    leading: bool


@lru_cache(maxsize=4096)
def _segments(place: str) -> tuple[layout.DataFile, ...]:
    return tuple(layout.contents(place).log)


def log_range(replica: layout.Replica, start: int, end: int) -> Iterator[Chunk]:
    """The records that start in [start, end). Raises OSError."""
    for file in _segments(replica.place):
        begin, stop = max(start - file.start, 0), min(end - file.start, file.size)
        if begin < stop:
            yield from chunks(
                Piece(replica.group, replica.name, file.place, file.start, file.size, begin, stop)
            )


def copies(reach: Reach, start: int, end: int) -> list[Copy]:
    """One replica's records in a range, with their bytes."""
    found = []
    for chunk in log_range(reach.replica, max(start, reach.start), min(end, reach.end)):
        for row in chunk.rows:
            at = int(row[w.POSITION])
            raw = bytes(chunk.data[at : at + int(row[w.SIZE])])
            blank = bool(row[w.MAGIC] == w.BLANK)
            found.append(Copy(chunk.base + at, raw, bool(row[w.CRC_OK]), blank))
    return found


def block(group: str, number: int, reaches: Sequence[Reach]) -> list[dict[str, Any]]:
    """Findings of one block. Replicas whose files cannot be read are left out; that they cannot is a finding
    of the pass before."""
    start, end = number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES
    seen: dict[str, list[Copy]] = {}
    extents: dict[str, Extent] = {}
    for reach in reaches:
        try:
            seen[reach.replica.name] = copies(reach, start, end)
        except OSError:
            continue
        extents[reach.replica.name] = Extent(reach.start, reach.end, reach.common, reach.leading)
    return compare(group, seen, extents)


Reaches = Mapping[str, Sequence[Reach]]
