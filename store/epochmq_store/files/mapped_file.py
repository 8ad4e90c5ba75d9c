"""Maps files of one size into memory; a file's name is the offset of its first byte (MappedFile,
MappedFileQueue).

**Space is reserved before it is written.** On a full disk, a store into a mapped page without a disk block
raises SIGBUS, which kills the process. So a file is created sparse, as RocketMQ creates it, and then
`posix_fallocate` reserves its blocks chunk by chunk before the mapping is written there. ENOSPC is then an
exception that occurs before anything has changed. On ext4 and xfs a chunk of 32 MiB costs 10 to 200 µs. The
first store into a reserved page is six times cheaper than a store into a hole, because its page fault
allocates no block. On file systems that cannot reserve blocks, zeros are written instead.

Only the event loop writes into mappings and moves positions. `flush` and the creation of files may run on a
worker thread.
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

from epochmq_protocol.durable_files import make_directory, sync_directory
from epochmq_protocol.errors import EpochMQError

PAGE_BYTES = 4096
NAME_DIGITS = 20
_ZEROS = bytes(1 << 20)
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
# The files are never resized, so a mapping needs no descriptor of its own. Python 3.13 and newer can omit it.
_MAP_OPTIONS: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


class DiskFullError(EpochMQError):
    """The disk or the quota has no space for the requested bytes. Nothing was changed."""


class QueueMemoryFullError(DiskFullError):
    """Consume queues hold the maximum of unwritten units in memory, because the disk is full or slow."""


class SpaceNotReadyError(OSError):
    """The disk is so slow that space requested long ago is not reserved yet. Nothing was changed."""


class StoreDamagedError(EpochMQError):
    """The files are not those of a store, or not of one with these settings. A person has to act."""


def as_disk_full(error: OSError) -> OSError | DiskFullError:
    """Converts ENOSPC and EDQUOT to DiskFullError; other errors are returned unchanged."""
    return DiskFullError(str(error)) if error.errno in _FULL else error


def file_name(start: int) -> str:
    """The name of the file that starts at this offset: 20 decimal digits (UtilAll.offset2FileName)."""
    return f"{start:0{NAME_DIGITS}d}"


def is_full(error: OSError) -> bool:
    """Whether the error says that the disk or the quota has no space left."""
    return error.errno in _FULL


def reserve(fd: int, start: int, end: int) -> None:
    """Reserves disk blocks for bytes [start, end) of a file. Raises DiskFullError or OSError."""
    try:
        os.posix_fallocate(fd, start, end - start)
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFullError(str(error)) from error
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        _write_zeros(fd, start, end)


def _check_descriptors_left(fd: int) -> None:
    """Keeps the last descriptors of the process for the log and for flushes, which open files and directories
    briefly. Before Python 3.13 each mapping holds a descriptor. The kernel assigns the lowest free number, so
    `fd` tells how many are in use. Raises OSError (EMFILE)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and fd >= limit - min(max(limit // 8, 16), 256):
        raise OSError(
            errno.EMFILE,
            f"{fd} of {limit} file descriptors (RLIMIT_NOFILE) are in use, the log needs the others. "
            "Raise the limit",
        )


def _write_zeros(fd: int, start: int, end: int) -> None:
    """Reserves blocks by writing zeros, on file systems that cannot reserve. Bytes [start, end) were never
    written before."""
    try:
        while start < end:
            start += os.pwrite(fd, _ZEROS[: end - start], start)
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFullError(str(error)) from error
        raise


class MappedFile:
    """One file. Positions are relative to the file; `start` is the offset of its first byte in the sequence
    of files."""

    __slots__ = (
        "fd",
        "flushed",
        "map",
        "path",
        "read_ahead",
        "reserved",
        "size",
        "start",
        "unchecked_until",
        "unsynced_parent_dirs",
        "wrote",
    )

    def __init__(self, path: Path, start: int, size: int, *, keep_fd: bool, opened_fd: int = -1) -> None:
        """Opens a file of `size` bytes; creates it when it is missing or empty. `keep_fd` keeps a descriptor
        open for reads and flushes (`fd`, else -1). `opened_fd`: a descriptor of this file that the mapping
        takes over; `path` is then not opened. Raises StoreDamagedError, DiskFullError or OSError."""
        self.path = path
        self.start = start
        self.size = size
        self.read_ahead = True  # whether the kernel reads more than the pages that are needed
        self.unsynced_parent_dirs = 0  # number of parent directories whose entries are not on disk yet
        fd = opened_fd
        if fd < 0:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not keep_fd:
                _check_descriptors_left(fd)
            present = os.fstat(fd).st_size
            if present == 0:
                os.ftruncate(fd, size)
            elif present != size:
                raise StoreDamagedError(
                    f"{path} has {present} bytes, but the settings say {size}; "
                    "use the file sizes that the directory was created with, or move the file away"
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
        self.unchecked_until = 0  # the append path writes up to here without a request for space

    def set_read_ahead(self, enabled: bool) -> None:
        """Switches the kernel's read-ahead for this mapping."""
        self.read_ahead = enabled
        self.map.madvise(mmap.MADV_NORMAL if enabled else mmap.MADV_RANDOM)

    @property
    def end(self) -> int:
        """Offset after the last written byte."""
        return self.start + self.wrote

    def reserve(self, end: int) -> None:
        """Reserves blocks up to `end`, which must precede any store after `reserved`. Raises DiskFullError or
        OSError."""
        start = max(self.reserved, self.wrote)
        if end > start:
            with self._descriptor() as fd:
                reserve(fd, start, end)
            self.reserved = end

    def write(self, at: int, data: memoryview) -> None:
        """Writes bytes at a position before `reserved` by `pwrite`, not through the mapping. Raises
        OSError."""
        with self._descriptor() as fd:
            done = 0
            while done < len(data):
                done += os.pwrite(fd, data[done:], at + done)

    def pread(self, at: int, size: int) -> bytes:
        """Reads bytes that may be a hole, not through the mapping. On tmpfs a hole that is read through a
        mapping takes a page, and raises SIGBUS if there is none left. Raises OSError."""
        with self._descriptor() as fd:
            return os.pread(fd, size, at)

    def flush(self) -> None:
        """Syncs all dirty pages, and the directory entries of a new file. Runs on any thread and releases the
        interpreter lock (`mmap.flush` does not). Raises OSError; the bytes written since the last successful
        flush may be lost then, even if a retry succeeds."""
        with self._descriptor() as fd:
            os.fdatasync(fd)
        if self.unsynced_parent_dirs:
            for directory in list(self.path.parents)[: self.unsynced_parent_dirs]:
                sync_directory(directory)
            self.unsynced_parent_dirs = 0

    def zero_from(self, position: int) -> bool:
        """Zeros the file from `position` on, and syncs. False when it was zero already.

        Moving the positions is not enough: after a crash, old records would reappear where new records end at
        the start of an old one. Holes are skipped unread. Raises OSError."""
        with self._descriptor() as fd:
            return zero_range(fd, position, self.size)

    def modified_ms(self) -> int:
        """The file's modification time, epoch ms."""
        return self.path.stat().st_mtime_ns // 1_000_000

    def close(self) -> None:
        """Unmaps and closes the file."""
        if self.fd >= 0:
            with contextlib.suppress(OSError):  # the kernel closes it anyway; a flush reports lost bytes
                os.close(self.fd)
            self.fd = -1
        # While a view of the mapping exists, it stays; it is unmapped with the last view.
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
    """Zeros bytes [position, end) of a file, and syncs. False when they were zero already. Holes are skipped
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
    """The parts of [start, end) that are not holes."""
    while start < end:
        try:
            at = os.lseek(fd, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # the rest is a hole
            yield start, end  # the file system does not report holes
            return
        if at >= end:
            return
        start = min(os.lseek(fd, at, os.SEEK_HOLE), end)
        yield at, start


FileCreator = Callable[[Path, int, int], MappedFile]


class StoreFile(Protocol):
    """One file of a sequence."""

    start: int
    size: int

    @property
    def end(self) -> int: ...
    def delete(self) -> None: ...


AnyFile = TypeVar("AnyFile", bound=StoreFile)


class FileSequence(Generic[AnyFile]):
    """The files of one directory in order; each starts where the previous one ends."""

    __slots__ = ("_below", "_directory", "_parent", "file_size", "files")

    def __init__(self, directory: Path, file_size: int, below: str = "") -> None:
        """`below` is the path below `directory` of the files' directory. It is joined on first use, because a
        broker creates very many queues at a time."""
        self._parent, self._below = directory, below
        self._directory: Path | None = None if below else directory
        self.file_size = file_size
        self.files: list[AnyFile] = []

    @property
    def directory(self) -> Path:
        """The directory of the files."""
        found = self._directory
        if found is None:
            found = self._directory = self._parent / self._below
        return found

    def directories(self) -> list[Path]:
        """All directories that may hold files."""
        return [self.directory]

    def first_after_gap(self) -> int | None:
        """Number of the first file that does not start where the previous one ends, None without a gap."""
        for at, (before, after) in enumerate(zip(self.files, self.files[1:], strict=False)):
            if after.start != before.start + before.size:
                return at + 1
        return None

    def delete_from(self, at: int) -> None:
        """Deletes the files from this number on, durably. Raises OSError."""
        while len(self.files) > at:
            self.files.pop().delete()
        for directory in self.directories():
            sync_directory(directory)

    @property
    def min_offset(self) -> int:
        """Start of the first file, -1 without files."""
        return self.files[0].start if self.files else -1

    @property
    def max_offset(self) -> int:
        """Offset after the last written byte, 0 without files."""
        return self.files[-1].end if self.files else 0


class MappedFileQueue(FileSequence[MappedFile]):
    """The files of one directory in order; the last one is written."""

    def __init__(self, directory: Path, file_size: int, *, keep_fd: bool, new_parent_dirs: int = 1) -> None:
        """`new_parent_dirs`: how many parent directories may be created together with a file."""
        super().__init__(directory, file_size)
        self._create: FileCreator = self.create_now
        self._keep_fd = keep_fd
        self._new_parent_dirs = new_parent_dirs
        self.read_ahead = True

    def set_read_ahead(self, enabled: bool) -> None:
        """Switches the kernel's read-ahead for all files, and for those that are added later."""
        self.read_ahead = enabled
        for file in self.files:
            file.set_read_ahead(enabled)

    def load(self) -> None:
        """Opens the files of the directory. Their positions are at the files' ends until recovery sets them.
        Empty files, which a crash during their creation leaves, are removed. Raises StoreDamagedError or
        OSError."""
        folders = [folder for folder in self.directories() if folder.is_dir()]
        for path in sorted(path for folder in folders for path in folder.iterdir() if path.is_file()):
            if not path.name.isdecimal():
                raise StoreDamagedError(f"{path} does not belong into {path.parent.name}; move it away")
            if path.stat().st_size == 0:
                path.unlink()
                continue
            file = MappedFile(path, int(path.name), self.file_size, keep_fd=self._keep_fd)
            file.wrote = file.flushed = file.size
            if not self.read_ahead:
                file.set_read_ahead(False)
            self.files.append(file)

    def find(self, offset: int) -> MappedFile | None:
        """The file that contains the byte at this offset, whether it is written yet or not."""
        files = self.files
        if not files or offset < files[0].start:
            return None
        at = (offset - files[0].start) // self.file_size
        if at < len(files) and files[at].start <= offset < files[at].start + self.file_size:
            return files[at]
        # A file in the middle is missing.
        for file in files:
            if file.start <= offset < file.start + self.file_size:
                return file
        return None

    def path_of(self, start: int) -> Path:
        """The path of a new file that starts at this offset."""
        return self.directory / file_name(start)

    def add(self, start: int) -> MappedFile:
        """Adds the file that starts at this offset. Raises DiskFullError or OSError."""
        return self._added(self._create(self.path_of(start), start, self.file_size))

    def add_opened(self, start: int, fd: int) -> MappedFile:
        """Adds the file that starts at this offset and that another part of the program owns: maps the file
        of this descriptor, which it takes over, whatever its path names by now. Raises StoreDamagedError or
        OSError."""
        path = self.path_of(start)
        return self._added(MappedFile(path, start, self.file_size, keep_fd=self._keep_fd, opened_fd=fd))

    def _added(self, file: MappedFile) -> MappedFile:
        if not self.read_ahead:
            file.set_read_ahead(False)
        self.files.append(file)
        return file

    def create_with(self, create: FileCreator | None) -> None:
        """Takes new files from this function, which may have created them in advance; None: `create_now`."""
        self._create = create or self.create_now

    def create_now(self, path: Path, start: int, size: int) -> MappedFile:
        """Creates a file; its first flush makes its directory entry durable. Raises DiskFullError or
        OSError."""
        try:
            make_directory(path.parent)
        except OSError as error:
            if error.errno in _FULL:
                raise DiskFullError(str(error)) from error
            raise
        file = MappedFile(path, start, size, keep_fd=self._keep_fd)
        file.unsynced_parent_dirs = self._new_parent_dirs
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
            file.flushed = min(file.flushed, file.wrote)
            file.reserved = min(file.reserved, file.wrote)
            file.unchecked_until = 0

    def close(self) -> None:
        """Closes all files."""
        for file in self.files:
            file.close()
        self.files = []

    def destroy(self) -> None:
        """Deletes all files and the directory."""
        while self.files:
            self.files.pop().delete()
        with contextlib.suppress(OSError):
            self.directory.rmdir()
