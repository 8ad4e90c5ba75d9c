"""Simulated files, on which the production log store runs in a simulated world. They know what was written
and what is durable, and lose the difference when the power fails, sector by sector.

`SimulatedOs` replaces the `os` calls of `epochmq_dledger.store.segments` and its directories, so that the
simulation runs production's `FileLog` and `Segments`. Effects of a power failure:

- Each sector (512 bytes) that was written but not synced holds the new or the old bytes, by chance: a write
  of several sectors is torn, and a later write may survive an earlier one.
- A file that was created or removed since the last sync of its directory exists or not, in the order of these
  changes.
- A file that got its size but was never synced may have size 0.

kill -9 loses nothing of this, because the kernel keeps the pages. A failed sync loses pages as a power
failure does.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from epochmq_dledger.store import segments, truncation_mark

SECTOR = 512
DISK_FULL, DISK_ERROR = errno.ENOSPC, errno.EIO
FIRST_FD = 1 << 20


class DiskState:
    """The present faults of one machine's disk."""

    def __init__(self) -> None:
        self.room: int | None = None
        """Free sectors; None: unlimited."""
        self.failing: dict[str, int] = {}
        """The number of system calls of a kind that succeed before all later ones fail with EIO."""
        self.lies = False
        """Syncs report success and make nothing durable."""
        self.failed: list[str] = []
        """The calls that failed, in order."""

    def call(self, kind: str) -> None:
        """Makes a system call of a kind. OSError if the disk fails it."""
        left = self.failing.get(kind)
        if left is None:
            return
        self.failing[kind] = left - 1
        if left <= 0:
            self.failed.append(kind)
            raise OSError(DISK_ERROR, f"simulated: {kind}")


class Inode:
    """A file's bytes, written and durable."""

    __slots__ = ("allocated", "data", "disk", "durable", "synced_at", "writes")

    def __init__(self, disk: DiskState) -> None:
        self.disk = disk
        self.allocated: set[int] = set()
        """The sectors that were written at least once."""
        self.data = bytearray()
        self.durable = b""
        self.writes = 0
        self.synced_at = 0

    def crash(self, rng: random.Random) -> tuple[int, int]:
        """Cuts the power. Returns (sectors lost, sectors kept behind a lost one)."""
        if bytes(self.data) == self.durable:
            return 0, 0
        if len(self.durable) != len(self.data):
            self.durable = bytes(len(self.data)) if rng.random() < 0.5 else b""
            if not self.durable:
                self.data = bytearray()
                return 1, 0
        lost = torn = 0
        before_lost = False
        for at in range(0, len(self.data), SECTOR):
            old, new = self.durable[at : at + SECTOR], self.data[at : at + SECTOR]
            if old != new:
                if rng.random() < 0.5:
                    self.data[at : at + SECTOR] = old
                    lost += 1
                    before_lost = True
                elif before_lost:
                    torn += 1
        self.durable = bytes(self.data)
        return lost, torn


class SimulatedFolder:
    """What `Segments` uses of a directory's `Path`, with names that may not be durable yet."""

    def __init__(self, disk: DiskState | None = None) -> None:
        self.disk = disk or DiskState()
        self.names: dict[str, Inode] = {}
        self.changes: list[tuple[str, Inode | None]] = []
        """Names created and removed since the last sync of the directory."""
        self.durable: dict[str, Inode] = {}

    def mkdir(self, **_: object) -> None:
        """The directory exists already."""

    def exists(self) -> bool:
        """It always does."""
        return True

    def iterdir(self) -> Iterator[SimulatedPath]:
        return iter([SimulatedPath(self, name) for name in self.names])

    def __truediv__(self, name: str) -> SimulatedPath:
        return SimulatedPath(self, name)

    def __str__(self) -> str:
        return "a folder"

    def sync(self) -> None:
        self.disk.call("fsync")
        if self.disk.lies:
            return
        self.durable = dict(self.names)
        self.changes.clear()

    def crash(self, rng: random.Random) -> tuple[int, int]:
        """Cuts the power. Returns (names and sectors lost, sectors kept behind a lost one)."""
        kept = rng.randint(0, len(self.changes))
        lost, torn = len(self.changes) - kept, 0
        for name, inode in self.changes[:kept]:
            if inode is None:
                self.durable.pop(name, None)
            else:
                self.durable[name] = inode
        self.names = dict(self.durable)
        self.changes.clear()
        for inode in self.names.values():
            more_lost, more_torn = inode.crash(rng)
            lost, torn = lost + more_lost, torn + more_torn
        return lost, torn


class SimulatedPath:
    """What `Segments` uses of a file's `Path`."""

    def __init__(self, folder: SimulatedFolder, name: str) -> None:
        self.folder = folder
        self.name = name

    def __lt__(self, other: SimulatedPath) -> bool:
        return self.name < other.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SimulatedPath) and self.name == other.name

    __hash__ = None  # type: ignore[assignment]

    def stat(self) -> SimpleNamespace:
        return SimpleNamespace(st_size=len(self.folder.names[self.name].data))

    def __str__(self) -> str:
        return self.name

    def unlink(self) -> None:
        self.folder.disk.call("unlink")
        del self.folder.names[self.name]
        self.folder.changes.append((self.name, None))


class SimulatedOs:
    """The `os` calls of `Segments`. A duplicated descriptor stands for a later sync, which does not cover
    writes after the duplication."""

    O_RDWR, O_CREAT, O_RDONLY, SEEK_DATA = os.O_RDWR, os.O_CREAT, os.O_RDONLY, os.SEEK_DATA
    POSIX_FADV_DONTNEED = 0

    def __init__(self) -> None:
        self.next_fd = itertools.count(FIRST_FD)
        self.open_files: dict[int, tuple[Inode | SimulatedFolder, bytes, int]] = {}

    def open(self, path: SimulatedPath | SimulatedFolder, flags: int, mode: int = 0) -> int:
        if isinstance(path, SimulatedFolder):
            return self._opened(path)
        inode = path.folder.names.get(path.name)
        if inode is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, "no such file", path.name)
            path.folder.disk.call("open")
            inode = path.folder.names[path.name] = Inode(path.folder.disk)
            path.folder.changes.append((path.name, inode))
        return self._opened(inode)

    def _opened(self, what: Inode | SimulatedFolder, snapshot: bytes = b"", writes: int = -1) -> int:
        fd = next(self.next_fd)
        self.open_files[fd] = (what, snapshot, writes)
        return fd

    def _inode(self, fd: int) -> Inode:
        inode = self.open_files[fd][0]
        assert isinstance(inode, Inode)
        return inode

    def close(self, fd: int) -> None:
        del self.open_files[fd]

    def dup(self, fd: int) -> int:
        what = self.open_files[fd][0]
        if isinstance(what, SimulatedFolder):
            return self._opened(what)
        return self._opened(what, bytes(what.data), what.writes)

    def pread(self, fd: int, size: int, at: int) -> bytes:
        return bytes(self._inode(fd).data[at : at + size])

    def pwrite(self, fd: int, data: bytes, at: int) -> int:
        """Writes. A full disk takes only a part, and then nothing. A failed call may have written a part."""
        inode = self._inode(fd)
        self.open_files[fd] = (inode, b"", -1)  # a sync of this descriptor covers its own writes
        size = len(data)
        fresh = [n for n in range(at // SECTOR, (at + size - 1) // SECTOR + 1) if n not in inode.allocated]
        disk = inode.disk
        if disk.room is not None and len(fresh) > disk.room:
            size = max(0, fresh[disk.room] * SECTOR - at)
            fresh = fresh[: disk.room]
            if size == 0:
                raise OSError(DISK_FULL, "simulated: no room")
        try:
            disk.call("pwrite")
        except OSError:
            size //= 2
            raise
        finally:
            inode.data[at : at + size] = data[:size]
            inode.writes += 1
            inode.allocated.update(fresh)
            if disk.room is not None:
                disk.room -= len(fresh)
        return size

    def posix_fadvise(self, *_: int) -> None:
        """Does nothing: only a failed sync leaves memory and disk different, and `DiskState` has dropped
        those pages."""

    def lseek(self, fd: int, at: int, _whence: int) -> int:
        return at

    def ftruncate(self, fd: int, size: int) -> None:
        inode = self._inode(fd)
        inode.disk.call("ftruncate")
        inode.data = bytearray(size)
        inode.writes += 1

    def fdatasync(self, fd: int) -> None:
        what, snapshot, writes = self.open_files[fd]
        if isinstance(what, SimulatedFolder):
            what.sync()
            return
        what.disk.call("fsync")
        if what.disk.lies:
            return
        if writes < 0:
            snapshot, writes = bytes(what.data), what.writes
        if writes > what.synced_at:
            what.durable, what.synced_at = snapshot, writes

    fsync = fdatasync

    def sync_directory(self, folder: SimulatedFolder) -> None:
        """Replaces `durable_files.sync_directory`."""
        folder.sync()

    def installed(self) -> Any:
        """Runs `Segments` on these files while the context lasts."""
        found = contextlib.ExitStack()
        for module in (segments, truncation_mark):
            found.enter_context(mock.patch.multiple(module, os=self, sync_directory=self.sync_directory))
        return found
