"""A list of equally sized files that hold one long run of bytes (`MmapFileList`).

Files are named by their first byte's offset, twenty digits, and have their full size from the start, zeros
where nothing is written yet. They are written with pwrite rather than through a mapping: a full disk is then
an error to answer, where a store into a mapping would kill the process.
"""

from __future__ import annotations

import errno
import os
import re
from itertools import pairwise
from pathlib import Path

from epochmq_dledger.core.log import LogFullError
from epochmq_protocol.durable_files import sync_directory

_NAME = re.compile(r"\d{20}")
_ERASED_AT_ONCE = 1 << 20


class Segments:
    """The files of one folder. Offsets are absolute."""

    def __init__(self, folder: Path, file_size: int) -> None:
        self.folder = folder
        self.file_size = file_size
        self._files: dict[int, int] = {}
        self._dirty: set[int] = set()

    def open(self) -> None:
        """Opens what is there. A last file that was never given its size is from a crash in between, and
        goes. All files count as written: what a process that was killed has left in the kernel's hands is not
        durable yet, though it can be read."""
        self.folder.mkdir(parents=True, exist_ok=True)
        names = sorted(path for path in self.folder.iterdir() if _NAME.fullmatch(path.name))
        for path in names:
            size = path.stat().st_size
            if size == 0 and path == names[-1]:
                path.unlink()
            elif size != self.file_size:
                raise ValueError(f"{path}: {size} bytes, expected {self.file_size} as configured")
            else:
                self._files[int(path.name)] = os.open(path, os.O_RDWR)
        bases = self.bases
        self._dirty.update(bases)
        for before, after in pairwise(bases):
            if after - before != self.file_size:
                raise ValueError(f"{self.folder}: a file is missing between {before:020d} and {after:020d}")

    def close(self) -> None:
        """Closes all files."""
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()

    @property
    def bases(self) -> list[int]:
        """The first offsets of the files there are, in order."""
        return sorted(self._files)

    def read(self, offset: int, size: int) -> bytes:
        """The bytes at `offset`, which lie in one file; fewer where the file ends, none where there is no
        file."""
        base = offset - offset % self.file_size
        fd = self._files.get(base)
        if fd is None:
            return b""
        return os.pread(fd, min(size, base + self.file_size - offset), offset - base)

    def write(self, offset: int, data: bytes) -> None:
        """Writes within one file, which is made if need be. LogFullError: the disk took less than all."""
        base = offset - offset % self.file_size
        assert offset - base + len(data) <= self.file_size, (offset, len(data), self.file_size)
        try:
            fd = self._files.get(base)
            if fd is None:
                fd = self._create(base)
            done = 0
            while done < len(data):
                done += os.pwrite(fd, data[done:] if done else data, offset - base + done)
        except OSError as error:
            raise LogFullError(f"{self.folder}: {error}") from error
        self._dirty.add(base)

    def _create(self, base: int) -> int:
        path = self.folder / f"{base:020d}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.ftruncate(fd, self.file_size)
            os.fsync(fd)
            self._sync_folder()
        except OSError:
            os.close(fd)
            path.unlink()
            raise
        self._files[base] = fd
        return fd

    def _sync_folder(self) -> None:
        """Without it a file that was made, or removed, may be gone or back after a power failure."""
        sync_directory(self.folder)

    def drop_from(self, offset: int) -> None:
        """Removes the files that begin at or after `offset`, durably, the last one first: a crash in between
        leaves no gap."""
        dropped = [base for base in self.bases if base >= offset]
        for base in reversed(dropped):
            os.close(self._files.pop(base))
            self._dirty.discard(base)
            (self.folder / f"{base:020d}").unlink()
        if dropped:
            self._sync_folder()

    def erase_from(self, offset: int) -> None:
        """Makes the rest of the file that `offset` lies in zeros, where it is not; holes are left out."""
        base = offset - offset % self.file_size
        fd, at = self._files.get(base), offset - base
        while fd is not None and at < self.file_size:
            try:
                at = os.lseek(fd, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return  # nothing but a hole
                raise
            size = min(_ERASED_AT_ONCE, self.file_size - at)
            if os.pread(fd, size, at).strip(b"\0"):
                self.write(base + at, bytes(size))
            at += size

    def drop_before(self, offset: int) -> None:
        """Removes the files that end at or before `offset`, durably, the first one first: whatever remains
        after a crash follows without a gap."""
        dropped = [base for base in self.bases if base + self.file_size <= offset]
        for base in dropped:
            os.close(self._files.pop(base))
            self._dirty.discard(base)
            (self.folder / f"{base:020d}").unlink()
        if dropped:
            self._sync_folder()

    def take_dirty(self) -> list[int]:
        """Duplicates of the descriptors of the files written since the last call: a thread may sync and close
        them while this object goes on."""
        fds = [os.dup(self._files[base]) for base in self._dirty if base in self._files]
        self._dirty.clear()
        return fds


def sync_and_close(fds: list[int]) -> None:
    """Makes files durable, then lets go of them. OSError: nothing may be taken for durable any more."""
    try:
        for fd in fds:
            os.fdatasync(fd)
    finally:
        for fd in fds:
            os.close(fd)
