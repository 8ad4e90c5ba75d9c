"""`cut`: a mark in a peer's folder while the end of its log is being erased.

Erasing is not atomic. After a power failure in the middle of it some of the erased entries may be there
still, behind others that are gone, and would look like a log that was damaged. The mark says where the log
ends. It is durable before the first byte is erased, and cleared, durably, before anything is appended
again. The file is there from the first start on and is written in place, so that a full disk cannot be in
the way.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from pathlib import Path

from epochmq_protocol.durable_files import sync_directory

NAME = "cut"
_MARK = struct.Struct(">qI")
"""Where the log ends, and the CRC-32 of these eight bytes. It lies in one sector, which is written as a whole
or not at all."""


class TruncationMark:
    """The mark of one folder. Its functions wait for the disk: they are for worker threads, and for
    starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._fd = -1

    def open(self) -> int | None:
        """The byte from which on the log was being erased; None without a mark."""
        path = self.folder / NAME
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        data = os.pread(self._fd, _MARK.size, 0)
        if len(data) < _MARK.size:
            self._put(bytes(_MARK.size))
            sync_directory(self.folder)
            return None
        end_pos, crc = _MARK.unpack(data)
        return end_pos if crc and crc == zlib.crc32(data[:8]) else None

    def write(self, end_pos: int) -> None:
        """Makes the mark durable."""
        head = end_pos.to_bytes(8, "big")
        self._put(_MARK.pack(end_pos, zlib.crc32(head)))

    def clear(self) -> None:
        """Takes it back, durably."""
        self._put(bytes(_MARK.size))

    def close(self) -> None:
        """Lets go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _put(self, data: bytes) -> None:
        if os.pwrite(self._fd, data, 0) != len(data):
            raise OSError(errno.EIO, "written in part only", str(self.folder / NAME))
        os.fdatasync(self._fd)
