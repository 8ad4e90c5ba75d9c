"""A clock for brokers that leaves out the time for which a busy machine suspends the test's process: between
two readings it advances by a short step at most. So a test whose messages are due in half a second sends all
of them before that."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from epochmq_broker.config import clock
from epochmq_store.appending import appender

STEP_MAX_NS = 250_000_000
"""Longer than a broker's pauses between two readings, so that the clock otherwise runs as fast as the real
one."""


class SteadyTime:
    """Stands for the module `time`. Its epoch time is at most the real one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen_ns = self._now_ns = time.time_ns()

    def time_ns(self) -> int:
        with self._lock:
            real_ns = time.time_ns()
            self._now_ns += min(real_ns - self._seen_ns, STEP_MAX_NS)
            self._seen_ns = real_ns
            return self._now_ns

    def time(self) -> float:
        return self.time_ns() / 1e9

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def use_steady_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes brokers, and their stores for the times of messages, read such a clock."""
    steady = SteadyTime()
    for module in (clock, appender):
        monkeypatch.setattr(module, "time", steady)
