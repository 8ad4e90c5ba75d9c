# pure: what is read next, and when
"""Decides which part of the log the scrub reads next, when, and how fast."""

from __future__ import annotations

import enum
from typing import Final

from msgspec import Struct

UNIT_BYTES_MAX: Final = 4 << 20
UNIT_BYTES_MIN: Final = 64 << 10
"""A unit is what is read in about a second, within these limits."""


class PassEnd(enum.Enum):
    """Tells that a pass has just ended."""

    ENDED = "ended"


class ScrubUnit(Struct, frozen=True):
    """The next records to read: from `start`, at which a record begins, up to the first record boundary at or
    after `until`."""

    start: int
    until: int


class ScrubSchedule:
    """Passes over the log: from its first byte up to a limit, unit by unit. Times are seconds of a monotonic
    clock."""

    def __init__(self, first_pass_at_s: float) -> None:
        self._next_pass_at_s = first_pass_at_s
        self._position: int | None = None
        """Where the present pass continues; None between passes."""
        self._is_stuck = False
        """Whether no record ends between the position and the limit."""
        self.last_pass_ended_s: float | None = None

    def next_step(
        self, now_s: float, *, first: int, limit: int, rate: int, interval_s: float
    ) -> ScrubUnit | PassEnd | float:
        """The next unit, the end of the pass, or for how many seconds there is nothing to do. The log begins
        at `first`, and may be read up to `limit`, which may lie within a record. `rate` is in bytes per
        second. Passes begin at least `interval_s` apart."""
        if self._position is None:
            if now_s < self._next_pass_at_s:
                return self._next_pass_at_s - now_s
            self._position = first
            self._next_pass_at_s = now_s + interval_s
        self._position = max(self._position, first)  # expired files are gone
        if self._position >= limit or self._is_stuck:
            self._is_stuck = False
            self._position = None
            self.last_pass_ended_s = now_s
            return PassEnd.ENDED
        size = min(max(rate, UNIT_BYTES_MIN), UNIT_BYTES_MAX)
        return ScrubUnit(self._position, min(self._position + size, limit))

    def unit_done(self, end: int) -> None:
        """The unit was read; it ended at `end`."""
        self._is_stuck = end == self._position
        self._position = end


class ReadBudget:
    """Spreads reads over time, so that all of them together take no more than so many bytes per second."""

    def __init__(self) -> None:
        self._free_at_s = 0.0

    def pause_s(self, now_s: float, size: int, rate: int) -> float:
        """How long to wait after a read of `size` bytes, in seconds."""
        self._free_at_s = max(self._free_at_s, now_s) + size / max(rate, 1)
        return self._free_at_s - now_s


def scrub_limit(file_starts: list[int], file_size: int, durable: int) -> int:
    """Up to which offset the log may be scrubbed: up to the offset `durable`, which may lie within a record.
    `file_starts` is ascending."""
    if not file_starts:
        return 0
    return min(max(durable, file_starts[0]), file_starts[-1] + file_size)
