"""Writes the warnings that peers cause: some lines a second. Otherwise whoever reaches a port fills the disk
with log lines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

LINES_A_SECOND: Final = 20
"""Of all peers together. Further ones are counted, and the next line has their number."""


class PeerWarnings:
    """The warnings of one process. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._second = -1
        self._written = 0
        self._left_out = 0

    def write(self, log: logging.Logger, text: str, *values: object) -> None:
        """Writes a line, or counts it for the next one."""
        second = int(self.clock())
        if second != self._second:
            self._second, self._written = second, 0
        if self._written >= LINES_A_SECOND:
            self._left_out += 1
            return
        self._written += 1
        if self._left_out:
            text, values = f"{text} (%d warnings about peers were left out before)", (*values, self._left_out)
            self._left_out = 0
        log.warning(text, *values)


PEER_WARNINGS: Final = PeerWarnings()
"""Those of this process."""
