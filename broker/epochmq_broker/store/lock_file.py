"""The store's `lock` file: one broker, ours or Java's, at a time (DefaultMessageStore's FileLock on byte
0)."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from epochmq_broker.store.mapped_file import StoreDamagedError

# A process may take a POSIX lock that it holds already; two stores of one process must exclude each other
# too.
_held: set[Path] = set()


class StoreLockedError(StoreDamagedError):
    """Another broker has the directory."""


class LockFile:
    """Held from construction to `release`."""

    def __init__(self, path: Path) -> None:
        """Takes the lock. Raises StoreLockedError when somebody else has it, or OSError."""
        path = path.parent.resolve() / path.name
        if path in _held:
            raise StoreLockedError(f"{path} is locked by this process already")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
        except OSError as error:
            os.close(fd)
            raise StoreLockedError(
                f"{path} is locked: another broker uses this directory ({error})"
            ) from error
        os.pwrite(fd, b"lock", 0)
        self._path = path
        self._fd = fd
        _held.add(path)

    def release(self) -> None:
        """Lets the directory go."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            _held.discard(self._path)
