"""Runs periodic work on the event loop: short synchronous functions, each at its own interval, with one
owner.

If a function raises, the error is logged and the function runs again after its interval.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class PeriodicTasks:
    """The periodic tasks of one owner. `every` may be called before and after `start`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[_PeriodicTask] = []

    def every(self, interval_ms: Callable[[], int], name: str, function: Callable[[], object]) -> None:
        """Adds a task: calls `function` repeatedly, `interval_ms()` after the end of its last call."""
        task = _PeriodicTask(interval_ms, name, function)
        self._tasks.append(task)
        if self._loop is not None:
            task.arm(self._loop)

    def start(self) -> None:
        """Starts the timers; needs a running loop."""
        self._loop = asyncio.get_running_loop()
        for task in self._tasks:
            task.arm(self._loop)

    def stop(self) -> None:
        """Cancels the timers."""
        self._loop = None
        for task in self._tasks:
            task.disarm()


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
            log.exception("periodic task failed: %s; it runs again after its interval", self._name)
        if self._handle is not None:
            self.arm(loop)
