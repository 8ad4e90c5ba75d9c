"""Keeps descriptors free for files: how many of the process's descriptors connections may take.

A process that has none left cannot open, create or sync a file. So a port rejects connections before that.
The kernel gives out the lowest free number, which makes the check cheap: a socket with the number n was
accepted when at least n descriptors were in use.
"""

from __future__ import annotations

import contextlib
import resource
import time

RESERVED_MIN = 32
RESERVED_MAX = 1024
REPORT_INTERVAL_S = 1.0


def descriptor_limit() -> int:
    """The first descriptor number that no connection may have: a quarter of RLIMIT_NOFILE stays free, within
    RESERVED_MIN and RESERVED_MAX."""
    with contextlib.suppress(OSError, ValueError):
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            return soft - min(max(soft // 4, RESERVED_MIN), RESERVED_MAX)
    return 1 << 30


class RejectionLog:
    """Counts rejected connections, and says when one line about them is due."""

    def __init__(self) -> None:
        self._count = 0
        self._reported_at = -REPORT_INTERVAL_S

    def add(self) -> int:
        """One more; how many there were since the last report when another report is due, else 0."""
        self._count += 1
        now = time.monotonic()
        if now - self._reported_at < REPORT_INTERVAL_S:
            return 0
        self._reported_at = now
        count, self._count = self._count, 0
        return count
