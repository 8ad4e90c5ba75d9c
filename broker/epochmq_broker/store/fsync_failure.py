"""Remembers the first fsync of a store that failed.

Every thread that syncs a file of the store reports to the same latch, at once: the event loop hears of the
outcome later, and a stop may come in between. Nothing clears the latch but a start that has dealt with the
failure (`rewrite.py`).

A process or machine that has no descriptor left for opening a file is no failed fsync: nothing was tried, the
pages stay dirty, and the flush is tried again later.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

_SHORTAGES = frozenset((errno.EMFILE, errno.ENFILE))  # fsync itself returns neither


def is_descriptor_shortage(error: OSError) -> bool:
    """Whether the process or machine had no descriptor left, so that nothing has been tried."""
    return error.errno in _SHORTAGES


class FsyncFailure:
    """The latch. `error` is the first failure, None while there is none."""

    def __init__(self, record: Callable[[], None]) -> None:
        """`record` keeps the failure on disk; it is called once, on the thread that reports first, and raises
        nothing."""
        self.error: OSError | None = None
        self._record = record
        self._lock = threading.Lock()

    def report(self, error: OSError) -> None:
        """An fsync has failed; on any thread."""
        with self._lock:
            if self.error is not None:
                return
            self.error = error
            self._record()
