"""Reads the committed part of a DLedger log through mappings: the commit log of a broker in a DLedger group.

The peer writes the data files (`epochmq_dledger.store.block_log`). This log shows what is committed; beyond
it nothing exists for the store. Each record follows the 48 bytes of its entry's header, and a filler closes a
file.

If the broker had a plain commit log before (`log_upgrade`), the plain files come first. They are only read,
and expire first. The first data file begins where the last plain one ends, at the divided offset.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from epochmq_broker.membership.dledger.log_folders import end_of_files
from epochmq_formats.dledger_log import ENTRY_HEADER_SIZE, FILLER_MAGIC
from epochmq_protocol import record_layout
from epochmq_protocol.dledger import ENTRY_MAGIC
from epochmq_store import record
from epochmq_store.files.mapped_file import MappedFile, StoreDamagedError
from epochmq_store.log.commit_log import CommitLog

log = logging.getLogger(__name__)


class CommittedLog(CommitLog):
    """The committed part of a log. `show` extends it. Nothing is written through it."""

    __slots__ = ("_begin", "_divided", "_end", "_plain", "recover")

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
        self.files.load()
        data = self.files.files
        while data and data[-1].start >= self._end:
            data.pop().close()
        for file in data:
            file.wrote = file.flushed = min(file.size, self._end - file.start)
        self.files.files, plain.files = plain.files + data, []
        for file in self.files.files:
            file.reserved = file.wrote
        self.file = self.files.files[-1] if self.files.files else None

    def show(self, end: int) -> None:
        """Shows the log up to this committed position. Raises OSError."""
        self._end = end
        file = self.file
        if file is None:
            file = self._map(self._begin)
        while end > file.start + file.size:
            file.wrote = file.reserved = file.size
            file = self._map(file.start + file.size)
        file.wrote = file.reserved = end - file.start

    def _map(self, start: int) -> MappedFile:
        self.file = file = self.files.add(start)
        return file

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
