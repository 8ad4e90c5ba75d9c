"""`NAME.pending`: content of a state file that survives a kill from the moment it was given, unsynced.

The file stays open, and content is overwritten in place, in turn in one of two slots: that takes no longer
than a copy into the page cache. (For a file that replaces another one, or was truncated, ext4 starts to write
it to the disk at once, and the caller waits for the journal.) A slot begins with a header:

    magic       8 bytes, b"epmqpend"
    boot        36 bytes, in which boot of the machine it was written
    generation  8, big-endian; the slot with the greater one is the newer
    size        4, big-endian; 0: nothing is pending
    CRC-32      4, big-endian, of boot, generation, size and content

A kill may tear the slot that is being written; the other one is whole. After a power loss either slot may be
torn, or be the one that was there before; so what was written in another boot does not count.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Final

from epochmq_broker.store.abort_file import boot_id

PENDING_SUFFIX: Final = ".pending"
SLOT_BYTES: Final = 64 << 20
"""Where the second slot begins; the file is sparse. Content that is larger is not kept."""
_MAGIC: Final = b"epmqpend"
_HEADER: Final = struct.Struct(">8s36sqiI")
_COVERED: Final = struct.Struct(">36sqi")


def pending_path(path: Path) -> Path:
    """Where content of the state file `path` is kept until it is durable."""
    return path.with_name(path.name + PENDING_SUFFIX)


class PendingFile:
    """The pending file of one state file, open for writing."""

    def __init__(self, path: Path) -> None:
        """`path` is the state file's. OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(pending_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._boot = _boot()
        newest = _newest(self._fd, self._boot)
        self._generation = 0 if newest is None else newest[0]

    def write(self, data: bytes) -> None:
        """Keeps the content; empty: nothing is pending any more. OSError, also for content that is too
        large."""
        if len(data) > SLOT_BYTES - _HEADER.size:
            raise OSError(f"{len(data)} bytes, expected at most {SLOT_BYTES - _HEADER.size}")
        generation = self._generation + 1
        crc = zlib.crc32(data, zlib.crc32(_COVERED.pack(self._boot, generation, len(data))))
        slot = _HEADER.pack(_MAGIC, self._boot, generation, len(data), crc) + data
        at = generation % 2 * SLOT_BYTES
        done = 0
        while done < len(slot):
            done += os.pwrite(self._fd, slot[done:] if done else slot, at + done)
        self._generation = generation

    def touch(self) -> None:
        """Makes this file newer than the state file. OSError."""
        os.utime(self._fd)

    def close(self) -> None:
        """Closes the file; what it holds stays."""
        os.close(self._fd)


def read_pending(path: Path) -> bytes | None:
    """The content that is pending for the state file `path`; None where there is none, where it is torn or of
    another boot, or where the state file was written later: another broker may have had the directory
    since."""
    pending = pending_path(path)
    try:
        if path.exists() and pending.stat().st_mtime_ns < path.stat().st_mtime_ns:
            return None
        fd = os.open(pending, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        newest = _newest(fd, _boot())
    except OSError:
        return None
    finally:
        os.close(fd)
    return newest[1] or None if newest is not None else None


def _boot() -> bytes:
    return boot_id().encode()[:36].ljust(36)


def _newest(fd: int, boot: bytes) -> tuple[int, bytes] | None:
    """(generation, content) of the newer slot of this boot that is whole."""
    found = [slot for at in (0, SLOT_BYTES) if (slot := _slot(fd, at, boot)) is not None]
    return max(found, default=None)


def _slot(fd: int, at: int, boot: bytes) -> tuple[int, bytes] | None:
    head = os.pread(fd, _HEADER.size, at)
    if len(head) < _HEADER.size:
        return None
    magic, written_in, generation, size, crc = _HEADER.unpack(head)
    if magic != _MAGIC or written_in != boot or not 0 <= size <= SLOT_BYTES - _HEADER.size:
        return None
    data = os.pread(fd, size, at + _HEADER.size)
    whole = len(data) == size and zlib.crc32(data, zlib.crc32(_COVERED.pack(boot, generation, size))) == crc
    return (generation, data) if whole else None
