"""Keeps the newest content of a state file in `NAME.pending`, unsynced, so that it survives a kill.

The file stays open, and content is overwritten in place, alternately in one of two slots. This takes no
longer than a copy into the page cache. (A file that replaces another one, or was truncated, is written to the
disk by ext4 at once, and the caller waits for the journal.) A slot starts with a header:

    magic       8 bytes, b"epmqpend"
    boot        36 bytes, the id of the boot in which the slot was written
    generation  8 bytes, big endian; the slot with the greater one is the newer
    size        4 bytes, big endian; 0: nothing is pending
    CRC-32      4 bytes, big endian, of boot, generation, size and content

A kill may leave the slot that is being written incomplete; the other one is complete. After a power loss
either slot may be incomplete or out of date, so slots of another boot do not count.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

from epochmq_protocol.checksum import crc32
from epochmq_store.abort_file import boot_id

PENDING_SUFFIX: Final = ".pending"
SLOT_BYTES: Final = 64 << 20
"""The position of the second slot in the sparse file. Larger content is rejected."""
_MAGIC: Final = b"epmqpend"
_HEADER: Final = struct.Struct(">8s36sqiI")
_COVERED: Final = struct.Struct(">36sqi")


def pending_path(path: Path) -> Path:
    """The path of the pending file of the state file `path`."""
    return path.with_name(path.name + PENDING_SUFFIX)


class PendingFile:
    """The pending file of one state file, open for writing."""

    def __init__(self, path: Path, mode: int = 0o644) -> None:
        """`path` is that of the state file, `mode` the permissions of a new pending file. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(pending_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        self._boot = _boot()
        newest = _newest(self._fd, self._boot)
        self._generation = 0 if newest is None else newest[0]

    def write(self, data: bytes) -> None:
        """Stores the content; empty content means that nothing is pending. Raises OSError, also for content
        that is too large."""
        if len(data) > SLOT_BYTES - _HEADER.size:
            raise OSError(f"{len(data)} bytes, expected at most {SLOT_BYTES - _HEADER.size}")
        generation = self._generation + 1
        crc = crc32(data, crc32(_COVERED.pack(self._boot, generation, len(data))))
        slot = _HEADER.pack(_MAGIC, self._boot, generation, len(data), crc) + data
        at = generation % 2 * SLOT_BYTES
        done = 0
        while done < len(slot):
            done += os.pwrite(self._fd, slot[done:] if done else slot, at + done)
        self._generation = generation

    def touch(self) -> None:
        """Makes this file newer than the state file. Raises OSError."""
        os.utime(self._fd)

    def close(self) -> None:
        """Closes the file and keeps its content."""
        os.close(self._fd)


def read_pending(path: Path) -> bytes | None:
    """The pending content of the state file `path`. None without pending content, if it is incomplete or of
    another boot, or if the state file is newer: another broker may have used the directory since."""
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
    """(generation, content) of the newer complete slot of this boot."""
    found = [slot for at in (0, SLOT_BYTES) if (slot := _read_slot(fd, at, boot)) is not None]
    return max(found, default=None)


def _read_slot(fd: int, at: int, boot: bytes) -> tuple[int, bytes] | None:
    head = os.pread(fd, _HEADER.size, at)
    if len(head) < _HEADER.size:
        return None
    magic, written_in, generation, size, crc = _HEADER.unpack(head)
    if magic != _MAGIC or written_in != boot or not 0 <= size <= SLOT_BYTES - _HEADER.size:
        return None
    data = os.pread(fd, size, at + _HEADER.size)
    whole = len(data) == size and crc32(data, crc32(_COVERED.pack(boot, generation, size))) == crc
    return (generation, data) if whole else None
