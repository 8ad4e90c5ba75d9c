"""The commit log: all messages of a broker one after the other, in files of one size (CommitLog).

A record never spans files: where it does not fit with 8 bytes to spare, the rest of the file becomes a
blank record.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from epochmq_broker.store import record
from epochmq_broker.store.mapped_file import (
    DiskFullError,
    MappedFile,
    MappedFileQueue,
    StoreDamagedError,
    file_name,
)
from epochmq_broker.store.store_config import END_OF_FILE_BYTES

RESERVE_BYTES = 32 << 20  # how much space is reserved at a time
AHEAD_BYTES = 4 * RESERVE_BYTES  # how much space is reserved beyond what is written
PREPARE_AT = 0.25  # the next file is made when so much of the last one is reserved


class Preallocator(Protocol):
    """Who makes files and reserves space on another thread before the log needs them."""

    def prepare(self, path: Path, start: int, size: int) -> None:
        """Makes this file, to be asked for through `MappedFileQueue.make`."""

    def reserve(self, file: MappedFile, end: int) -> None:
        """Reserves the file's space up to `end`; `file.reserved` moves when it is done."""

    def settle(self) -> None:
        """Returns when no reservation runs any more."""


class CommitLog:
    """The log's files and what can be read from them. `file` is the one that is written."""

    __slots__ = ("file", "files", "preallocator")

    def __init__(self, directory: Path, file_size: int) -> None:
        self.files = MappedFileQueue(directory, file_size, keep_fd=True)
        self.file: MappedFile | None = None
        self.preallocator: Preallocator | None = None  # set by the store while its workers run

    def load(self) -> None:
        """Opens the files; recovery must find the end. Raises StoreDamagedError or OSError."""
        self.files.load()
        self.file = self.files.files[-1] if self.files.files else None

    @property
    def min_offset(self) -> int:
        """Offset of the first byte, -1 when the log is empty."""
        return self.files.min_offset

    @property
    def max_offset(self) -> int:
        """Offset behind the last byte."""
        return self.files.max_offset

    # Writing

    def room(self, size: int) -> MappedFile:
        """The file that takes the next `size` bytes (one record or one batch), with space reserved for
        them; rolls over to the next file when they do not fit. Raises DiskFullError or OSError; the log is
        as it was then, or has rolled to a new, empty file."""
        file = self.file
        if file is None:
            return self.add_file(0, size)
        if file.wrote + size + END_OF_FILE_BYTES > file.size:
            if file.wrote < file.size:
                self._blank(file)
            return self.add_file(file.start + file.size, size)
        self._reserve(file, file.wrote + size)
        return file

    def add_file(self, start: int, size: int) -> MappedFile:
        """Adds the file that starts here, with `size` bytes reserved. Raises DiskFullError or OSError."""
        file = self.files.add(start)
        self.file = file
        self._reserve(file, size)
        return file

    def _blank(self, file: MappedFile) -> None:
        """Declares the rest of the file unused."""
        remaining = file.size - file.wrote
        if remaining >= END_OF_FILE_BYTES:
            self._reserve(file, file.wrote + END_OF_FILE_BYTES)
            record.SIZE_AND_MAGIC.pack_into(file.map, file.wrote, remaining, record.MAGIC_BLANK)
        file.wrote = file.size

    def _reserve(self, file: MappedFile, end: int) -> None:
        """Makes the bytes up to `end` writable, asks for the next chunk early, and for the next file."""
        end = min(end + END_OF_FILE_BYTES, file.size)
        if end > file.reserved:
            if self.preallocator is not None:
                self.preallocator.settle()
            try:
                file.reserve(min(-(-end // RESERVE_BYTES) * RESERVE_BYTES, file.size))
            except DiskFullError:
                file.reserve(end)  # the last bytes of a disk are good for something too
        if self.preallocator is not None:
            if file.reserved < min(end + AHEAD_BYTES, file.size):
                self.preallocator.reserve(file, min(file.reserved + RESERVE_BYTES, file.size))
            if file.reserved >= file.size * PREPARE_AT:
                start = file.start + file.size
                self.preallocator.prepare(self.files.directory / file_name(start), start, file.size)
        # Room is asked for long before the reserved space ends, so that more can be reserved meanwhile.
        file.unchecked_until = min(file.reserved - END_OF_FILE_BYTES, end + RESERVE_BYTES // 4)

    def writable_file_at(self, start: int, size: int) -> MappedFile:
        """The file that takes the next bytes of another replica's log, with space reserved for `size` of them
        or up to its end. The log must end exactly at `start`; an empty log may begin at any file boundary.
        Raises ValueError, DiskFullError or OSError."""
        file = self.file
        if file is not None and file.end == 0 < start:
            # Everything was cut, and the other log has lost its beginning.
            self.files.drop(0)
            file = self.file = None
        if file is None:
            if start % self.files.file_size:
                raise ValueError(
                    f"an empty log cannot begin at {start}, inside a file of {self.files.file_size} bytes"
                )
            return self.add_file(start, size)
        if start != file.end:
            raise ValueError(f"data for offset {start}, but the log ends at {file.end}")
        if file.wrote == file.size:
            return self.add_file(start, size)
        self._reserve(file, file.wrote + size)
        return file

    def append_raw(self, start: int, data: bytes) -> None:
        """Writes bytes that another replica's log has at this offset; they never cross a file. Raises
        ValueError, DiskFullError or OSError."""
        file = self.writable_file_at(start, len(data))
        if file.wrote + len(data) > file.size:
            raise ValueError(f"{len(data)} bytes at {start} cross the end of a file of {file.size} bytes")
        file.map[file.wrote : file.wrote + len(data)] = data
        file.wrote += len(data)

    def truncate(self, offset: int) -> None:
        """Ends the log here, durably. Raises OSError."""
        self.files.truncate(offset)
        self.file = self.files.files[-1] if self.files.files else None

    # Reading

    def read(self, offset: int, size: int | None = None) -> bytes | None:
        """`size` bytes at this offset, or the record that starts there; None when the log does not have
        them (in one file). Whether a record starts there at all is the caller's knowledge."""
        file = self.files.find(offset)
        if file is None:
            return None
        at = offset - file.start
        if size is None:
            if at + record.SIZE_AND_MAGIC.size > file.wrote:
                return None
            size, magic = record.SIZE_AND_MAGIC.unpack_from(file.map, at)
            if magic not in (record.MAGIC_V1, record.MAGIC_V2):
                return None
        if size <= 0 or at + size > file.wrote:
            return None
        return file.map[at : at + size]

    def read_pieces(self, pieces: list[tuple[int, int]]) -> bytes:
        """The bytes of (offset, size) pieces the log has, one after the other; each lies in one file. They
        are copied once."""
        parts = []
        start = end = 0
        for offset, size in pieces:
            if not start <= offset < end:
                file = self.files.find(offset)
                if file is None:
                    continue
                start, end = file.start, file.start + file.size
                view = memoryview(file.map)
            parts.append(view[offset - start : offset - start + size])
        return parts[0].tobytes() if len(parts) == 1 else b"".join(parts)

    def store_timestamp(self, offset: int) -> int:
        """Store time in epoch ms of the record that starts here, -1 when the log does not have it."""
        file = self.files.find(offset)
        if file is None or offset - file.start + record.HEAD_V4.size > file.wrote:
            return -1
        return record.store_timestamp_at(file.map, offset - file.start)

    def roll_next_file(self, offset: int) -> int:
        """Start of the file after the one that holds this offset."""
        size = self.files.file_size
        return offset + size - offset % size

    def parse(
        self, offset: int, delays_ms: tuple[int, ...], *, check_crc: bool
    ) -> record.DispatchRequest | str | None:
        """The record that starts here, as `record.parse` answers; None behind the end of the log."""
        file = self.files.find(offset)
        if file is None:
            return None
        return record.parse(file.map, offset - file.start, file.wrote, offset, delays_ms, check_crc=check_crc)

    def mend(self, flushed_until: int | None) -> None:
        """Looks for a file that is missing in the middle. After a crash (`flushed_until` is the store time
        in epoch ms up to which everything had reached the disk) newer files than that may lack one, and go;
        anything else is for a person to see. Raises StoreDamagedError or OSError."""
        at = self.files.gap()
        if at is None:
            return
        before = self.files.files[at - 1]
        for after in self.files.files[at:]:
            _, magic = record.SIZE_AND_MAGIC.unpack(after.pread(0, record.SIZE_AND_MAGIC.size))
            if magic not in (record.MAGIC_V1, record.MAGIC_V2):
                continue
            if flushed_until is None or record.store_timestamp_at(after.map, 0) <= flushed_until:
                raise StoreDamagedError(
                    f"{before.path} is followed by {after.path}: files are missing in between"
                )
        self.files.drop(at)
        self.file = self.files.files[-1]
