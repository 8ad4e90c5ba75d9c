"""The log on disk (`DLedgerMmapFileStore`): entries in data files, a 32-byte unit for each in index files.

The data files are the truth; the index is rebuilt from them where it differs. Entries lately written stay in
memory, so that pushing to peers reads no disk.
"""

from __future__ import annotations

import struct
import zlib
from collections import OrderedDict
from pathlib import Path

import msgspec

from epochmq_dledger.core.log import LogFullError
from epochmq_dledger.store.segments import Segments, sync_and_close
from epochmq_protocol.dledger import (
    ENTRY_HEADER_SIZE,
    ENTRY_MAGIC,
    FILLER_MAGIC,
    FILLER_SIZE_MIN,
    INDEX_UNIT_SIZE,
    DLedgerEntry,
    decode_entry,
    decode_index_unit,
    encode_entry,
    encode_index_unit,
)
from epochmq_protocol.errors import RemoteProtocolError

INDEX_FILE_SIZE = INDEX_UNIT_SIZE * 5 * 1024 * 1024
CACHE_BYTES_MAX = 8 << 20
_FILLER = struct.Struct(">ii")
_HEADER_START = struct.Struct(">iiqqq")
_RECOVERED_FILES = 3
"""Recovery reads this many of the last data files (`DLedgerMmapFileStore.recover`), and all of them where the
index does not know the first of those."""


class FileLog:
    """The log of one peer. Written at once, durable once what `take_dirty` gave is synced."""

    def __init__(self, folder: Path, file_size: int, index_file_size: int = INDEX_FILE_SIZE) -> None:
        self._data = Segments(folder / "data", file_size)
        self._index = Segments(folder / "index", index_file_size)
        self._file_size = file_size
        self._begin = self._end = self._end_term = -1
        self._end_pos = 0
        self._cache: OrderedDict[int, DLedgerEntry] = OrderedDict()
        self._cache_bytes = 0
        self._index_due = True

    @property
    def begin_index(self) -> int:
        return self._begin

    @property
    def end_index(self) -> int:
        return self._end

    @property
    def end_term(self) -> int:
        return self._end_term

    @property
    def end_pos(self) -> int:
        return self._end_pos

    # Opening ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Opens and recovers: everything up to the first byte that is no whole entry in its place."""
        self._data.open()
        self._index.open()
        bases = self._data.bases
        if not bases:
            self._index.drop_from(0)
            return
        first = self._read_entry(bases[0], with_body=False) or self._first_after_filler(bases[0])
        if first is None:
            self._data.drop_from(bases[0])
            self._index.drop_from(0)
            return
        self._begin = first.index
        base = bases[-_RECOVERED_FILES:][0]
        entry = self._read_entry(base, with_body=False)
        is_known = entry is not None and self._index_unit(entry.index) == _unit_of(entry)
        self._scan(base if is_known else first.pos)
        if self._end == -1:
            self._begin = -1
        self._erase_after_end()

    def _first_after_filler(self, base: int) -> DLedgerEntry | None:
        """The first entry of a log that began anew in the middle of a file: `reset` fills what is before it.
        Without a filler the file's beginning was lost before it was durable, and nothing after it counts."""
        magic, size = self._filler(base)
        return self._read_entry(base + size, with_body=False) if magic == FILLER_MAGIC else None

    def _scan(self, pos: int) -> None:
        index, term = None, -1
        rebuilt = False
        while True:
            entry = self._read_entry(pos)
            if entry is None:
                after = self._after_filler(pos)
                if after is None:
                    break
                pos = after
                continue
            if (index is not None and entry.index != index + 1) or entry.term < term:
                break
            if rebuilt or self._index_unit(entry.index) != _unit_of(entry):
                rebuilt = True
                self._index.write(entry.index * INDEX_UNIT_SIZE, encode_index_unit(entry))
            index, term = entry.index, entry.term
            pos += entry.size
            self._end, self._end_term, self._end_pos = index, term, pos

    def _after_filler(self, pos: int) -> int | None:
        """Where the next file starts if the rest of this one is a filler, or too short for one."""
        next_base = pos - pos % self._file_size + self._file_size
        is_filler = self._filler(pos)[0] == FILLER_MAGIC
        at_end = pos % self._file_size == 0 and pos not in self._data.bases
        if at_end or (not is_filler and next_base - pos >= FILLER_SIZE_MIN):
            return None
        return next_base if next_base in self._data.bases else None

    def _filler(self, pos: int) -> tuple[int, int]:
        """The magic number at byte `pos`, and the size after it."""
        head = self._data.read(pos, _FILLER.size)
        magic, size = _FILLER.unpack(head) if len(head) == _FILLER.size else (0, 0)
        return magic, size

    def _read_entry(self, pos: int, *, with_body: bool = True) -> DLedgerEntry | None:
        """The entry at byte `pos`, None where there is no whole, well-placed one."""
        head = self._data.read(pos, ENTRY_HEADER_SIZE)
        if len(head) < ENTRY_HEADER_SIZE:
            return None
        magic, size, index, term, own_pos = _HEADER_START.unpack_from(head)
        length = int.from_bytes(head[44:48], "big", signed=True)
        fits = pos % self._file_size + size <= self._file_size
        if (
            magic != ENTRY_MAGIC
            or own_pos != pos
            or length < 0
            or size != ENTRY_HEADER_SIZE + length
            or not fits
        ):
            return None
        if not with_body:
            return DLedgerEntry(index, term, pos, b"", size)
        try:
            entry = decode_entry(self._data.read(pos, size))
        except RemoteProtocolError:
            return None
        return entry if entry.body_crc in (0, _crc(entry.body)) else None

    def _index_unit(self, index: int) -> tuple[int, int, int, int, int] | None:
        data = self._index.read(index * INDEX_UNIT_SIZE, INDEX_UNIT_SIZE) if index >= 0 else b""
        return decode_index_unit(data) if len(data) == INDEX_UNIT_SIZE else None

    # Reading ------------------------------------------------------------------------------------------------

    def entry(self, index: int) -> DLedgerEntry | None:
        """The entry at `index`, None where there is none."""
        cached = self._cache.get(index)
        if cached is not None:
            return cached
        if not self._begin <= index <= self._end or index < 0:
            return None
        unit = self._index_unit(index)
        return self._read_entry(unit[1]) if unit is not None else None

    def term(self, index: int) -> int:
        """The term of the entry at `index`, -1 where there is none."""
        if index == self._end:
            return self._end_term
        cached = self._cache.get(index)
        if cached is not None:
            return cached.term
        if not self._begin <= index <= self._end or index < 0:
            return -1
        unit = self._index_unit(index)
        return unit[4] if unit is not None else -1

    # Writing ------------------------------------------------------------------------------------------------

    def append(self, entries: list[DLedgerEntry]) -> None:
        """Writes entries that follow the last one. LogFullError: the log is as before."""
        before = (self._begin, self._end, self._end_term, self._end_pos)
        try:
            self._append(entries)
        except LogFullError:
            self._begin, self._end, self._end_term, self._end_pos = before
            for entry in entries:
                self._forget(entry.index)
            raise

    def _append(self, entries: list[DLedgerEntry]) -> None:
        run: list[bytes] = []
        units: list[bytes] = []
        start = self._end_pos
        for entry in entries:
            assert entry.index == self._end + 1 or self._end == -1, (entry.index, self._end)
            if entry.pos != self._end_pos or entry.pos % self._file_size == 0:
                self._data_write(start, run)
                self._fill(self._end_pos, entry.pos)
                self._index_due = True
                run, start = [], entry.pos
            run.append(encode_entry(_checked(entry)))
            units.append(encode_index_unit(entry))
            if self._begin == -1:
                self._begin = entry.index
            self._end, self._end_term, self._end_pos = entry.index, entry.term, entry.pos + entry.size
            self._remember(entry)
        self._data_write(start, run)
        self._index_write(entries[0].index, units)

    def _data_write(self, pos: int, run: list[bytes]) -> None:
        if run:
            self._data.write(pos, b"".join(run))

    def _index_write(self, first: int, units: list[bytes]) -> None:
        per_file = self._index.file_size // INDEX_UNIT_SIZE
        at = 0
        while at < len(units):
            room = per_file - (first + at) % per_file
            self._index.write((first + at) * INDEX_UNIT_SIZE, b"".join(units[at : at + room]))
            at += room

    def _fill(self, pos: int, until: int) -> None:
        """Closes a file with a filler that says how much of it is unused."""
        rest = until - pos
        if rest >= FILLER_SIZE_MIN:
            assert until % self._file_size == 0
            assert rest < self._file_size
            self._data.write(pos, _FILLER.pack(FILLER_MAGIC, rest))

    def truncate(self, end_index: int) -> None:
        """Cuts everything after `end_index`, and erases it, durably, so that no crash brings it back: one of
        its entries might stand where one that is appended next ends, and be taken for its successor."""
        if end_index >= self._end:
            return
        last = self.entry(end_index)
        for index in range(end_index + 1, self._end + 1):
            self._forget(index)
        if last is None:
            self._begin = self._end = self._end_term = -1
            self._end_pos = self._data.bases[0] if self._data.bases else 0
        else:
            self._end, self._end_term, self._end_pos = last.index, last.term, last.pos + last.size
        self._erase_after_end()
        sync_and_close(self._data.take_dirty())

    def reset(self, entry: DLedgerEntry) -> None:
        """Drops everything and begins anew with `entry`, at its own index and position."""
        self._cache.clear()
        self._cache_bytes = 0
        self._data.drop_from(0)
        self._index.drop_from(0)
        self._begin = self._end = self._end_term = -1
        self._end_pos = entry.pos
        inside = entry.pos % self._file_size
        if inside:
            self._data.write(entry.pos - inside, _FILLER.pack(FILLER_MAGIC, inside))
        self.append([entry])
        sync_and_close(self.take_dirty())

    def drop_before(self, index: int) -> None:
        """Removes the data files, and then index files, that hold only entries before `index`, which stays.
        In this order: an entry without its index unit could not be read."""
        unit = self._index_unit(index)
        if unit is None or not self._begin < index <= self._end:
            return
        base = unit[1] - unit[1] % self._file_size
        self._data.drop_before(base)
        first = self._read_entry(self._data.bases[0], with_body=False)
        if first is None:  # the log began anew in the middle of this file, and nothing was dropped
            return
        self._begin = first.index
        self._index.drop_before(self._begin * INDEX_UNIT_SIZE)
        for dropped in [one for one in self._cache if one < self._begin]:
            self._forget(dropped)

    def _erase_after_end(self) -> None:
        end = self._end_pos
        base = end - end % self._file_size
        self._data.drop_from(base + self._file_size if end > base else base)
        if end > base:
            self._data.erase_from(end)
        index_end = (self._end + 1) * INDEX_UNIT_SIZE
        index_base = index_end - index_end % self._index.file_size
        self._index.drop_from(index_base + self._index.file_size if index_end > index_base else index_base)
        if index_end > index_base and self._index.read(index_end, INDEX_UNIT_SIZE).strip(b"\0"):
            self._index.write(index_end, bytes(INDEX_UNIT_SIZE))

    # Durability ---------------------------------------------------------------------------------------------

    def take_dirty(self) -> list[int]:
        """Descriptors to sync (see `Segments.take_dirty`). The index of the last data files need not be
        durable, it is rebuilt from them; once a file is begun, that of those before it must be."""
        if not self._index_due:
            return self._data.take_dirty()
        self._index_due = False
        return self._data.take_dirty() + self._index.take_dirty()

    def close(self) -> None:
        """Closes the files; what was not synced is in the operating system's hands."""
        self._data.close()
        self._index.close()

    # Cache --------------------------------------------------------------------------------------------------

    def _remember(self, entry: DLedgerEntry) -> None:
        self._cache[entry.index] = entry
        self._cache_bytes += entry.size
        while self._cache_bytes > CACHE_BYTES_MAX:
            _, oldest = self._cache.popitem(last=False)
            self._cache_bytes -= oldest.size

    def _forget(self, index: int) -> None:
        entry = self._cache.pop(index, None)
        if entry is not None:
            self._cache_bytes -= entry.size


def _crc(body: bytes) -> int:
    """CRC-32 as a signed 32-bit number."""
    crc = zlib.crc32(body)
    return crc - (1 << 32) if crc >= 1 << 31 else crc


def _checked(entry: DLedgerEntry) -> DLedgerEntry:
    """The entry with its body's checksum. Java has a field for it and leaves it 0; then a body that a power
    failure has torn, its header whole, cannot be told from a good one."""
    if entry.body_crc or not entry.body:
        return entry
    return msgspec.structs.replace(entry, body_crc=_crc(entry.body))


def _unit_of(entry: DLedgerEntry) -> tuple[int, int, int, int, int]:
    return (entry.magic, entry.pos, entry.size, entry.index, entry.term)
