"""Keeps the truncation mark of a peer's directory: the end of the log, while an erasure runs. Its file is
`cut`.

An erasure is not atomic. After a power failure during an erasure, later entries may still be readable while
earlier ones are gone; the log would look damaged. The mark is durable before the first byte is erased, and is
cleared durably before the next append. The file exists from the first start on and is written in place, so
that the mark can be written on a full disk, too.
"""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

from epochmq_protocol.checksum import crc32
from epochmq_protocol.durable_files import sync_directory

NAME = "cut"
_MARK = struct.Struct(">qI")
"""The end of the log, and the CRC-32 of these eight bytes. A disk writes their sector as a whole or not at
all."""


class TruncationMark:
    """The mark of one directory. Its functions wait for the disk: call them on worker threads, or at a
    start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._fd = -1

    def open(self) -> int | None:
        """Opens the file. Returns the end of the log if an erasure was running, None if there is no mark."""
        path = self.folder / NAME
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        data = os.pread(self._fd, _MARK.size, 0)
        if len(data) < _MARK.size:
            self._put(bytes(_MARK.size))
            sync_directory(self.folder)
            return None
        end_pos, crc = _MARK.unpack(data)
        return end_pos if crc and crc == crc32(data[:8]) else None

    def write(self, end_pos: int) -> None:
        """Sets the mark, durably."""
        head = end_pos.to_bytes(8, "big")
        self._put(_MARK.pack(end_pos, crc32(head)))

    def clear(self) -> None:
        """Clears the mark, durably."""
        self._put(bytes(_MARK.size))

    def close(self) -> None:
        """Closes the file."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _put(self, data: bytes) -> None:
        if os.pwrite(self._fd, data, 0) != len(data):
            raise OSError(errno.EIO, "short write", str(self.folder / NAME))
        os.fdatasync(self._fd)
