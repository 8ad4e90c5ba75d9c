"""Locks a state directory. The locks are the operating system's: they end with their holder, however it
ends."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from epochmq_operator.local.errors import StateError

APPLY_WAIT_S = 120.0
LOCK_WAIT_S = 2.0
_POLL_S = 0.05


class SupervisorLock:
    """The lock that the one supervisor of a state directory holds for as long as it lives."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def try_acquire(self) -> bool:
        """Acquires the lock if it is free; it is held until `release` or the end of this process."""
        if self._file is None:
            self._file = _try_flock(self._path)
        return self._file is not None

    async def acquire(self) -> None:
        """Acquires the lock. Waits a moment if it is taken, because `is_held` takes it to test it. StateError
        if another supervisor holds it."""
        deadline = time.monotonic() + LOCK_WAIT_S
        while not self.try_acquire():
            if time.monotonic() > deadline:
                raise StateError(f"{self._path.parent} is in use by another supervisor")
            await asyncio.sleep(_POLL_S)

    def release(self) -> None:
        """Releases the lock if this process holds it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def is_held(self) -> bool:
        """Whether this or another process holds the lock."""
        if self._file is not None:
            return True
        if not self._path.exists():
            return False
        attempt = _try_flock(self._path)
        if attempt is None:
            return True
        os.close(attempt)
        return False


@contextlib.contextmanager
def apply_lock(path: Path) -> Iterator[None]:
    """Excludes other `up` and `down` while the `with` block runs. StateError if one of them takes too
    long."""
    deadline = time.monotonic() + APPLY_WAIT_S
    while (held := _try_flock(path)) is None:
        if time.monotonic() > deadline:
            raise StateError(f"another up or down has been at work in {path.parent} for {APPLY_WAIT_S:.0f} s")
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        os.close(held)


def _try_flock(path: Path) -> int | None:
    """An open file with an exclusive lock, None if another process holds the lock. Closing the file releases
    it."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StateError(f"{path} cannot be opened: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle
