"""Locks the store's directory: the `lock` file admits one broker at a time, ours or RocketMQ's
(DefaultMessageStore's FileLock on byte 0)."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from epochmq_store.files.mapped_file import StoreDamagedError

# POSIX locks exclude other processes only; this set excludes two stores of one process.
_held: set[Path] = set()


class StoreLockedError(StoreDamagedError):
    """Another broker uses the directory."""


class LockFile:
    """A lock that is held from construction to `release`."""

    def __init__(self, path: Path) -> None:
        """Takes the lock. Raises StoreLockedError when another broker holds it, or OSError."""
        path = path.parent.resolve() / path.name
        if path in _held:
            raise StoreLockedError(f"{path} is locked: another store of this process uses the directory")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
        except OSError as error:
            os.close(fd)
            raise StoreLockedError(
                f"{path} is locked: another broker uses the directory ({error}). Stop it, or use another "
                "storePathRootDir"
            ) from error
        os.pwrite(fd, b"lock", 0)
        self._path = path
        self._fd = fd
        _held.add(path)

    def release(self) -> None:
        """Releases the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            _held.discard(self._path)
