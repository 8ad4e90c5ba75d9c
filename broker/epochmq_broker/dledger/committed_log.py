"""Reads the committed part of a DLedger log through mappings: the commit log of a broker in a DLedger group.

The peer writes the data files (`epochmq_dledger.store.block_log`). This log shows what is committed; beyond
it nothing exists for the store. Each record follows the 48 bytes of its entry's header, and a filler closes a
file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from epochmq_broker.store import record
from epochmq_broker.store.commit_log import CommitLog
from epochmq_broker.store.mapped_file import MappedFile, StoreDamagedError
from epochmq_protocol.dledger import ENTRY_HEADER_SIZE, ENTRY_MAGIC, FILLER_MAGIC

_MAGIC = struct.Struct(">i")


class CommittedLog(CommitLog):
    """The committed part of a log. `show` extends it. Nothing is written through it."""

    __slots__ = ("_begin", "_end", "recover")

    header_bytes = ENTRY_HEADER_SIZE

    def __init__(self, directory: Path, file_size: int) -> None:
        super().__init__([directory], file_size)
        self._begin = self._end = 0
        self.recover: Callable[[], tuple[int, int]] | None = None
        """Recovers the peer's log, and returns where it begins, and up to where it is committed."""

    def set_committed(self, begin: int, end: int) -> None:
        """Sets where the log begins, and up to where it is committed."""
        self._begin, self._end = begin, max(begin, end)

    def load(self) -> None:
        """Opens the files, after `recover`, which runs once."""
        if self.recover is not None:
            self.set_committed(*self.recover())
            self.recover = None
        self.files.load()
        files = self.files.files
        while files and files[-1].start >= self._end:
            files.pop().close()
        for file in files:
            file.wrote = file.flushed = file.reserved = min(file.size, self._end - file.start)
        self.file = files[-1] if files else None

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

    def parse_next(
        self, file: MappedFile, at: int, delays_ms: tuple[int, ...], *, check_crc: bool
    ) -> record.DispatchRequest | str | None:
        if at + _MAGIC.size > file.wrote:
            return None
        (magic,) = _MAGIC.unpack_from(file.map, at)
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
