"""Measures the turns of an event loop as CPU time of its thread."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from epochmq_protocol.transport.freed_memory import keep_freed_memory

T = TypeVar("T")


class TurnMeter(selectors.DefaultSelector):
    """A selector that measures the turns of its loop: the CPU time from one look at the sockets to the next.
    Nothing else runs on the loop meanwhile: no other request, no heartbeat, no renewal of a lease."""

    def __init__(self) -> None:
        super().__init__()
        self.longest_s = 0.0
        self._began_s: float | None = None

    def restart(self) -> None:
        """Forgets the turns so far, and what the present turn has taken so far."""
        self.longest_s = 0.0
        self._began_s = time.thread_time()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """The sockets that are ready (selectors.BaseSelector)."""
        if self._began_s is not None:
            self.longest_s = max(self.longest_s, time.thread_time() - self._began_s)
        try:
            return super().select(timeout)
        finally:
            self._began_s = time.thread_time()


def run_measured(main: Callable[[TurnMeter], Coroutine[Any, Any, T]]) -> T:
    """Runs `main` on a loop whose turns the meter measures, with the memory of a process of EpochMQ."""
    keep_freed_memory()
    meter = TurnMeter()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(meter)) as runner:
        return runner.run(main(meter))
