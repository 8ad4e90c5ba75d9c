"""Reads the committed part of a DLedger log through mappings: the commit log of a broker in a DLedger group.

The peer owns the data files and writes them (`epochmq_dledger.store.block_log`). This log shows what is
committed; beyond it nothing exists for the store. It maps only files that the peer has, through descriptors
of the peer: a name may still belong to a file that was dropped and waits for its erasure. Each record follows
the 48 bytes of its entry's header, and a filler closes a file.

If the broker had a plain commit log before (`log_upgrade`), the plain files come first. They are only read,
and expire first. The first data file begins where the last plain one ends, at the divided offset.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

from epochmq_broker.membership.dledger.log_folders import end_of_files
from epochmq_formats.dledger_log import ENTRY_HEADER_SIZE, FILLER_MAGIC
from epochmq_protocol import record_layout
from epochmq_protocol.dledger import ENTRY_MAGIC
from epochmq_store import record
from epochmq_store.files.mapped_file import MappedFile, StoreDamagedError
from epochmq_store.log.commit_log import CommitLog

log = logging.getLogger(__name__)


class DataFiles(Protocol):
    """The data files of a peer's log (`FileLog`)."""

    @property
    def data_file_bases(self) -> Sequence[int]:
        """The first positions of the files, in order."""

    def open_data_file(self, base: int) -> int | None:
        """A new descriptor of the file that begins at this position, None if the log has none there."""


class CommittedLog(CommitLog):
    """The committed part of a log. `show` extends it. Nothing is written through it."""

    __slots__ = ("_begin", "_divided", "_end", "_plain", "data_files", "recover")

    def __init__(
        self,
        directory: Path,
        file_size: int,
        plain_directories: Sequence[Path],
        read_only: Sequence[Path] = (),
    ) -> None:
        """`directory` holds the data files, the others hold the plain files (see `CommitLog`)."""
        super().__init__([directory], file_size)
        self._plain = CommitLog(plain_directories, file_size, read_only)
        self._divided = 0
        """The records before this offset are in plain files."""
        self._begin = self._end = 0
        self.data_files: DataFiles | None = None
        """The data files of the peer's log. Set before `load`."""
        self.recover: Callable[[], tuple[int, int]] | None = None
        """Recovers the peer's log, and returns where its first data file begins, and up to where it is
        committed."""

    @property
    def plain_directories(self) -> list[Path]:
        return self._plain.files.directories()

    @property
    def data_directories(self) -> list[Path]:
        return [self.files.directory]

    def plain_end(self) -> int:
        """The offset after the last plain file, 0 without one. Raises OSError."""
        return end_of_files(self.plain_directories, self.files.file_size)

    def set_committed(self, begin: int, end: int) -> None:
        """Sets where the first data file begins, and up to where the log is committed."""
        self._begin, self._end = begin, max(begin, end)

    def load(self) -> None:
        """Opens the files, after `recover`, which runs once. Raises StoreDamagedError or OSError."""
        if self.recover is not None:
            self.set_committed(*self.recover())
            self.recover = None
        plain = self._plain.files
        plain.load()
        self._divided = plain.max_offset
        if plain.files and self._divided != self._begin:
            raise StoreDamagedError(
                f"the plain commit log in {plain.files[-1].path.parent} ends at {self._divided}, but the "
                f"DLedger log in {self.files.directory} begins at {self._begin}. Restore the missing files "
                "from a backup, or move those away that do not belong to this log"
            )
        assert self.data_files is not None
        for base in self.data_files.data_file_bases:
            if base < self._end:
                self._map(base)
        data = self.files.files
        for file in data:
            file.wrote = file.flushed = min(file.size, self._end - file.start)
        self.files.files, plain.files = plain.files + data, []
        for file in self.files.files:
            file.reserved = file.wrote
        self.file = self.files.files[-1] if self.files.files else None

    def show(self, end: int) -> None:
        """Shows the log up to this committed position. Raises OSError; StoreDamagedError: the peer has no
        file there."""
        self._end = end
        file = self.file
        if file is None:
            file = self._map(self._begin)
        while end > file.start + file.size:
            file.wrote = file.reserved = file.size
            file = self._map(file.start + file.size)
        file.wrote = file.reserved = end - file.start

    def _map(self, start: int) -> MappedFile:
        assert self.data_files is not None
        fd = self.data_files.open_data_file(start)
        if fd is None:
            raise StoreDamagedError(
                f"the log is committed up to {self._end}, but the peer has no file "
                f"{self.files.path_of(start)}. Empty the directory of this peer, if a quorum of the other "
                "peers is healthy"
            )
        self.file = file = self.files.add_opened(start, fd)
        return file

    def check_dropped(self, position: int) -> None:
        """The peer is about to drop its bytes from this position on. StoreDamagedError: it has shown some of
        them as committed."""
        if position < self._end:
            raise StoreDamagedError(
                f"the peer drops its log from {position} on, but it is committed up to {self._end}. Stop "
                "this broker, and compare its log with those of the other peers"
            )

    def truncate(self, offset: int) -> None:
        """Recovery has read the log up to `offset`. Committed entries are never truncated: raises
        StoreDamagedError if it could not read all of them."""
        if offset < self.max_offset and self.files.find(offset) is not None:
            raise StoreDamagedError(
                f"{self.files.directory} has no whole record at {offset}, but is committed up to "
                f"{self.max_offset}. Restore the directory from a backup, or remove it if a quorum of the "
                "other peers is healthy"
            )

    def delete_files_after_gap(self, flushed_until: int | None) -> None:
        """Committed entries are never deleted: raises StoreDamagedError if a file is missing."""
        at = self.files.first_after_gap()
        if at is not None:
            before, after = self.files.files[at - 1 : at + 1]
            raise StoreDamagedError(
                f"{before.path} is followed by {after.path}: files are missing in between. Restore them "
                "from a backup or from another replica"
            )

    def header_bytes_at(self, offset: int) -> int:
        return ENTRY_HEADER_SIZE if offset >= self._divided else 0

    def is_closed(self, file: MappedFile) -> bool:
        return file.start < self._divided

    def parse_next(
        self, file: MappedFile, at: int, delays_ms: tuple[int, ...], *, check_crc: bool
    ) -> record.DispatchRequest | str | None:
        if file.start < self._divided:
            return super().parse_next(file, at, delays_ms, check_crc=check_crc)
        if at + record_layout.INT.size > file.wrote:
            return None
        (magic,) = record_layout.INT.unpack_from(file.map, at)
        if magic == FILLER_MAGIC or file.size - at < ENTRY_HEADER_SIZE:
            return record.BLANK
        if magic != ENTRY_MAGIC:
            return None
        return super().parse_next(file, at + ENTRY_HEADER_SIZE, delays_ms, check_crc=check_crc)

    def writable_file(self, size: int) -> NoReturn:
        raise AssertionError("the peer writes the log")

    def add_file(self, start: int, size: int) -> NoReturn:
        raise AssertionError("the peer writes the log")

    def writable_file_at(self, start: int, size: int) -> NoReturn:
        raise AssertionError("the peer writes the log")
