"""Files of one size, memory-mapped, named by the offset of their first byte (MappedFile, MappedFileQueue).

**Space is reserved before it is written.** A store into a mapped page for which the file system has no
block raises SIGBUS when the disk is full, and that kills the process. So a file is made sparse, as Java
makes it, but every byte is backed by `posix_fallocate` before the mapping is written there, a chunk at a
time and ahead of the write position; ENOSPC then is an exception at a moment when nothing has been changed
yet. On ext4 and xfs that costs 10 to 200 µs for each chunk of 32 MiB, and makes the first store into a page
six times cheaper than a store into a hole, because the page fault needs no block allocation any more. Where
the file system cannot reserve, zeros are written instead.

Only the event loop writes into mappings and moves positions; `flush` and `create` may run on a worker thread.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from epochmq_protocol.durable_files import sync_directory
from epochmq_protocol.errors import EpochMQError

PAGE_BYTES = 4096
NAME_DIGITS = 20
_ZEROS = bytes(1 << 20)
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
# The mapping of a file that is never resized needs no descriptor of its own (Python 3.13 and newer can
# leave it out).
_MAP_OPTIONS: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


class DiskFullError(EpochMQError):
    """No space (or quota) left for the bytes asked for; nothing has been changed."""


class QueueMemoryFullError(DiskFullError):
    """Consume queues hold as much in memory as they may, because the disk is too slow to take it."""


class SpaceNotReadyError(OSError):
    """The disk is so slow that space which was asked for long ago is still not there; nothing has been
    changed."""


class StoreDamagedError(EpochMQError):
    """Files that cannot be a store, or not one with these settings; a person has to look."""


def as_disk_full(error: OSError) -> OSError | DiskFullError:
    """The error as it is to be raised: a lack of space or quota as DiskFullError."""
    return DiskFullError(str(error)) if error.errno in _FULL else error


def file_name(start: int) -> str:
    """A file is named by its start offset in 20 decimal digits (UtilAll.offset2FileName)."""
    return f"{start:0{NAME_DIGITS}d}"


def is_full(error: OSError) -> bool:
    """Whether the disk, or a quota, has no space left."""
    return error.errno in _FULL


def reserve(fd: int, start: int, end: int) -> None:
    """Backs bytes [start, end) of a file with blocks. Raises DiskFullError, or OSError for anything else."""
    try:
        os.posix_fallocate(fd, start, end - start)
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFullError(str(error)) from error
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        _write_zeros(fd, start, end)


def _keep_descriptors(fd: int) -> None:
    """Leaves the last descriptors of the process to the log, and to flushes, which open files and directories
    for a moment: before Python 3.13 a mapping holds one, and queues may be many. The kernel gives out the
    lowest free number. Raises OSError (EMFILE)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and fd >= limit - min(max(limit // 8, 16), 256):
        raise OSError(
            errno.EMFILE, f"{fd} of {limit} descriptors (RLIMIT_NOFILE) are in use: no more queue files"
        )


def _write_zeros(fd: int, start: int, end: int) -> None:
    """For file systems that cannot reserve; [start, end) has never been written."""
    try:
        while start < end:
            start += os.pwrite(fd, _ZEROS[: end - start], start)
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFullError(str(error)) from error
        raise


class MappedFile:
    """One file. Positions are relative to the file; `start` is the offset of its first byte in the queue of
    files."""

    __slots__ = (
        "fd",
        "flushed",
        "map",
        "path",
        "reserved",
        "size",
        "start",
        "unchecked_until",
        "unsynced_parent_dirs",
        "wrote",
    )

    def __init__(self, path: Path, start: int, size: int, *, keep_fd: bool) -> None:
        """Opens a file of `size` bytes, making it when it is missing or empty. `keep_fd` keeps a descriptor
        open for reading and flushing (`fd`, else -1). Raises StoreDamagedError, DiskFullError or
        OSError."""
        self.path = path
        self.start = start
        self.size = size
        self.unsynced_parent_dirs = 0  # directories above whose entries are not durable yet
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not keep_fd:
                _keep_descriptors(fd)
            present = os.fstat(fd).st_size
            if present == 0:
                os.ftruncate(fd, size)
            elif present != size:
                raise StoreDamagedError(
                    f"{path} has {present} bytes where the settings say {size}; "
                    "use the sizes the directory was made with, or move the file away"
                )
            self.map = mmap.mmap(fd, size, **_MAP_OPTIONS)
        except OSError as error:
            os.close(fd)
            if error.errno in _FULL:
                raise DiskFullError(str(error)) from error
            raise
        except BaseException:
            os.close(fd)
            raise
        if keep_fd:
            self.fd = fd
        else:
            self.fd = -1
            os.close(fd)
        self.wrote = 0
        self.flushed = 0
        self.reserved = 0
        self.unchecked_until = 0  # up to here the append path writes without asking for room

    @property
    def end(self) -> int:
        """Offset of the first byte behind what is written."""
        return self.start + self.wrote

    def reserve(self, end: int) -> None:
        """Backs everything up to `end` with blocks; must precede any store behind `reserved`. Raises
        DiskFullError."""
        start = max(self.reserved, self.wrote)
        if end > start:
            with self._descriptor() as fd:
                reserve(fd, start, end)
            self.reserved = end

    def write(self, at: int, data: memoryview) -> None:
        """Puts bytes at a position below `reserved`, not through the mapping. Raises OSError."""
        with self._descriptor() as fd:
            done = 0
            while done < len(data):
                done += os.pwrite(fd, data[done:], at + done)

    def pread(self, at: int, size: int) -> bytes:
        """Bytes that may be a hole. Read through the mapping a hole takes a page on a file system in memory,
        and raises SIGBUS when there is none left. Raises OSError."""
        with self._descriptor() as fd:
            return os.pread(fd, size, at)

    def flush(self) -> None:
        """Writes all dirty pages, and the names above a new file, to disk. Runs on any thread and releases
        the interpreter meanwhile (`mmap.flush` would not). Raises OSError: what was written since the last
        good flush may be lost then, whatever a retry says."""
        with self._descriptor() as fd:
            os.fdatasync(fd)
        if self.unsynced_parent_dirs:
            for directory in list(self.path.parents)[: self.unsynced_parent_dirs]:
                sync_directory(directory)
            self.unsynced_parent_dirs = 0

    def zero_from(self, position: int) -> bool:
        """Zeros everything from `position` to the end of the file, on disk too; True when there was anything.

        Positions alone are not enough: old records behind a cut come back when a crash follows and the new
        records end where an old one began. Holes are skipped unread. Raises OSError."""
        with self._descriptor() as fd:
            return zero_range(fd, position, self.size)

    def modified_ms(self) -> int:
        """When the file was last written, as the file system says (epoch ms)."""
        return self.path.stat().st_mtime_ns // 1_000_000

    def close(self) -> None:
        """Unmaps the file and closes it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        # A buffer that somebody still exports keeps the mapping alive until it is dropped.
        with contextlib.suppress(BufferError):
            self.map.close()

    def delete(self) -> None:
        """Closes the file and removes it from its directory."""
        self.close()
        self.path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _descriptor(self) -> Iterator[int]:
        if self.fd >= 0:
            yield self.fd
            return
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)


def zero_range(fd: int, position: int, end: int) -> bool:
    """Zeros bytes [position, end) of a file, on disk too; True when there was anything. Holes are skipped
    unread. Raises OSError."""
    changed = False
    for start, stop in data_ranges(fd, position, end):
        while start < stop:
            chunk = os.pread(fd, min(stop - start, len(_ZEROS)), start)
            zeros = _ZEROS if len(chunk) == len(_ZEROS) else _ZEROS[: len(chunk)]
            if chunk != zeros:
                os.pwrite(fd, zeros, start)
                changed = True
            start += len(chunk)
    if changed:
        os.fdatasync(fd)
    return changed


def data_ranges(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of [start, end) that may hold anything but zeros."""
    while start < end:
        try:
            at = os.lseek(fd, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # nothing but a hole behind
            yield start, end  # a file system that does not say
            return
        if at >= end:
            return
        start = min(os.lseek(fd, at, os.SEEK_HOLE), end)
        yield at, start


FileMaker = Callable[[Path, int, int], MappedFile]


class StoreFile(Protocol):
    """One file of a sequence."""

    start: int
    size: int

    @property
    def end(self) -> int: ...
    def delete(self) -> None: ...


AnyFile = TypeVar("AnyFile", bound=StoreFile)


class FileSequence(Generic[AnyFile]):
    """The files of one directory, in order; each begins where the one before it ends."""

    __slots__ = ("directory", "file_size", "files")

    def __init__(self, directory: Path, file_size: int) -> None:
        self.directory = directory
        self.file_size = file_size
        self.files: list[AnyFile] = []

    def gap(self) -> int | None:
        """Number of the first file that does not begin where the one before it ends, None when there is
        none."""
        for at, (before, after) in enumerate(zip(self.files, self.files[1:], strict=False)):
            if after.start != before.start + before.size:
                return at + 1
        return None

    def drop(self, at: int) -> None:
        """Removes the files from this number on, durably. Raises OSError."""
        while len(self.files) > at:
            self.files.pop().delete()
        sync_directory(self.directory)

    @property
    def min_offset(self) -> int:
        """Start of the first file, -1 when there is none."""
        return self.files[0].start if self.files else -1

    @property
    def max_offset(self) -> int:
        """End of what is written, 0 when there is no file."""
        return self.files[-1].end if self.files else 0


class MappedFileQueue(FileSequence[MappedFile]):
    """The files of one directory, in order; the last one is written. `levels` is how many directories above
    a new file may be new with it."""

    def __init__(self, directory: Path, file_size: int, *, keep_fd: bool, levels: int = 1) -> None:
        super().__init__(directory, file_size)
        self.make: FileMaker = self.create_now  # replaced by one that has prepared the file already
        self._keep_fd = keep_fd
        self._levels = levels

    def load(self) -> None:
        """Opens what the directory holds; positions are set to the files' ends until recovery has looked.
        Empty files (a crash while they were made) are removed. Raises StoreDamagedError or OSError."""
        if not self.directory.is_dir():
            return
        for path in sorted(path for path in self.directory.iterdir() if path.is_file()):
            if not path.name.isdecimal():
                raise StoreDamagedError(f"{path} is no file of {self.directory.name}; move it away")
            if path.stat().st_size == 0:
                path.unlink()
                continue
            file = MappedFile(path, int(path.name), self.file_size, keep_fd=self._keep_fd)
            file.wrote = file.flushed = file.size
            self.files.append(file)

    def find(self, offset: int) -> MappedFile | None:
        """The file that holds (or will hold) the byte at this offset."""
        files = self.files
        if not files or offset < files[0].start:
            return None
        at = (offset - files[0].start) // self.file_size
        if at < len(files) and files[at].start <= offset < files[at].start + self.file_size:
            return files[at]
        # A directory with a hole: somebody removed a file in the middle.
        for file in files:
            if file.start <= offset < file.start + self.file_size:
                return file
        return None

    def add(self, start: int) -> MappedFile:
        """Appends the file that starts at this offset. Raises DiskFullError or OSError."""
        file = self.make(self.directory / file_name(start), start, self.file_size)
        self.files.append(file)
        return file

    def create_now(self, path: Path, start: int, size: int) -> MappedFile:
        """Makes a file on disk; its first flush makes its name durable."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno in _FULL:
                raise DiskFullError(str(error)) from error
            raise
        file = MappedFile(path, start, size, keep_fd=self._keep_fd)
        file.unsynced_parent_dirs = self._levels
        return file

    def truncate(self, offset: int) -> None:
        """Cuts everything at and behind this offset, on disk too: later files are removed, the rest of the
        file is zeroed. Ends durable. Raises OSError."""
        behind = next((at for at, file in enumerate(self.files) if file.start > offset), None)
        if behind is not None:
            self.drop(behind)
        if self.files and self.files[-1].end >= offset:
            file = self.files[-1]
            file.zero_from(offset - file.start)
            file.wrote = min(offset - file.start, file.size)
            file.flushed = min(file.flushed, file.wrote)
            file.reserved = min(file.reserved, file.wrote)
            file.unchecked_until = 0

    def close(self) -> None:
        """Closes all files."""
        for file in self.files:
            file.close()
        self.files = []

    def destroy(self) -> None:
        """Removes all files and the directory."""
        while self.files:
            self.files.pop().delete()
        with contextlib.suppress(OSError):
            self.directory.rmdir()
