"""Keeps which files the log has, in the file `logExtent.json`, so that a start notices a missing one.

A file in the middle leaves a gap. The loss of the first files looks like expiry, and the loss of the last
files like a shorter log. The file holds the start offset of the log's first file and, after a clean stop, of
its last one. It also holds the modification time of the lock file, which RocketMQ changes when it opens the
directory: what RocketMQ's broker did since is not known, and the file does not count then.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from epochmq_protocol.durable_files import replace_file

log = logging.getLogger(__name__)

EXTENT_NAME: Final = "logExtent.json"


class FirstAndLastFile(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Start offsets of the log's first and last file. `last` is None while the log may grow or be
    truncated."""

    first: int
    lock_modified_ns: int
    last: int | None = None


class LogExtentFile:
    """The file of one store. All methods except `read` and `missing_files` write; they block on the disk."""

    def __init__(self, root: Path) -> None:
        self._path = root / EXTENT_NAME
        self._lock = root / "lock"
        self.known: FirstAndLastFile | None = None
        """What the file says; None if it does not exist or does not count."""

    def read(self) -> FirstAndLastFile | None:
        """Reads the file, before the lock is taken."""
        self.known = None
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=FirstAndLastFile)
            if found.lock_modified_ns == self._lock.stat().st_mtime_ns:
                self.known = found
        except (OSError, msgspec.MsgspecError):
            pass
        return self.known

    def write(self, first: int, last: int | None = None) -> None:
        """Writes the extent. Raises nothing: a file that cannot be written is removed, so that no start takes
        an expired file for a missing one."""
        try:
            extent = FirstAndLastFile(first, self._lock.stat().st_mtime_ns, last)
            if extent != self.known:
                replace_file(self._path, msgspec.json.encode(extent))
                self.known = extent
        except OSError as error:
            log.warning("%s cannot be written, and is removed: %s", self._path, error)
            self.forget()

    def forget(self) -> None:
        """Removes the file, because the log may start at another offset from now on. Raises nothing."""
        self.known = None
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def missing_files(left: FirstAndLastFile | None, starts: Sequence[int]) -> str | None:
    """Which files of the log are missing by what a run has `left`, None: none, or unknown. `starts` are the
    start offsets of the files that exist."""
    if left is None:
        return None
    if not starts:
        return f"the log files from {left.first} on"
    if starts[0] > left.first:
        return f"the log files from {left.first} to {starts[0]}"
    if left.last is not None and starts[-1] < left.last:
        return f"the log files after {starts[-1]} up to the one at {left.last}"
    return None
