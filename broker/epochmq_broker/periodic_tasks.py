"""Periodic work on the event loop: short synchronous functions, each at its own interval, with one owner.

A function that fails is logged and called again at its next turn: periodic work survives its own failures.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class PeriodicTasks:
    """The periodic work of one owner. `every` may be called before and after `start`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._works: list[_PeriodicTask] = []

    def every(self, interval_ms: Callable[[], int], name: str, function: Callable[[], object]) -> None:
        """Calls `function` again and again, `interval_ms()` after the end of its last call."""
        work = _PeriodicTask(interval_ms, name, function)
        self._works.append(work)
        if self._loop is not None:
            work.arm(self._loop)

    def start(self) -> None:
        """Begins; needs a running loop."""
        self._loop = asyncio.get_running_loop()
        for work in self._works:
            work.arm(self._loop)

    def stop(self) -> None:
        """Nothing is called any more."""
        self._loop = None
        for work in self._works:
            work.disarm()


class _PeriodicTask:
    __slots__ = ("_function", "_handle", "_interval_ms", "_name")

    def __init__(self, interval_ms: Callable[[], int], name: str, function: Callable[[], object]) -> None:
        self._interval_ms = interval_ms
        self._name = name
        self._function = function
        self._handle: asyncio.TimerHandle | None = None

    def arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._handle = loop.call_later(self._interval_ms() / 1000, self._call, loop)

    def disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _call(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._function()
        except Exception:
            log.exception("%s failed; it is tried again", self._name)
        if self._handle is not None:
            self.arm(loop)
