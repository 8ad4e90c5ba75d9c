"""The files of one consume queue: written with `pwrite` on a worker thread, read through mappings that are
made on demand and limited in number.

The event loop never stores into these files. A store into a mapped page waits in a page fault whenever the
file system is busy with its journal, and a broker with many queues would need as many mappings and
descriptors. So a file is opened for each write, and closed again; the units that are not written yet are in
the queue's memory (`consume_queue`).

One thread at a time writes: the worker while the store runs, else the thread that loads or stops it. The loop
may read meanwhile: files are only added at the end, and a file's `wrote` moves after its bytes are there.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import threading
from pathlib import Path
from typing import Final

from epochmq_broker.store.mapped_file import (
    DiskFullError,
    FileSequence,
    StoreDamagedError,
    file_name,
    is_full,
    reserve,
    zero_range,
)

NEW_DIRECTORIES: Final = 3  # a queue's folder, its topic's, and the one of all queues may be new with a file
MAPPINGS_MAX: Final = 16_384
_RESERVE_MIN_BYTES: Final = 16 * 1024
_RESERVE_MAX_BYTES: Final = 1 << 20


class MappingCache:
    """The mappings of all queue files of a store, the oldest of which are given up beyond `limit`. Before
    Python 3.13 a mapping holds a descriptor, so the default limit is a quarter of the descriptors there may
    be."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit or default_mapping_limit()
        self._files: dict[QueueFile, None] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._files)

    def add(self, file: QueueFile) -> None:
        """Notes a file that is mapped now; may drop the oldest mapping. A reader that still holds that one
        keeps it alive as long as it reads."""
        with self._lock:
            self._files[file] = None
            while len(self._files) > self._limit:
                oldest = next(iter(self._files))
                del self._files[oldest]
                oldest.mapping = None

    def remove(self, file: QueueFile) -> None:
        """Drops a file's mapping."""
        with self._lock:
            self._files.pop(file, None)
            file.mapping = None


def default_mapping_limit() -> int:
    """How many queue files may be mapped: a quarter of the descriptors, MAPPINGS_MAX at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = max(soft, hard) if hard != resource.RLIM_INFINITY else MAPPINGS_MAX * 4
    return max(min(allowed // 4, MAPPINGS_MAX), 16)


class QueueFile:
    """One file. `wrote` is the number of bytes written so far. `unsynced_parent_dirs` is the number of parent
    directories whose entries may not be on disk yet."""

    __slots__ = ("_mappings", "mapping", "path", "reserved", "size", "start", "unsynced_parent_dirs", "wrote")

    def __init__(self, path: Path, start: int, size: int, mappings: MappingCache) -> None:
        self.path = path
        self.start = start
        self.size = size
        self.wrote = 0
        self.reserved = 0
        self.unsynced_parent_dirs = 0
        self.mapping: mmap.mmap | None = None
        self._mappings = mappings

    @property
    def end(self) -> int:
        """Offset of the first byte behind what is written."""
        return self.start + self.wrote

    @property
    def map(self) -> mmap.mmap:
        """The file's mapping, made when there is none. Raises OSError."""
        found = self.mapping
        if found is None:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                found = mmap.mmap(fd, self.size)
            finally:
                os.close(fd)
            self.mapping = found
            self._mappings.add(self)
        return found

    def prepare(self) -> None:
        """Makes the mapping, so that nobody else has to. Raises OSError."""
        _ = self.map

    def create(self) -> None:
        """Makes the file at its whole size, as a hole. Raises DiskFullError or OSError."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.ftruncate(fd, self.size)
            finally:
                os.close(fd)
        except OSError as error:
            if is_full(error):
                raise DiskFullError(str(error)) from error
            raise
        self.unsynced_parent_dirs = NEW_DIRECTORIES

    def append(self, data: memoryview) -> None:
        """Writes bytes at the end of what is written. Raises DiskFullError or OSError; `wrote` is as it was
        then."""
        end = self.wrote + len(data)
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if end > self.reserved:
                self._reserve(fd, end)
            at = self.wrote
            while at < end:
                at += os.pwrite(fd, data[at - self.wrote :], at)
        except OSError as error:
            if is_full(error):
                raise DiskFullError(str(error)) from error
            raise
        finally:
            os.close(fd)
        self.wrote = end

    def _reserve(self, fd: int, end: int) -> None:
        """Backs the file with blocks up to `end` and some way ahead, so that it does not lie in small
        pieces."""
        start = max(self.reserved, self.wrote)
        growth = min(max(self.reserved, _RESERVE_MIN_BYTES), _RESERVE_MAX_BYTES)
        ahead = min(max(start + growth, end), self.size)
        try:
            reserve(fd, start, ahead)
        except DiskFullError:
            reserve(fd, start, end)
            ahead = end
        self.reserved = ahead

    def overwrite(self, at: int, data: bytes) -> None:
        """Replaces bytes that are written. Raises OSError."""
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            while data:
                count = os.pwrite(fd, data, at)
                at += count
                data = data[count:]
        finally:
            os.close(fd)

    def pread(self, at: int, size: int) -> bytes:
        """Bytes of the file, not through the mapping. Raises OSError."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, size, at)
        finally:
            os.close(fd)

    def sync(self) -> None:
        """Makes what is written durable, but not the names above a new file. Raises OSError."""
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def zero_from(self, position: int) -> bool:
        """Zeros everything from `position` on, on disk too; True when there was anything. Raises OSError."""
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return zero_range(fd, position, self.size)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Gives up the mapping."""
        self._mappings.remove(self)

    def delete(self) -> None:
        """Removes the file from its directory."""
        self.close()
        self.path.unlink(missing_ok=True)


class QueueFiles(FileSequence[QueueFile]):
    """The files of one directory, in order; the last one is written. Positions are bytes of the queue."""

    __slots__ = ("mappings",)

    def __init__(self, directory: Path, file_size: int, mappings: MappingCache) -> None:
        super().__init__(directory, file_size)
        self.mappings = mappings

    def load(self) -> None:
        """Finds what the directory holds; `wrote` is set to the files' ends until recovery has looked. Empty
        files (a crash while they were made) are removed. Raises StoreDamagedError or OSError."""
        if not self.directory.is_dir():
            return
        with os.scandir(self.directory) as entries:
            found = sorted((entry.name, entry.stat().st_size) for entry in entries if entry.is_file())
        for name, size in found:
            path = self.directory / name
            if not name.isdecimal():
                raise StoreDamagedError(f"{path} is no file of {self.directory.name}; move it away")
            if size == 0:
                path.unlink()
                continue
            if size != self.file_size:
                raise StoreDamagedError(
                    f"{path} has {size} bytes where the settings say {self.file_size}; "
                    "use the sizes the directory was made with, or move the file away"
                )
            file = QueueFile(path, int(name), self.file_size, self.mappings)
            file.wrote = file.size
            self.files.append(file)

    def find(self, offset: int) -> QueueFile | None:
        """The file that holds (or will hold) the byte at this offset."""
        files = self.files
        if not files or offset < files[0].start:
            return None
        at = (offset - files[0].start) // self.file_size
        return files[at] if at < len(files) else None

    def write(self, start: int, data: bytes, blank: bytes, unsynced: dict[QueueFile, None]) -> None:
        """Writes units that belong at `start`, in new files where needed, and enters the files into
        `unsynced`. A first file that begins in front of `start` is filled with `blank` units up to there.
        Raises DiskFullError or OSError, with the bytes up to `max_offset` written; calling again goes on
        there."""
        left = memoryview(data)
        if self.files:
            skip = self.max_offset - start
            assert skip >= 0
            left = left[skip:]
        while left:
            file = self.files[-1] if self.files else None
            if file is None:
                file = self._made(start - start % self.file_size)
                unsynced[file] = None
                if start > file.start:
                    file.append(memoryview(blank * ((start - file.start) // len(blank))))
                self.files.append(file)
            elif file.wrote == file.size:
                file = self._made(file.start + file.size)
                self.files.append(file)
            unsynced[file] = None
            count = min(len(left), file.size - file.wrote)
            file.append(left[:count])
            left = left[count:]

    def _made(self, start: int) -> QueueFile:
        file = QueueFile(self.directory / file_name(start), start, self.file_size, self.mappings)
        file.create()
        return file

    def truncate(self, offset: int) -> None:
        """Ends the files at this offset, on disk too: later files are removed, the rest of the file is
        zeroed. Ends durable. Raises OSError."""
        behind = next((at for at, file in enumerate(self.files) if file.start > offset), None)
        if behind is not None:
            self.drop(behind)
        if self.files and self.files[-1].end >= offset:
            file = self.files[-1]
            file.zero_from(offset - file.start)
            file.wrote = min(offset - file.start, file.size)
            file.reserved = min(file.reserved, file.wrote)

    def close(self) -> None:
        """Gives up all mappings."""
        for file in self.files:
            file.close()
        self.files = []

    def destroy(self) -> None:
        """Removes all files and the directory. Raises OSError."""
        while self.files:
            self.files.pop().delete()
        with contextlib.suppress(OSError):
            self.directory.rmdir()
