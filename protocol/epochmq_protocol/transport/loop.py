"""Runs a process on uvloop's event loop where uvloop is installed, else on asyncio's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from epochmq_protocol.transport.freed_memory import keep_freed_memory

try:
    import uvloop
except ImportError:  # a platform without uvloop: slower, otherwise the same
    _factory: Callable[[], asyncio.AbstractEventLoop] | None = None
else:
    _factory = uvloop.new_event_loop

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs `main` to its end on a new loop and closes the loop. Every process of EpochMQ starts here."""
    keep_freed_memory()
    with asyncio.Runner(loop_factory=_factory) as runner:
        return runner.run(main)
