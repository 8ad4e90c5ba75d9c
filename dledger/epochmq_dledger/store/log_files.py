"""Reads and writes the data files and index files of a log, at byte positions and indexes (`MmapFileList`).

A data file holds whole entries; a filler closes it where the next entry does not fit. An index file holds a
unit of 32 bytes for each entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from epochmq_dledger.store.entry_encoding import BodyCheck, crc_of, is_valid_header
from epochmq_dledger.store.segments import Segments, UnsyncedFiles
from epochmq_formats.dledger_log import (
    ENTRY_HEADER_SIZE,
    ENTRY_HEADER_START,
    FILLER,
    FILLER_MAGIC,
    FILLER_SIZE_MIN,
    INDEX_UNIT_SIZE,
    decode_entry,
    decode_index_unit,
)
from epochmq_protocol.dledger import DLedgerEntry
from epochmq_protocol.errors import RemoteProtocolError

IndexUnit = tuple[int, int, int, int, int]
"""(magic, position, size, index, term) of an entry."""


class LogFiles:
    """The files of one log."""

    def __init__(
        self, folder: Path, file_size: int, index_file_size: int, data_folder: Path | None = None
    ) -> None:
        self.data = Segments(data_folder or folder / "data", file_size)
        self.index = Segments(folder / "index", index_file_size)
        self.file_size = file_size
        self.check: BodyCheck | None = None
        """Bodies that it rejects are not whole."""
        self.origin = 0
        """The position of the first entry of a new log."""

    def open(self) -> list[int]:
        """Opens all files. Returns the first positions of the data files, in order."""
        self.data.open()
        self.index.open()
        return self.data.bases

    def close(self) -> None:
        """Closes all files. The kernel still holds what was not synced."""
        self.data.close()
        self.index.close()

    @property
    def begin_pos(self) -> int:
        """The position of the first data file. Without one, `origin`."""
        return self.data.bases[0] if self.data.bases else self.origin

    def describe(self, pos: int, index: int) -> str:
        """The place of an entry, for messages."""
        base = pos - pos % self.file_size
        return f"byte {pos - base} of {self.data.folder}/{base:020d} (entry {index})"

    # Reading ------------------------------------------------------------------------------------------------

    def read_entry(self, pos: int, *, with_body: bool = True) -> DLedgerEntry | None:
        """The entry at byte `pos`, None if there is no whole entry that was written there."""
        head = self.data.read(pos, ENTRY_HEADER_SIZE)
        if not is_valid_header(head, pos, self.file_size - pos % self.file_size):
            return None
        _, size, index, term, _ = ENTRY_HEADER_START.unpack_from(head)
        if not with_body:
            return DLedgerEntry(index, term, pos, b"", size)
        try:
            entry = decode_entry(self.data.read(pos, size))
        except RemoteProtocolError:
            return None
        if self.check is not None and not self.check(entry.body, 0, len(entry.body), pos + ENTRY_HEADER_SIZE):
            return None
        return entry if entry.body_crc in (0, crc_of(entry.body)) else None

    def first_entry(self, base: int) -> DLedgerEntry | None:
        """The first entry of the data file at `base`, without its body. A log that was reset begins in the
        middle of a file, behind a filler. Without the filler the start of the file was never durable, and the
        log is empty."""
        entry = self.read_entry(base, with_body=False)
        if entry is not None:
            return entry
        magic, size = self._read_filler(base)
        return self.read_entry(base + size, with_body=False) if magic == FILLER_MAGIC else None

    def entries_from(self, pos: int, end_pos: int | None) -> Iterator[DLedgerEntry]:
        """The readable entries from byte `pos` up to `end_pos`, over fillers."""
        while end_pos is None or pos < end_pos:
            entry = self.read_entry(pos)
            if entry is not None:
                yield entry
                pos += entry.size
                continue
            next_base = self.base_after_filler(pos)
            if next_base is None:
                return
            pos = next_base

    def base_after_filler(self, pos: int) -> int | None:
        """The position of the next data file, if the rest of this one is a filler or too short for one."""
        next_base = pos - pos % self.file_size + self.file_size
        is_filler = self._read_filler(pos)[0] == FILLER_MAGIC
        at_end = pos % self.file_size == 0 and pos not in self.data.bases
        if at_end or (not is_filler and next_base - pos >= FILLER_SIZE_MIN):
            return None
        return next_base if next_base in self.data.bases else None

    def _read_filler(self, pos: int) -> tuple[int, int]:
        """The magic number at byte `pos`, and the size after it."""
        head = self.data.read(pos, FILLER.size)
        magic, size = FILLER.unpack(head) if len(head) == FILLER.size else (0, 0)
        return magic, size

    def read_index_unit(self, index: int) -> IndexUnit | None:
        """The index unit of an entry, None if there is none."""
        data = self.index.read(index * INDEX_UNIT_SIZE, INDEX_UNIT_SIZE) if index >= 0 else b""
        return decode_index_unit(data) if len(data) == INDEX_UNIT_SIZE else None

    def read_index_units(self, first_index: int, count: int) -> bytes:
        """The index units of this many entries, fewer bytes where index files are missing."""
        at, end = first_index * INDEX_UNIT_SIZE, (first_index + count) * INDEX_UNIT_SIZE
        parts: list[bytes] = []
        while at < end and (part := self.index.read(at, end - at)):
            parts.append(part)
            at += len(part)
        return b"".join(parts)

    # Writing ------------------------------------------------------------------------------------------------

    def write_index_units(self, first_index: int, units: bytes) -> None:
        """Writes index units that follow each other."""
        at, start = 0, first_index * INDEX_UNIT_SIZE
        while at < len(units):
            room = self.index.file_size - (start + at) % self.index.file_size
            self.index.write(start + at, units[at : at + room])
            at += room

    def write_filler(self, pos: int, end_pos: int) -> None:
        """Writes a filler from `pos` to `end_pos`, if it is large enough for one."""
        size = end_pos - pos
        if size >= FILLER_SIZE_MIN:
            assert size < self.file_size
            self.data.write(pos, FILLER.pack(FILLER_MAGIC, size))

    def take_unsynced(self, *, with_index: bool) -> UnsyncedFiles:
        """The files to sync: data files, and index files on request."""
        if not with_index:
            return self.data.take_unsynced()
        return self.data.take_unsynced() + self.index.take_unsynced()


def index_unit_of(entry: DLedgerEntry) -> IndexUnit:
    """The index unit that an entry has."""
    return (entry.magic, entry.pos, entry.size, entry.index, entry.term)
