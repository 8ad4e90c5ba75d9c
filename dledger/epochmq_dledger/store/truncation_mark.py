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
from pathlib import Path

from epochmq_formats.dledger_peer_files import MARK_BYTES, NO_MARK, decode_mark, encode_mark
from epochmq_protocol.durable_files import sync_directory

NAME = "cut"


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
        data = os.pread(self._fd, MARK_BYTES, 0)
        if len(data) < MARK_BYTES:
            self._put(NO_MARK)
            sync_directory(self.folder)
            return None
        return decode_mark(data)

    def write(self, end_pos: int) -> None:
        """Sets the mark, durably."""
        self._put(encode_mark(end_pos))

    def clear(self) -> None:
        """Clears the mark, durably."""
        self._put(NO_MARK)

    def close(self) -> None:
        """Closes the file."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _put(self, data: bytes) -> None:
        if os.pwrite(self._fd, data, 0) != len(data):
            raise OSError(errno.EIO, "short write", str(self.folder / NAME))
        os.fdatasync(self._fd)
