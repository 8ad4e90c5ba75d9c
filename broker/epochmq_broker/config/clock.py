"""Reads the clocks in milliseconds."""

from __future__ import annotations

import time


def now_ms() -> int:
    """The present time in epoch milliseconds."""
    return time.time_ns() // 1_000_000


def boot_ms() -> float:
    """Milliseconds of the clock for leases. It is monotonic and also runs while the machine is suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) / 1e6


def monotonic_ms() -> int:
    """Milliseconds of a clock that is never set; only differences have a meaning."""
    return time.monotonic_ns() // 1_000_000
