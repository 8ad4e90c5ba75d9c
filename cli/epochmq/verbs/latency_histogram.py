"""Counts latencies in buckets that grow by 2 %, so that any number of them takes bounded memory."""

# pure: takes latencies.

from __future__ import annotations

import math

GROWTH = 1.02
FIRST_MS = 0.001
BUCKETS_MAX = 1200
"""The last bucket begins at about 5 hours."""


class LatencyHistogram:
    """Latencies in ms. A percentile is exact to 2 %, the highest latency is exact."""

    def __init__(self) -> None:
        self._counts = [0] * BUCKETS_MAX
        self.count = 0
        self.highest_ms = 0.0

    def add(self, latency_ms: float) -> None:
        """Counts one latency; a negative one, of a clock that was set back, counts as 0."""
        value = max(latency_ms, FIRST_MS)
        at = int(math.log(value / FIRST_MS) / math.log(GROWTH))
        self._counts[min(at, BUCKETS_MAX - 1)] += 1
        self.count += 1
        self.highest_ms = max(self.highest_ms, latency_ms)

    def percentile_ms(self, percent: float) -> float | None:
        """The latency that this share of all does not exceed; None without any."""
        if not self.count:
            return None
        wanted = max(math.ceil(self.count * percent / 100), 1)
        seen = 0
        for at, number in enumerate(self._counts):
            seen += number
            if seen >= wanted:
                return min(FIRST_MS * GROWTH ** (at + 1), self.highest_ms)
        return self.highest_ms
