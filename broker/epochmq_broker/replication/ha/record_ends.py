# pure: where records of a log end
"""Keeps the offsets where records of a growing log end, so that no part of a record counts as confirmed.

Bytes are copied and reported in pieces that ignore record boundaries. A broker that stops within a record
truncates the part that it has. If that part counted as confirmed, the broker would seem to lack confirmed
bytes after its next start.
"""

from __future__ import annotations

from collections import deque
from typing import Final

KNOWN_ENDS_MAX: Final = 4096


class RecordEnds:
    """Known record ends above `passed`, the greatest one that a limit has passed. If there are more than
    `KNOWN_ENDS_MAX`, the last one is replaced, so that the newest end is always known."""

    __slots__ = ("_ends", "passed")

    def __init__(self, passed: int) -> None:
        """A record ends at `passed`, or the log is empty and starts there."""
        self.passed = passed
        self._ends: deque[int] = deque()

    def add(self, end: int) -> None:
        """A record ends at `end`; not greater than a known end: nothing changes."""
        ends = self._ends
        if end <= (ends[-1] if ends else self.passed):
            return
        if len(ends) >= KNOWN_ENDS_MAX:
            ends[-1] = end
        else:
            ends.append(end)

    def advance(self, limit: int) -> int:
        """The greatest known record end at or before `limit`. It never falls, and earlier ones are
        forgotten."""
        ends = self._ends
        while ends and ends[0] <= limit:
            self.passed = ends.popleft()
        return self.passed
