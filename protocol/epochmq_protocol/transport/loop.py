"""Which event loop runs: uvloop's where it is installed, else asyncio's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

try:
    import uvloop
except ImportError:  # a platform without it: slower, otherwise the same
    _factory: Callable[[], asyncio.AbstractEventLoop] | None = None
else:
    _factory = uvloop.new_event_loop

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs `main` to its end on a fresh loop and closes that loop. The entry of every process of ours."""
    with asyncio.Runner(loop_factory=_factory) as runner:
        return runner.run(main)
