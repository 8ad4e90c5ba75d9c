# pure: the rate of a connection
"""Measures and limits the bytes per second of one HA connection (RocketMQ's `FlowMonitor`)."""

from __future__ import annotations

UNLIMITED = 1 << 62


class FlowMonitor:
    """Counts the bytes of one connection. Times are in seconds of a monotonic clock."""

    __slots__ = ("_bytes", "_since", "bytes_per_second")

    def __init__(self, now: float) -> None:
        self.bytes_per_second = 0
        self._bytes = 0
        self._since = now

    def add(self, count: int) -> None:
        """Counts bytes that were sent or received."""
        self._bytes += count

    def allowed_bytes(self, now: float, limit: int | None) -> int:
        """How many more bytes may be sent in this second; `limit` is in bytes per second, None: unlimited."""
        self.update_rate(now)
        return UNLIMITED if limit is None else max(limit - self._bytes, 0)

    def update_rate(self, now: float) -> None:
        """Computes the rate and starts a new period, if the present one has lasted a second."""
        past = now - self._since
        if past >= 1:
            self.bytes_per_second = int(self._bytes / past)
            self._bytes = 0
            self._since = now
