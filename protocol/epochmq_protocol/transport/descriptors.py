"""Limits how many of the process's file descriptors connections may take.

A process without free descriptors cannot open, create or sync a file, so a port rejects connections earlier.
The check is cheap because the kernel assigns the lowest free number: when a socket gets number n, at least n
descriptors are in use.
"""

from __future__ import annotations

import contextlib
import resource
import time

RESERVED_MIN = 32
RESERVED_MAX = 1024
REPORT_INTERVAL_S = 1.0


def descriptor_limit() -> int:
    """The lowest descriptor number that no connection may have. A quarter of RLIMIT_NOFILE stays free, but
    at least RESERVED_MIN and at most RESERVED_MAX descriptors."""
    with contextlib.suppress(OSError, ValueError):
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            return soft - min(max(soft // 4, RESERVED_MIN), RESERVED_MAX)
    return 1 << 30


class RejectionCounter:
    """Counts rejected connections between two log lines about them."""

    def __init__(self) -> None:
        self._count = 0
        self._reported_at = -REPORT_INTERVAL_S

    def add(self) -> int:
        """Counts one rejection. Returns the rejections since the last log line when the next line is due,
        else 0."""
        self._count += 1
        now = time.monotonic()
        if now - self._reported_at < REPORT_INTERVAL_S:
            return 0
        self._reported_at = now
        count, self._count = self._count, 0
        return count
