# pure: how much may be sent, and how much was
"""How fast one HA connection is, and how fast it may be (`FlowMonitor`): bytes counted by the second."""

from __future__ import annotations

UNLIMITED = 1 << 62


class FlowMonitor:
    """Counts the bytes of one connection. Times are seconds of any monotonic clock."""

    __slots__ = ("_bytes", "_since", "bytes_per_second")

    def __init__(self, now: float) -> None:
        self.bytes_per_second = 0
        self._bytes = 0
        self._since = now

    def add(self, count: int) -> None:
        """So many bytes went over."""
        self._bytes += count

    def allowed(self, now: float, limit: int | None) -> int:
        """How many more may go in this second; `limit` is bytes a second, None for no limit."""
        self.turn(now)
        return UNLIMITED if limit is None else max(limit - self._bytes, 0)

    def turn(self, now: float) -> None:
        """A second may be over."""
        past = now - self._since
        if past >= 1:
            self.bytes_per_second = int(self._bytes / past)
            self._bytes = 0
            self._since = now
