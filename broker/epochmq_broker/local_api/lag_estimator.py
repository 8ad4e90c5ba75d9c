# pure: how far behind a replica is
"""How far a replica is behind its master, from looks at the master's end now and then. Times are milliseconds
of one monotonic clock."""

from __future__ import annotations

from collections import deque

LOOKS_MAX = 600
"""Ten minutes of looks; of a longer lag it is only said that it is as long."""
STALE_MS = 5_000
"""A look this long ago, as after a pause of the whole process, tells nothing of now."""


class LagEstimator:
    """One replica under one master."""

    def __init__(self) -> None:
        self._looks: deque[tuple[int, int]] = deque(maxlen=LOOKS_MAX)
        """(when, the master's end then) of looks whose end this replica had not reached yet, and the latest
        that it had."""
        self._end: int | None = None

    def observe(self, now_ms: int, end: int) -> None:
        """The master's log ended there."""
        self._looks.append((now_ms, end))
        self._end = end

    def lag(self, now_ms: int, own_end: int) -> tuple[int | None, int | None]:
        """(bytes that are lacking, milliseconds since nothing was): as of the latest look; (None, None)
        before the first, and when that is long ago."""
        if self._end is None or now_ms - self._looks[-1][0] > STALE_MS:
            return None, None
        looks = self._looks
        while len(looks) > 1 and looks[1][1] <= own_end:
            looks.popleft()
        if own_end >= self._end:
            return 0, 0
        # The oldest look is one that was reached, or the first of all.
        return self._end - own_end, now_ms - looks[0][0]
