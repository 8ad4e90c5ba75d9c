"""The log on disk (`DLedgerMmapFileStore`): entries in data files, a 32-byte unit for each in index files.

The data files are the truth; the index is rebuilt from them where it differs. Entries lately written stay in
memory, so that pushing to peers reads no disk.

Nothing here waits for the disk but `open`, `trim` and `settle_now`, which are for starts. Entries are
written at once and durable once what `take_dirty` gave is synced. What is cut is gone at once for whoever
asks, and erased by the job that `take_erasure` gives; until that is done and `settled` is called, nothing is
appended: one of the cut entries might stand where a new one ends, and be taken for its successor after a
power failure.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from epochmq_dledger.core.raft_log import LogFullError
from epochmq_dledger.store.damage_detection import LogDamage, find_lost_entry
from epochmq_dledger.store.entry_encoding import EntryEncoder, crc_of, is_valid_header
from epochmq_dledger.store.segments import Erasure, Segments, UnsyncedFiles
from epochmq_dledger.store.truncation_mark import TruncationMark
from epochmq_protocol.dledger import (
    ENTRY_HEADER_SIZE,
    FILLER_MAGIC,
    FILLER_SIZE_MIN,
    INDEX_UNIT_SIZE,
    DLedgerEntry,
    decode_entry,
    decode_index_unit,
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
        self._mark = TruncationMark(folder)
        self._encode = EntryEncoder().encode
        self._file_size = file_size
        self._begin = self._end = self._end_term = -1
        self._end_pos = 0
        self._cache: OrderedDict[int, DLedgerEntry] = OrderedDict()
        self._cache_bytes = 0
        self._index_due = True
        self._erasures: list[Erasure] = []
        """What is cut and not erased yet."""
        self._marked_end: int | None = None
        self._reset_to: DLedgerEntry | None = None
        """The first entry of a log that begins anew; it is written when what was before is erased."""
        self._removals: list[Callable[[], None]] = []
        self.is_writable = True
        self.durable_index = -1
        """Entries up to here survive a power failure, as `synced` was told."""
        self.damage: LogDamage | None = None
        """What recovery found lost. The files are as they were found until `trim` is called."""

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

    def open(self, committed_index: int = -1) -> None:
        """Opens and recovers: everything up to the first byte that is no whole entry in its place. If what
        follows is what a crash leaves of entries that were never synced, it is erased. Otherwise, or if the
        log ends before the entry that is known to be committed, `damage` says what is lost, and nothing is
        changed before `trim`."""
        self._data.open()
        self._index.open()
        limit = self._mark.open()
        bases = self._data.bases
        self._end_pos = bases[0] if bases else 0
        first = None
        if bases and (limit is None or limit > bases[0]):
            first = self._read_entry(bases[0], with_body=False) or self._first_after_filler(bases[0])
            if first is not None:
                self._begin = first.index
                base = bases[-_RECOVERED_FILES:][0]
                entry = self._read_entry(base, with_body=False)
                is_known = entry is not None and self._index_unit(entry.index) == _unit_of(entry)
                start = base if is_known and (limit is None or limit > base) else first.pos
                self._scan(start, limit)
                if self._end == -1 and start != first.pos:
                    self._scan(first.pos, limit)  # the first entry of that file is damaged
        if self._end == -1:
            self._begin = -1
        self._find_damage(committed_index, is_cut=limit is not None)
        if self.damage is None:
            self.erase_after_end()

    def _find_damage(self, committed_index: int, *, is_cut: bool) -> None:
        expected = self._end + 1 if self._end >= 0 else None
        lost = None if is_cut else find_lost_entry(self._data, self._read_entry, self._end_pos, expected)
        where = self._where(self._end_pos)
        if lost is not None:
            text = (
                f"{where} is unreadable, but had been durable when entry {lost.index} of term {lost.term}, "
                f"which is whole, was written at byte {lost.pos}"
            )
            self.damage = LogDamage(self._end_pos, self._end, text)
        elif self._end < committed_index:
            text = (
                f"the log ends with entry {self._end} at {where}, but entry {committed_index} was committed"
            )
            self.damage = LogDamage(self._end_pos, self._end, text)

    def _where(self, pos: int) -> str:
        base = pos - pos % self._file_size
        return f"byte {pos - base} of {self._data.folder}/{base:020d} (entry {self._end + 1})"

    def mark_unreadable(self, index: int) -> None:
        """An entry of the log cannot be read any more: the log ends before it. `damage` says so."""
        unit = self._index_unit(index)
        pos = unit[1] if unit is not None else -1
        last = self.entry(index - 1)
        lost_to = self._end
        self._cache.clear()
        self._cache_bytes = 0
        self._end, self._end_term = (last.index, last.term) if last is not None else (-1, -1)
        self._begin = self._begin if last is not None else -1
        first = self._data.bases[0] if self._data.bases else 0
        self._end_pos = last.pos + last.size if last is not None else first
        where = self._where(pos if pos >= 0 else self._end_pos)
        self.damage = LogDamage(
            self._end_pos, self._end, f"{where} is unreadable; the log had entries to {lost_to}"
        )

    def erase_after_end(self) -> None:
        """Erases what lies behind the log's end, durably."""
        self._cut(marked=True)
        self.erase_now()
        self.durable_index = self._end

    def files_after_end(self) -> list[Path]:
        """The data files that hold what lies behind the log's end, in order; the first may begin before
        it."""
        return [self._data.path(base) for base in self._data.bases if base + self._file_size > self._end_pos]

    def _first_after_filler(self, base: int) -> DLedgerEntry | None:
        """The first entry of a log that began anew in the middle of a file: `reset` fills what is before it.
        Without a filler the file's beginning was lost before it was durable, and nothing after it counts."""
        magic, size = self._filler(base)
        return self._read_entry(base + size, with_body=False) if magic == FILLER_MAGIC else None

    def _scan(self, pos: int, limit: int | None) -> None:
        index, term = None, -1
        rebuilt = False
        while limit is None or pos < limit:
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
        if not is_valid_header(head, pos, self._file_size - pos % self._file_size):
            return None
        _, size, index, term, _ = _HEADER_START.unpack_from(head)
        if not with_body:
            return DLedgerEntry(index, term, pos, b"", size)
        try:
            entry = decode_entry(self._data.read(pos, size))
        except RemoteProtocolError:
            return None
        return entry if entry.body_crc in (0, crc_of(entry.body)) else None

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
        """Writes entries that follow the last one. LogFullError: the log is as before; if any byte was
        written, it is not settled until that is erased. OSError: the disk failed, and nothing is known of
        the log."""
        assert self.is_writable, "what was cut is not erased yet"
        before = (self._begin, self._end, self._end_term, self._end_pos)
        written = self._data.writes, self._index.writes
        try:
            self._append(entries)
        except LogFullError:
            self._begin, self._end, self._end_term, self._end_pos = before
            for entry in entries:
                self._forget(entry.index)
            if (self._data.writes, self._index.writes) != written:
                self._cut(marked=False)
            raise

    def _append(self, entries: list[DLedgerEntry]) -> None:
        run: list[bytearray] = []
        units: list[bytes] = []
        start, durable_index = self._end_pos, self.durable_index
        for entry in entries:
            assert entry.index == self._end + 1 or self._end == -1, (entry.index, self._end)
            if entry.pos != self._end_pos or entry.pos % self._file_size == 0:
                self._data_write(start, run)
                self._fill(self._end_pos, entry.pos)
                self._index_due = True
                run, start = [], entry.pos
            run.append(self._encode(entry, durable_index))
            units.append(encode_index_unit(entry))
            if self._begin == -1:
                self._begin = entry.index
            self._end, self._end_term, self._end_pos = entry.index, entry.term, entry.pos + entry.size
            self._remember(entry)
        self._data_write(start, run)
        self._index_write(entries[0].index, units)

    def _data_write(self, pos: int, run: list[bytearray]) -> None:
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
        """Cuts everything after `end_index`. The log is not settled until that is erased."""
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
        self._cut(marked=True)

    def reset(self, entry: DLedgerEntry) -> None:
        """Drops everything and begins anew with `entry`, at its own index and position. The log is not
        settled, and `entry` only in memory, until what was before is erased."""
        self._cache.clear()
        self._cache_bytes = 0
        self._begin = self._end = entry.index
        self._end_term, self._end_pos = entry.term, entry.pos + entry.size
        self._remember(entry)
        self._erasures += [self._data.drop_from(0), self._index.drop_from(0)]
        self._reset_to = entry
        self.durable_index = entry.index - 1
        self.is_writable = False

    def drop_before(self, index: int) -> None:
        """Lets go of the data files, and then index files, that hold only entries before `index`, which
        stays. They are removed by what `take_removals` gives, in this order: an entry without its index
        unit could not be read."""
        unit = self._index_unit(index)
        if unit is None or not self._begin < index <= self._end:
            return
        data = self._data.drop_before(unit[1] - unit[1] % self._file_size)
        first = self._read_entry(self._data.bases[0], with_body=False)
        if first is None:  # the log began anew in the middle of this file, and nothing was dropped
            return
        self._begin = first.index
        units = self._index.drop_before(self._begin * INDEX_UNIT_SIZE)
        for dropped in [one for one in self._cache if one < self._begin]:
            self._forget(dropped)
        self._removals += [data.run, units.run]

    def take_removals(self) -> list[Callable[[], None]]:
        """What is left to do on a worker thread, in this order, for the files dropped since the last call."""
        found, self._removals = self._removals, []
        return found

    # Erasing ------------------------------------------------------------------------------------------------

    def _cut(self, *, marked: bool) -> None:
        """Lets go of everything behind the log's end. `marked`: some of it was durable."""
        self._erasures += [
            self._data.erase_from(self._end_pos),
            self._index.erase_from((self._end + 1) * INDEX_UNIT_SIZE),
        ]
        if marked:
            self._marked_end = self._end_pos
        self.durable_index = min(self.durable_index, self._end)
        self.is_writable = False

    def take_erasure(self) -> Callable[[], None]:
        """What erases, durably, all that was cut; for a worker thread. OSError: what was cut may come back,
        and nothing may be appended."""
        erasures, self._erasures = self._erasures, []
        marked_end, self._marked_end = self._marked_end, None

        def erase() -> None:
            if marked_end is not None:
                self._mark.write(marked_end)
            for erasure in erasures:
                erasure.run()
            if marked_end is not None:
                self._mark.clear()

        return erase

    def on_erasure_completed(self) -> None:
        """What `take_erasure` gave is done. OSError or LogFullError: the log cannot begin anew."""
        self.is_writable = True
        entry, self._reset_to = self._reset_to, None
        if entry is not None:
            self._begin = self._end = self._end_term = -1
            self._end_pos = entry.pos
            inside = entry.pos % self._file_size
            if inside:
                self._data.write(entry.pos - inside, _FILLER.pack(FILLER_MAGIC, inside))
            self.append([entry])

    def erase_now(self) -> None:
        """Waits until what was cut is erased."""
        self.take_erasure()()
        self.on_erasure_completed()

    # Durability ---------------------------------------------------------------------------------------------

    def take_unsynced(self) -> UnsyncedFiles:
        """What to sync (see `Segments.take_dirty`). The index of the last data files need not be durable,
        it is rebuilt from them; once a file is begun, that of those before it must be."""
        if not self._index_due:
            return self._data.take_unsynced()
        self._index_due = False
        return self._data.take_unsynced() + self._index.take_unsynced()

    def mark_synced(self, index: int, term: int) -> None:
        """What `take_dirty` gave when the log ended with this entry is durable."""
        if index > self.durable_index and self.term(index) == term:
            self.durable_index = index

    def close(self) -> None:
        """Closes the files; what was not synced is in the operating system's hands."""
        self._data.close()
        self._index.close()
        self._mark.close()

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


def _unit_of(entry: DLedgerEntry) -> tuple[int, int, int, int, int]:
    return (entry.magic, entry.pos, entry.size, entry.index, entry.term)
