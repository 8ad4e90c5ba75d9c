# pure: ranges in, ranges out
"""Keeps the ranges of the commit log that are known to be damaged on this broker's disk."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

RANGES_MAX: Final = 1024
"""More ranges are merged, with the healthy bytes between them."""

REFILL: Final = "stop this broker while the others run, and empty its store, so that it copies the log"
"""The way out for a replica whose log, or what belongs to it, is wrong."""


class DamagedRange(Struct, frozen=True):
    """Damaged bytes [start, end) of the log, and the first fault found in them. Both ends are starts of
    records, or the end of a file. `repairable`: other replicas' bytes may replace them, because the records
    here are broken; otherwise the replicas have different records, each of them whole."""

    start: int
    end: int
    fault: str
    repairable: bool = True

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.end - self.start


class DamagedRanges:
    """The known damaged ranges in ascending order; they do not overlap."""

    def __init__(self) -> None:
        self._ranges: list[DamagedRange] = []
        self.on_change: Callable[[], None] = lambda: None

    def __bool__(self) -> bool:
        return bool(self._ranges)

    @property
    def ranges(self) -> Sequence[DamagedRange]:
        """All of them."""
        return self._ranges

    @property
    def total_bytes(self) -> int:
        """The bytes of all ranges."""
        return sum(one.size for one in self._ranges)

    def replace_within(self, start: int, end: int, found: Sequence[DamagedRange]) -> list[DamagedRange]:
        """Bytes [start, end) were checked again, and `found` is what is damaged there. Returns the ranges of
        `found` that touch no range known before."""
        new = [one for one in found if self.first_within(one.start, one.end) is None]
        kept = [one for one in self._ranges if one.end <= start or one.start >= end]
        ranges = _limited(sorted([*kept, *found], key=lambda one: one.start))
        if ranges != self._ranges:
            self._ranges = ranges
            self.on_change()
        return new

    def first_within(self, start: int, end: int) -> DamagedRange | None:
        """The first damaged range that touches [start, end), None without one."""
        at = bisect_right(self._ranges, start, key=lambda one: one.end)
        if at < len(self._ranges) and self._ranges[at].start < end:
            return self._ranges[at]
        return None

    def first_broken_within(self, start: int, end: int) -> DamagedRange | None:
        """The first range with broken records that touches [start, end), None without one."""
        while (found := self.first_within(start, end)) is not None and not found.repairable:
            start = found.end
        return found

    def forget_before(self, offset: int) -> None:
        """The log's files before this offset have expired."""
        self._ranges = [one for one in self._ranges if one.end > offset]

    def forget_from(self, offset: int) -> None:
        """The log was truncated at this offset."""
        self._ranges = [one for one in self._ranges if one.start < offset]


def _limited(ranges: list[DamagedRange]) -> list[DamagedRange]:
    """The ranges, of which those after the first RANGES_MAX - 1 are merged into one."""
    if len(ranges) <= RANGES_MAX:
        return ranges
    rest = ranges[RANGES_MAX - 1 :]
    merged = DamagedRange(
        rest[0].start, rest[-1].end, rest[0].fault, repairable=all(one.repairable for one in rest)
    )
    return [*ranges[: RANGES_MAX - 1], merged]
