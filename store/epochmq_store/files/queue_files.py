"""Writes the files of one consume queue by `pwrite` on a worker thread, and reads them through mappings,
which are created on demand and limited in number.

The event loop never writes into these files. A store into a mapped page waits in a page fault whenever the
file system is busy with its journal, and a broker with many queues would need as many mappings and
descriptors. So each write opens the file and closes it again. Units that are not written yet are in the
queue's memory (`consume_queue`).

One thread at a time writes: the worker while the store runs, otherwise the thread that loads or stops the
store. The event loop may read meanwhile: files are added at the end only, and `wrote` of a file grows after
its bytes are written.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import threading
from pathlib import Path
from typing import Final

from epochmq_store.files.mapped_file import (
    DiskFullError,
    FileSequence,
    StoreDamagedError,
    file_name,
    is_full,
    reserve,
    zero_range,
)

NEW_PARENT_DIRS: Final = 4
"""The directories of queue, topic and all queues of a type may be created with a file."""
MAPPINGS_MAX: Final = 16_384
_RESERVE_MIN_BYTES: Final = 16 * 1024
_RESERVE_MAX_BYTES: Final = 1 << 20


class MappingCache:
    """The mappings of all queue files of a store. Beyond `limit` the oldest are dropped. Before Python 3.13 a
    mapping holds a descriptor, so the default limit is a quarter of the allowed descriptors."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit or default_mapping_limit()
        self._files: dict[QueueFile, None] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._files)

    def add(self, file: QueueFile) -> None:
        """Adds a file that was mapped; may drop the oldest mapping, which stays valid for its present
        readers."""
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
    """The number of queue files that may be mapped: a quarter of the descriptors, at most MAPPINGS_MAX."""
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
        """Offset after the last written byte."""
        return self.start + self.wrote

    @property
    def map(self) -> mmap.mmap:
        """The file's mapping, created on demand. Raises OSError."""
        mapping = self.mapping
        if mapping is None:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                mapping = mmap.mmap(fd, self.size)
            finally:
                os.close(fd)
            self.mapping = mapping
            self._mappings.add(self)
        return mapping

    def prepare(self) -> None:
        """Creates the mapping in advance. Raises OSError."""
        _ = self.map

    def create(self) -> None:
        """Creates the file with its full size, as a hole. Raises DiskFullError or OSError."""
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
        self.unsynced_parent_dirs = NEW_PARENT_DIRS

    def append(self, data: memoryview) -> None:
        """Appends bytes to the written ones. Raises DiskFullError or OSError, and then leaves `wrote`
        unchanged."""
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
        """Reserves blocks up to `end` and some way beyond, against fragmentation."""
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
        """Replaces written bytes. Raises OSError."""
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            while data:
                count = os.pwrite(fd, data, at)
                at += count
                data = data[count:]
        finally:
            os.close(fd)

    def pread(self, at: int, size: int) -> bytes:
        """Reads bytes of the file, not through the mapping. Raises OSError."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, size, at)
        finally:
            os.close(fd)

    def sync(self) -> None:
        """Syncs the file's data, but not the directory entries of a new file. Raises OSError."""
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def zero_from(self, position: int) -> bool:
        """Zeros the file from `position` on, and syncs. False when it was zero already. Raises OSError."""
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return zero_range(fd, position, self.size)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Drops the mapping."""
        self._mappings.remove(self)

    def delete(self) -> None:
        """Deletes the file."""
        self.close()
        self.path.unlink(missing_ok=True)


class QueueFiles(FileSequence[QueueFile]):
    """The files of one queue in order; the last one is written. Offsets are bytes of the queue."""

    __slots__ = ("mappings",)

    def __init__(self, directory: Path, file_size: int, mappings: MappingCache, below: str = "") -> None:
        super().__init__(directory, file_size, below)
        self.mappings = mappings

    def load(self) -> None:
        """Finds the files of the directory. Their `wrote` is at the files' ends until recovery sets it. Empty
        files, which a crash during their creation leaves, are removed. Raises StoreDamagedError or
        OSError."""
        if not self.directory.is_dir():
            return
        with os.scandir(self.directory) as entries:
            found = sorted((entry.name, entry.stat().st_size) for entry in entries if entry.is_file())
        for name, size in found:
            path = self.directory / name
            if not name.isdecimal():
                raise StoreDamagedError(f"{path} does not belong into {self.directory.name}; move it away")
            if size == 0:
                path.unlink()
                continue
            if size != self.file_size:
                raise StoreDamagedError(
                    f"{path} has {size} bytes, but the settings say {self.file_size}; "
                    "use the file sizes that the directory was created with, or move the file away"
                )
            file = QueueFile(path, int(name), self.file_size, self.mappings)
            file.wrote = file.size
            self.files.append(file)

    def find(self, offset: int) -> QueueFile | None:
        """The file that contains the byte at this offset, whether it is written yet or not."""
        files = self.files
        if not files or offset < files[0].start:
            return None
        at = (offset - files[0].start) // self.file_size
        return files[at] if at < len(files) else None

    def write(self, start: int, data: bytes, blank: bytes, unsynced: dict[QueueFile, None]) -> None:
        """Writes units at offset `start`, creates the files they need, and adds the files to `unsynced`. In a
        first file that starts before `start`, `blank` units fill the space up to there. After DiskFullError
        or OSError the bytes up to `max_offset` are written, and another call continues from there."""
        left = memoryview(data)
        if self.files:
            skip = self.max_offset - start
            assert skip >= 0
            left = left[skip:]
        while left:
            file = self.files[-1] if self.files else None
            if file is None:
                file = self._create(start - start % self.file_size)
                unsynced[file] = None
                if start > file.start:
                    file.append(memoryview(blank * ((start - file.start) // len(blank))))
                self.files.append(file)
            elif file.wrote == file.size:
                file = self._create(file.start + file.size)
                self.files.append(file)
            unsynced[file] = None
            count = min(len(left), file.size - file.wrote)
            file.append(left[:count])
            left = left[count:]

    def _create(self, start: int) -> QueueFile:
        file = QueueFile(self.directory / file_name(start), start, self.file_size, self.mappings)
        file.create()
        return file

    def truncate(self, offset: int) -> None:
        """Truncates the files at this offset, durably: deletes later files and zeros the rest of the last
        one. Raises OSError."""
        later = next((at for at, file in enumerate(self.files) if file.start > offset), None)
        if later is not None:
            self.delete_from(later)
        if self.files and self.files[-1].end >= offset:
            file = self.files[-1]
            file.zero_from(offset - file.start)
            file.wrote = min(offset - file.start, file.size)
            file.reserved = min(file.reserved, file.wrote)

    def close(self) -> None:
        """Drops all mappings."""
        for file in self.files:
            file.close()
        self.files = []

    def destroy(self) -> None:
        """Deletes all files and the directory. Raises OSError."""
        while self.files:
            self.files.pop().delete()
        with contextlib.suppress(OSError):
            self.directory.rmdir()
