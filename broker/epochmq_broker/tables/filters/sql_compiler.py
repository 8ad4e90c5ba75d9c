"""Compiles long expressions on a worker thread, one at a time, so that the event loop need not wait."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from epochmq_broker.tables.filters.sql import EXPRESSION_MAX, SqlExpression, is_known, keep, parse_sql
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError

log = logging.getLogger(__name__)

AT_ONCE_CHARS: Final = 512
"""Characters of an expression that is compiled on the event loop, in about a millisecond."""
WAITING_MAX: Final = 1000
"""Requests that wait for expressions. Further ones are rejected."""


class NotCompiledError(Exception):
    """A request needs an expression that is to be compiled on the worker thread first."""

    def __init__(self, text: str) -> None:
        super().__init__(f"the expression {text:.100} is not compiled yet")
        self.text = text


def require_compiled(text: str) -> None:
    """Raises NotCompiledError for a long expression that is not among the latest compiled ones."""
    if AT_ONCE_CHARS < len(text) <= EXPRESSION_MAX and not is_known(text):
        raise NotCompiledError(text)


class SqlCompiler:
    """The expressions of one broker that are being compiled, and the requests that wait for them. All methods
    run on the event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._ready: deque[Callable[[], None]] = deque()
        self._runs = False
        self.waiting = 0
        """How many requests wait."""

    def submit(self, text: str, done: Callable[[], None]) -> None:
        """Compiles an expression, and calls `done` in a later turn. The expression is then among the latest
        ones. RequestError SYSTEM_BUSY: too many requests wait."""
        if self.waiting >= WAITING_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"{self.waiting} requests wait for the compiler of expressions already",
            )
        self.waiting += 1
        self._waiting.setdefault(text, []).append(done)
        if not self._runs:
            self._compile_next()

    def _compile_next(self) -> None:
        self._runs = bool(self._waiting)
        if self._runs:
            text = next(iter(self._waiting))
            compiling = asyncio.get_running_loop().run_in_executor(None, parse_sql, text)
            compiling.add_done_callback(partial(self._compiled, text))

    def _compiled(self, text: str, compiling: asyncio.Future[SqlExpression | str]) -> None:
        if compiling.cancelled():
            return
        error = compiling.exception()
        if error is not None:
            log.error("the filter expression %.200r could not be compiled", text, exc_info=error)
        keep(text, compiling.result() if error is None else f"{type(error).__name__}: {error}")
        self._ready.extend(self._waiting.pop(text))
        self._run_next()

    def _run_next(self) -> None:
        """Runs one request in each turn."""
        done = self._ready.popleft()
        self.waiting -= 1
        try:
            done()
        except Exception:  # the others must still run
            log.exception("a request that waited for an expression failed")
        if self._ready:
            asyncio.get_running_loop().call_soon(self._run_next)
        else:
            self._compile_next()
