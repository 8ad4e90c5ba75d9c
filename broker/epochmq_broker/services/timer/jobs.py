"""Runs work on timer messages in short turns on the event loop.

Work is a generator. It yields where it may be interrupted, and what it waits for: bytes that have to be read
from the disk, or a pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import Final

from msgspec import Struct

from epochmq_broker.services.cold_reads import ColdReadPool
from epochmq_protocol.errors import RequestError
from epochmq_store.files.page_residency import NotResidentError

log = logging.getLogger(__name__)

PAUSE_AFTER_FAILURE_S: Final = 10.0
PAUSE_WHILE_BUSY_S: Final = 0.1


class Pause(Struct, frozen=True):
    """The work continues after so many seconds."""

    seconds: float


Wait = NotResidentError | Pause | None
"""Bytes that have to be read from the disk first; a pause; None: the work may be interrupted here."""

Work = Generator[Wait, None, None]


class TimerJob:
    """One kind of work, repeated for ever. `begin` makes the work; it is called again when the work is
    done."""

    def __init__(
        self, *, name: str, begin: Callable[[], Work], reads: ColdReadPool, wake: Callable[[], None]
    ) -> None:
        """`wake` is called when work can be done before the next round."""
        self._name = name
        self._begin = begin
        self._reads = reads
        self._wake = wake
        self._work: Work | None = None
        self._reading = False
        self._error: Exception | None = None
        self._paused_until = 0.0

    def reset(self) -> None:
        """Gives up the present work; the next turn begins anew."""
        if self._work is not None:
            self._work.close()
        self._work = None
        self._reading = False
        self._error = None
        self._paused_until = 0.0

    def take_turn(self, deadline: float) -> bool:
        """Works until everything is done (False), or the deadline of the loop's clock has passed (True), or
        the work waits (False)."""
        loop = asyncio.get_running_loop()
        if self._reading or self._paused_until > loop.time():
            return False
        if self._work is None:
            self._work = self._begin()
        while True:
            try:
                wait = self._next(self._work)
            except StopIteration:
                self._work = None
                return False
            except Exception:  # the other work must go on, and this one later
                log.exception("%s failed; it starts again in %g s", self._name, PAUSE_AFTER_FAILURE_S)
                self._work = None
                self._paused_until = loop.time() + PAUSE_AFTER_FAILURE_S
                return False
            if isinstance(wait, Pause):
                self._paused_until = loop.time() + wait.seconds
                return False
            if wait is not None:
                self._read(self._work, wait)
                return False
            if loop.time() > deadline:
                return True

    def _next(self, work: Work) -> Wait:
        error, self._error = self._error, None
        return next(work) if error is None else work.throw(error)

    def _read(self, work: Work, missing: NotResidentError) -> None:
        def done(error: Exception | None) -> None:
            if self._work is work:
                self._reading = False
                self._error = error
                self._wake()

        try:
            self._reading = True
            self._reads.submit(self._name, missing, done)
        except RequestError:  # too many reads wait
            self._reading = False
            self._paused_until = asyncio.get_running_loop().time() + PAUSE_WHILE_BUSY_S
