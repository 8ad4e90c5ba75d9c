"""Locks a directory for one process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class DirectoryLock:
    """An exclusive lock on a directory, by a file `lock` in it. The kernel releases it when the process
    ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._handle: int | None = None

    def acquire(self) -> None:
        """Creates the directory if needed, and locks it. OSError if that fails, or another process holds the
        lock."""
        self.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            raise OSError(error.errno, "in use by another process", str(self.folder)) from None
        self._handle = handle

    def release(self) -> None:
        """Releases the lock."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
