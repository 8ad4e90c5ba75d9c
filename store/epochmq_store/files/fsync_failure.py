"""Remembers the first failed fsync of a store.

Every thread that syncs a file of the store reports a failure to the same latch at once. The event loop learns
of it later, and the store may be stopped before. Only a start that has rewritten the suspect files
(`suspect_rewrite.py`) begins with a clear latch.

EMFILE and ENFILE are not failed fsyncs: the file could not be opened, the pages stay dirty, and the flush is
retried.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

_SHORTAGES = frozenset((errno.EMFILE, errno.ENFILE))  # fsync(2) returns neither


def is_descriptor_shortage(error: OSError) -> bool:
    """Whether the process or the machine had no file descriptor left, so that no fsync was attempted."""
    return error.errno in _SHORTAGES


class FsyncFailure:
    """The latch. `error` is the first failure, None without one."""

    def __init__(self, record: Callable[[], None]) -> None:
        """`record` writes the failure to disk. It is called once, on the thread of the first report, and
        raises nothing."""
        self.error: OSError | None = None
        self._record = record
        self._lock = threading.Lock()

    def report(self, error: OSError) -> None:
        """Records that an fsync has failed; on any thread."""
        with self._lock:
            if self.error is not None:
                return
            self.error = error
            self._record()
