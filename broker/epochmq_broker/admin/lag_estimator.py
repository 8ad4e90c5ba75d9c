# pure: the caller passes the time
"""Estimates the lag of a replica from observations of the master's max offset. Times are milliseconds of one
monotonic clock."""

from __future__ import annotations

from collections import deque

OBSERVATIONS_MAX = 600
"""Ten minutes of observations; a longer lag is reported as this long."""
STALE_MS = 5_000
"""An older latest observation, as after a pause of the whole process, says nothing about the present."""


class LagEstimator:
    """The lag of one replica behind one master."""

    def __init__(self) -> None:
        self._observations: deque[tuple[int, int]] = deque(maxlen=OBSERVATIONS_MAX)
        """(time, the master's end offset then) of observations whose end offset this replica had not reached
        yet, and of the latest that it had reached."""
        self._end: int | None = None

    def observe(self, now_ms: int, end: int) -> None:
        """Adds an observation of the master's end offset."""
        self._observations.append((now_ms, end))
        self._end = end

    def lag(self, now_ms: int, own_end: int) -> tuple[int | None, int | None]:
        """Returns (missing bytes, milliseconds since none was missing) as of the latest observation; (None,
        None) before the first, and if the latest is stale."""
        if self._end is None or now_ms - self._observations[-1][0] > STALE_MS:
            return None, None
        observations = self._observations
        while len(observations) > 1 and observations[1][1] <= own_end:
            observations.popleft()
        if own_end >= self._end:
            return 0, 0
        # The oldest observation is one that was reached, or the first of all.
        return self._end - own_end, now_ms - observations[0][0]
