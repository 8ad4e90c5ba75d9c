"""Stores a long sequence of bytes in files of equal size (`MmapFileList`).

A file's name is its first offset in twenty digits. A file has its full size from the start, with zeros where
nothing is written yet. The files are written with pwrite rather than through a mapping: a full disk is then
an error to handle, where a store into a mapping would kill the process.

All functions that change bytes or names here are fast enough for an event loop. A worker thread completes
their work with `UnsyncedFiles` and `Erasure`: it syncs what was written, and removes and erases what was
dropped.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from epochmq_dledger.core.raft_log import LogFullError
from epochmq_protocol.durable_files import make_directory, sync_directory

_NAME = re.compile(r"\d{20}")
_ERASED_AT_ONCE = 1 << 20
_BLOCK = 4096
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass
class UnsyncedFiles:
    """Duplicated descriptors of files that were written, and of directories with new names."""

    files: list[int] = field(default_factory=list)
    folders: list[int] = field(default_factory=list)

    def __add__(self, other: UnsyncedFiles) -> UnsyncedFiles:
        return UnsyncedFiles(self.files + other.files, self.folders + other.folders)


def is_disk_full(error: Exception) -> bool:
    """Whether an error says that the disk is full."""
    return isinstance(error, OSError) and error.errno in _DISK_FULL


def sync_and_close(unsynced: UnsyncedFiles) -> None:
    """Syncs files, then their directories, and closes the descriptors. OSError: nothing may count as durable
    any more."""
    try:
        for fd in unsynced.files:
            os.fdatasync(fd)
        for fd in unsynced.folders:
            os.fsync(fd)
    finally:
        for fd in unsynced.files + unsynced.folders:
            os.close(fd)


@dataclass
class Erasure:
    """The work of a worker thread after files or bytes were dropped. It overwrites the bytes from `at` on of
    the file `fd` (a duplicated descriptor) with zeros, and closes and unlinks the files `removed`. Their
    order leaves no gap after a crash."""

    folder: Path
    file_size: int
    removed: list[tuple[int, Path]] = field(default_factory=list)
    fd: int = -1
    at: int = 0

    def run(self) -> None:
        """Erases durably. OSError: dropped bytes may come back after a power failure."""
        for fd, path in self.removed:
            os.close(fd)
            with contextlib.suppress(FileNotFoundError):  # the broker's store removes expired files, too
                path.unlink()
        if self.removed:
            sync_directory(self.folder)
        if self.fd >= 0:
            try:
                _erase(self.fd, self.at, self.file_size)
                os.fdatasync(self.fd)
            finally:
                os.close(self.fd)


class Segments:
    """The files of one directory. Offsets are absolute."""

    def __init__(self, folder: Path, file_size: int) -> None:
        self.folder = folder
        self.file_size = file_size
        self._files: dict[int, int] = {}
        self._dirty: set[int] = set()
        self._has_new_names = False
        self.writes = 0
        """The number of changes to files."""

    def open(self) -> None:
        """Opens all files. A file of size 0 was never synced, and is removed. All files count as unsynced:
        what a killed process has written can be read, but the kernel may not have synced it. There may be
        gaps between files. ValueError for a file of another size."""
        make_directory(self.folder)
        names = sorted(path for path in self.folder.iterdir() if _NAME.fullmatch(path.name))
        for path in names:
            size = path.stat().st_size
            if size == 0:
                path.unlink()
            elif size != self.file_size:
                raise ValueError(f"{path} has {size} bytes, expected {self.file_size} as configured")
            else:
                fd = self._files[int(path.name)] = os.open(path, os.O_RDWR)
                # After a failed sync of an earlier process the kernel may show bytes that never reached the
                # disk, and reports a failure once that no sync has reported yet. What the files have after
                # this is on the disk, or fails the next sync.
                with contextlib.suppress(OSError):
                    os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        self._dirty.update(self.bases)
        self._has_new_names = bool(self._files)

    def close(self) -> None:
        """Closes all files."""
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()

    @property
    def bases(self) -> list[int]:
        """The first offsets of the files, in order."""
        return sorted(self._files)

    def path(self, base: int) -> Path:
        """The file that begins at `base`."""
        return self.folder / f"{base:020d}"

    def open_file(self, base: int) -> int | None:
        """A new descriptor, for reading, of the file that begins at `base`, None if there is none: not of one
        that was dropped and waits for its erasure, although its name is still there."""
        fd = self._files.get(base)
        return None if fd is None else os.dup(fd)

    def read(self, offset: int, size: int) -> bytes:
        """The bytes at `offset`, up to the end of the file there. Empty without a file."""
        base = offset - offset % self.file_size
        fd = self._files.get(base)
        if fd is None:
            return b""
        return os.pread(fd, min(size, base + self.file_size - offset), offset - base)

    def next_data(self, offset: int) -> int | None:
        """The first offset from `offset` on, within its file, that is not in a hole. None without one."""
        base = offset - offset % self.file_size
        fd = self._files.get(base)
        return None if fd is None else _next_data(fd, base, offset)

    def write(self, offset: int, data: bytes | bytearray) -> None:
        """Writes within one file, and creates it if needed. LogFullError: the disk is full, and any part of
        `data` may be written. OSError: the disk failed."""
        base = offset - offset % self.file_size
        assert offset - base + len(data) <= self.file_size, (offset, len(data), self.file_size)
        self._dirty.add(base)
        try:
            fd = self._files.get(base)
            if fd is None:
                fd = self._create(base)
            done = 0
            while done < len(data):
                written = os.pwrite(fd, data[done:] if done else data, offset - base + done)
                if written <= 0:
                    raise OSError(errno.EIO, "pwrite wrote no byte", str(self.path(base)))
                self.writes += 1
                done += written
        except OSError as error:
            if is_disk_full(error):
                raise LogFullError(f"{self.folder}: {error}") from error
            raise

    def _create(self, base: int) -> int:
        """Creates a file. It is durable, with its name, once the files of `take_unsynced` are synced."""
        path = self.path(base)
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.ftruncate(fd, self.file_size)
        except OSError:
            os.close(fd)
            path.unlink()
            raise
        self._files[base] = fd
        self._has_new_names = True
        self.writes += 1
        return fd

    # Dropping -----------------------------------------------------------------------------------------------

    def drop_from(self, offset: int) -> Erasure:
        """Drops the files that begin at or after `offset`. The erasure removes the last one first."""
        return self._drop([base for base in reversed(self.bases) if base >= offset])

    def drop_before(self, offset: int) -> Erasure:
        """Drops the files that end at or before `offset`. The erasure removes the first one first."""
        return self._drop([base for base in self.bases if base + self.file_size <= offset])

    def erase_from(self, offset: int, *, keeps_file: bool = False) -> Erasure:
        """Drops all bytes from `offset` on, and the files that then have none, except for the first of them
        with `keeps_file`."""
        base = offset - offset % self.file_size
        if offset == base and not keeps_file:
            return self.drop_from(base)
        found = self.drop_from(base + self.file_size)
        if base in self._files:
            found.fd, found.at = os.dup(self._files[base]), offset - base
        return found

    def _drop(self, bases: list[int]) -> Erasure:
        self._dirty.difference_update(bases)
        removed = [(self._files.pop(base), self.path(base)) for base in bases]
        return Erasure(self.folder, self.file_size, removed)

    # Durability ---------------------------------------------------------------------------------------------

    def take_unsynced(self) -> UnsyncedFiles:
        """The files written since the last call. A worker thread may sync and close them meanwhile."""
        found = UnsyncedFiles(
            [os.dup(self._files[base]) for base in sorted(self._dirty) if base in self._files]
        )
        self._dirty.clear()
        if self._has_new_names:
            self._has_new_names = False
            found.folders.append(os.open(self.folder, os.O_RDONLY))
        return found


def _next_data(fd: int, base: int, offset: int) -> int | None:
    try:
        return base + os.lseek(fd, offset - base, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None  # the rest is a hole
        raise


def _erase(fd: int, at: int, file_size: int) -> None:
    """Overwrites the rest of a file with zeros. It writes only blocks that hold other bytes: their space is
    allocated, so a full disk does not prevent it."""
    while at < file_size:
        found = _next_data(fd, 0, at)
        if found is None:
            return
        piece = os.pread(fd, min(_ERASED_AT_ONCE, file_size - found), found)
        if not piece.strip(b"\0"):
            at = found + len(piece)
            continue
        for block in range(0, len(piece), _BLOCK):
            data = piece[block : block + _BLOCK]
            blank = len(data) - len(data.lstrip(b"\0"))
            end = len(data.rstrip(b"\0"))
            while blank < end:
                written = os.pwrite(fd, bytes(end - blank), found + block + blank)
                if written <= 0:
                    raise OSError(errno.EIO, "pwrite wrote no byte")
                blank += written
        at = found + len(piece)
