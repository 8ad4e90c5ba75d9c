"""Keeps the commit log: all messages of a broker in order, in files of one size (CommitLog).

A record never spans two files. If a record and 8 more bytes do not fit, the rest of the file becomes a blank
record.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from epochmq_protocol import message_const as const
from epochmq_protocol import record_layout
from epochmq_store import record
from epochmq_store.files.mapped_file import (
    DiskFullError,
    MappedFile,
    MappedFileQueue,
    StoreDamagedError,
)
from epochmq_store.log.log_paths import MultiPathMappedFileQueue

RESERVE_BYTES = 32 << 20  # space is reserved in chunks of this size
AHEAD_BYTES = 4 * RESERVE_BYTES  # so much space is reserved after the written bytes
PREPARE_AT = 0.25  # the next file is created when this share of the last one is reserved


class Preallocator(Protocol):
    """Creates files and reserves space on another thread before the log needs them."""

    def prepare_file(self, path: Path, start: int, size: int) -> None:
        """Creates this file, for `create_file` to return."""

    def create_file(self, path: Path, start: int, size: int) -> MappedFile:
        """Returns the prepared file, or creates it now. Raises DiskFullError or OSError."""

    def reserve(self, file: MappedFile, end: int) -> None:
        """Reserves the file's space up to `end`, and raises `file.reserved` afterwards."""

    def wait_reserved(self) -> None:
        """Returns when no reservation is running."""


class CommitLog:
    """The files of the log. `file` is the one that is written."""

    __slots__ = ("_verify_property_crc", "file", "files", "preallocator")

    def __init__(self, directories: Sequence[Path], file_size: int, read_only: Sequence[Path] = ()) -> None:
        """With several directories the files are in all of them in turn; `read_only` get no new files
        (`log_paths`)."""
        self.files = MappedFileQueue(directories[0], file_size, keep_fd=True)
        if len(directories) > 1:
            self.files = MultiPathMappedFileQueue(directories, read_only, file_size, keep_fd=True)
        self.file: MappedFile | None = None
        self._verify_property_crc = False
        self.preallocator: Preallocator | None = None

    def configure(self, *, verify_property_crc: bool) -> None:
        """Sets whether `parse` checks the checksums of properties, too (forceVerifyPropCRC)."""
        self._verify_property_crc = verify_property_crc

    def load(self) -> None:
        """Opens the files; recovery then finds the end. Raises StoreDamagedError or OSError."""
        self.files.load()
        self.file = self.files.files[-1] if self.files.files else None

    def prepare_with(self, preallocator: Preallocator | None) -> None:
        """Takes files and space from this preallocator from now on; None: on the calling thread."""
        self.preallocator = preallocator
        self.files.create_with(None if preallocator is None else preallocator.create_file)

    def close(self) -> None:
        """Closes the files."""
        self.files.close()
        self.file = None

    @property
    def plain_directories(self) -> list[Path]:
        """The directories of the files that hold records without entry headers."""
        return self.files.directories()

    @property
    def data_directories(self) -> list[Path]:
        """The directories of the files that hold records with entry headers."""
        return []

    @property
    def min_offset(self) -> int:
        """Offset of the first byte, -1 in an empty log."""
        return self.files.min_offset

    @property
    def max_offset(self) -> int:
        """Offset after the last byte."""
        return self.files.max_offset

    # Writing

    def writable_file(self, size: int) -> MappedFile:
        """The file for the next `size` bytes (one record or one batch), with space reserved for them. Rolls
        to the next file if they do not fit. After DiskFullError or OSError the log is unchanged, or has
        rolled to a new, empty file."""
        file = self.file
        if file is None:
            return self.add_file(0, size)
        if file.wrote + size + record_layout.BLANK_BYTES > file.size:
            if file.wrote < file.size:
                self._write_blank_record(file)
            return self.add_file(file.start + file.size, size)
        self._reserve(file, file.wrote + size)
        return file

    def add_file(self, start: int, size: int) -> MappedFile:
        """Adds the file that starts at `start`, with `size` bytes reserved. Raises DiskFullError or
        OSError."""
        file = self.files.add(start)
        self.file = file
        self._reserve(file, size)
        return file

    def close_last_file(self) -> int:
        """Marks the rest of the last file as unused, durably. Returns the offset after the file. Raises
        DiskFullError or OSError."""
        assert self.file is not None
        self._write_blank_record(self.file)
        self.file.flush()
        return self.file.end

    def _write_blank_record(self, file: MappedFile) -> None:
        """Marks the rest of the file as unused."""
        remaining = file.size - file.wrote
        if remaining >= record_layout.BLANK_BYTES:
            self._reserve(file, file.wrote + record_layout.BLANK_BYTES)
            record_layout.SIZE_AND_MAGIC.pack_into(file.map, file.wrote, remaining, const.BLANK_MAGIC)
        file.wrote = file.size

    def _reserve(self, file: MappedFile, end: int) -> None:
        """Reserves the bytes up to `end`, and requests the next chunk and the next file in advance."""
        end = min(end + record_layout.BLANK_BYTES, file.size)
        if end > file.reserved:
            if self.preallocator is not None:
                self.preallocator.wait_reserved()
            try:
                file.reserve(min(-(-end // RESERVE_BYTES) * RESERVE_BYTES, file.size))
            except DiskFullError:
                file.reserve(end)  # the disk has no whole chunk left, but may have enough for these bytes
        if self.preallocator is not None:
            if file.reserved < min(end + AHEAD_BYTES, file.size):
                self.preallocator.reserve(file, min(file.reserved + RESERVE_BYTES, file.size))
            if file.reserved >= file.size * PREPARE_AT:
                start = file.start + file.size
                self.preallocator.prepare_file(self.files.path_of(start), start, file.size)
        # The next request for space comes long before the reserved space ends, so that the preallocator has
        # time to reserve more.
        file.unchecked_until = min(file.reserved - record_layout.BLANK_BYTES, end + RESERVE_BYTES // 4)

    def writable_file_at(self, start: int, size: int) -> MappedFile:
        """The file for the next bytes of another replica's log, with space reserved for `size` of them or up
        to its end. The log must end exactly at `start`; an empty log may start at any file boundary. Raises
        ValueError, DiskFullError or OSError."""
        file = self.file
        if file is not None and file.end == 0 < start:
            # This log was truncated to nothing, and the other log starts at a later file.
            self.files.delete_from(0)
            file = self.file = None
        if file is None:
            if start % self.files.file_size:
                raise ValueError(
                    f"an empty log cannot start at {start}, inside a file of {self.files.file_size} bytes"
                )
            return self.add_file(start, size)
        if start != file.end:
            raise ValueError(f"data for offset {start}, but the log ends at {file.end}")
        if file.wrote == file.size:
            return self.add_file(start, size)
        self._reserve(file, file.wrote + size)
        return file

    def truncate(self, offset: int) -> None:
        """Truncates the log at this offset, durably. Raises OSError."""
        self.files.truncate(offset)
        self.file = self.files.files[-1] if self.files.files else None

    # Reading

    def read(self, offset: int, size: int | None = None) -> bytes | None:
        """`size` bytes at this offset, or the record that starts there; None when the log does not have them
        in one file. The caller knows that a record starts there."""
        file = self.files.find(offset)
        if file is None:
            return None
        at = offset - file.start
        if size is None:
            if at + record_layout.SIZE_AND_MAGIC.size > file.wrote:
                return None
            size, magic = record_layout.SIZE_AND_MAGIC.unpack_from(file.map, at)
            if magic not in (const.MAGIC_V1, const.MAGIC_V2):
                return None
        if size <= 0 or at + size > file.wrote:
            return None
        return file.map[at : at + size]

    def read_pieces(self, pieces: list[tuple[int, int]]) -> bytes:
        """The joined bytes of (offset, size) pieces, each of which lies in one file. Copies them once."""
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
        """Store time, epoch ms, of the record at this offset, -1 when the log does not have it."""
        file = self.files.find(offset)
        if file is None or offset - file.start + record_layout.HEAD_V4.size > file.wrote:
            return -1
        return record.store_timestamp_at(file.map, offset - file.start)

    def parse_next(
        self, file: MappedFile, at: int, delays_ms: tuple[int, ...], *, check_crc: bool
    ) -> record.DispatchRequest | str | None:
        """The record that follows the one that ends at this position of a file, as `record.parse` returns
        it."""
        return record.parse(
            file.map,
            at,
            file.wrote,
            file.start + at,
            delays_ms,
            check_crc=check_crc,
            property_crc=self._verify_property_crc,
        )

    def header_bytes_at(self, offset: int) -> int:
        """Bytes before the record at this offset that belong to it (a DLedger log has entry headers)."""
        return 0

    def is_closed(self, file: MappedFile) -> bool:
        """Whether no record can follow in this file, although it has unused bytes and no file follows."""
        return False

    def roll_next_file(self, offset: int) -> int:
        """Start of the file after the one that contains this offset."""
        size = self.files.file_size
        return offset + size - offset % size

    def parse(
        self, offset: int, delays_ms: tuple[int, ...], *, check_crc: bool
    ) -> record.DispatchRequest | str | None:
        """The result of `record.parse` at this offset; None after the end of the log."""
        file = self.files.find(offset)
        if file is None:
            return None
        return record.parse(
            file.map,
            offset - file.start,
            file.wrote,
            offset,
            delays_ms,
            check_crc=check_crc,
            property_crc=self._verify_property_crc,
        )

    def delete_files_after_gap(self, flushed_until: int | None) -> None:
        """Handles a missing file in the middle of the log. After a crash of the machine, `flushed_until` is
        the store time, epoch ms, up to which everything was on disk, None if it is unknown. If all files
        after the gap are newer, the crash has lost the file, and they are deleted. Otherwise a person must
        act: raises StoreDamagedError. Raises OSError."""
        at = self.files.first_after_gap()
        if at is None:
            return
        before = self.files.files[at - 1]
        for after in self.files.files[at:]:
            _, magic = record_layout.SIZE_AND_MAGIC.unpack(after.pread(0, record_layout.SIZE_AND_MAGIC.size))
            if magic not in (const.MAGIC_V1, const.MAGIC_V2):
                continue
            if flushed_until is None or record.store_timestamp_at(after.map, 0) <= flushed_until:
                raise StoreDamagedError(
                    f"{before.path} is followed by {after.path}: files are missing in between. Restore them "
                    "from a backup or from another replica"
                )
        self.files.delete_from(at)
        self.file = self.files.files[-1]
