"""Reads bytes of a file from the disk without an effect on the page cache: pages that were not in memory
before are dropped again. For worker threads."""

from __future__ import annotations

import os
from pathlib import Path


class QuietReader:
    """Reads one file. Not through a mapping: an unreadable sector is an error, not a SIGBUS."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def read(self, at: int, size: int) -> bytes:
        """Reads `size` bytes at this position; zeros follow the end of the file. Raises OSError."""
        fd = self.open()
        data = bytearray(size)
        if _read_resident(fd, data, at) == size:
            return bytes(data)
        try:
            return os.pread(fd, size, at).ljust(size, b"\0")
        finally:
            os.posix_fadvise(fd, at, size, os.POSIX_FADV_DONTNEED)

    def open(self) -> int:
        """Opens the file, if it is not open, and returns its descriptor. Raises OSError."""
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)  # without read-ahead
        return self._fd

    def close(self) -> None:
        """Closes the file; the next `read` opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _read_resident(fd: int, data: bytearray, at: int) -> int:
    """Reads the bytes that are in memory, and returns how many; 0 if the kernel does not tell."""
    try:
        return os.preadv(fd, [data], at, os.RWF_NOWAIT)
    except OSError:
        # Not in memory, or this file system cannot tell, or the read failed: an ordinary read decides.
        return 0
