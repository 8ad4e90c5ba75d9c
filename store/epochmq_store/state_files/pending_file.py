"""Keeps the newest content of a state file in `NAME.pending`, unsynced, so that it survives a kill.

The file stays open, and content is overwritten in place, alternately in one of two slots. This takes no
longer than a copy into the page cache. (A file that replaces another one, or was truncated, is written to the
disk by ext4 at once, and the caller waits for the journal.) The format is that of
`epochmq_formats.pending_file`.

A kill may leave the slot that is being written incomplete; the other one is complete. After a power loss
either slot may be incomplete or out of date, so slots of another boot do not count.
"""

from __future__ import annotations

import os
from pathlib import Path

from epochmq_formats.pending_file import (
    HEADER_BYTES,
    PENDING_SUFFIX,
    SLOT_BYTES,
    boot_field,
    decode_header,
    encode_slot,
    is_content,
)
from epochmq_protocol.durable_files import make_directory
from epochmq_store.state_files.abort_file import boot_id


def pending_path(path: Path) -> Path:
    """The path of the pending file of the state file `path`."""
    return path.with_name(path.name + PENDING_SUFFIX)


class PendingFile:
    """The pending file of one state file, open for writing."""

    def __init__(self, path: Path, mode: int = 0o644) -> None:
        """`path` is that of the state file, `mode` the permissions of a new pending file. Raises OSError."""
        make_directory(path.parent)
        self._fd = os.open(pending_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        self._boot = _boot()
        newest = _newest(self._fd, self._boot)
        self._generation = 0 if newest is None else newest[0]

    def write(self, data: bytes) -> None:
        """Stores the content; empty content means that nothing is pending. Raises OSError, also for content
        that is too large."""
        if len(data) > SLOT_BYTES - HEADER_BYTES:
            raise OSError(f"{len(data)} bytes, expected at most {SLOT_BYTES - HEADER_BYTES}")
        generation = self._generation + 1
        slot = encode_slot(self._boot, generation, data)
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
    return boot_field(boot_id())


def _newest(fd: int, boot: bytes) -> tuple[int, bytes] | None:
    """(generation, content) of the newer complete slot of this boot."""
    found = [slot for at in (0, SLOT_BYTES) if (slot := _read_slot(fd, at, boot)) is not None]
    return max(found, default=None)


def _read_slot(fd: int, at: int, boot: bytes) -> tuple[int, bytes] | None:
    header = decode_header(os.pread(fd, HEADER_BYTES, at), boot)
    if header is None:
        return None
    data = os.pread(fd, header[1], at + HEADER_BYTES)
    return (header[0], data) if is_content(data, boot, *header) else None
