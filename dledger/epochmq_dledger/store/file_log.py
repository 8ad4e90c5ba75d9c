"""Keeps a log on disk (`DLedgerMmapFileStore`): entries in data files, and an index unit for each in index
files.

The data files are authoritative; recovery rebuilds the index where it differs. The latest entries stay in
memory, so that pushing them to peers reads no disk.

Only `open`, `erase_after_end` and `erase_now`, which run at a start, wait for the disk. Entries are written
at once, and are durable once the files of `take_unsynced` are synced. Truncated entries disappear at once for
readers; the job of `take_erasure` erases their bytes. Until it is done and `on_erasure_completed` is called,
the log takes no entries: a truncated entry could stand where a new one ends, and be taken for its successor
after a power failure.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from epochmq_dledger.core.raft_log import LogFullError
from epochmq_dledger.store.damage_detection import LogDamage, find_proof_of_loss
from epochmq_dledger.store.entry_block import EntryBlock, blocks_of
from epochmq_dledger.store.entry_cache import EntryCache
from epochmq_dledger.store.entry_encoding import EntryEncoder
from epochmq_dledger.store.log_files import LogFiles, index_unit_of
from epochmq_dledger.store.segments import Erasure, UnsyncedFiles
from epochmq_dledger.store.truncation_mark import TruncationMark
from epochmq_formats.dledger_log import (
    ENTRY_HEADER_SIZE,
    FILLER_SIZE_MIN,
    INDEX_UNIT_SIZE,
    decode_index_unit,
    encode_index_unit,
)
from epochmq_protocol.dledger import DLedgerEntry

INDEX_FILE_SIZE = INDEX_UNIT_SIZE * 5 * 1024 * 1024
_RECOVERED_FILES = 3
"""Recovery reads this many of the last data files (`DLedgerMmapFileStore.recover`). It reads all of them if
the index does not hold the first entry of those."""

_INDEXED_TERMS_MAX = 1000


class FileLog:
    """The log of one peer (`RaftLog`)."""

    def __init__(
        self,
        folder: Path,
        file_size: int,
        index_file_size: int = INDEX_FILE_SIZE,
        data_folder: Path | None = None,
    ) -> None:
        """The data files are in `data_folder`, by default in `folder`/data."""
        self._files = LogFiles(folder, file_size, index_file_size, data_folder)
        self._mark = TruncationMark(folder)
        self._encode = EntryEncoder().encode
        self._file_size = file_size
        self._begin = self._end = self._end_term = -1
        self._end_pos = 0
        self._cache = EntryCache()
        self._index_due = True
        self._erasures: list[Erasure] = []
        """Dropped bytes that are not erased yet."""
        self._marked_end: int | None = None
        self._reset_to: DLedgerEntry | None = None
        """The first entry of a log that was reset. It is written once the old entries are erased."""
        self._removals: list[Callable[[], None]] = []
        self._indexed_terms: dict[int, int] = {}
        """The terms that the index named for entries which have another one, as recovery found them: those of
        the last ones, at most `_INDEXED_TERMS_MAX`."""
        self.is_writable = True
        self.durable_index = -1
        """Entries up to this index survive a power failure, as `mark_synced` reports."""
        self.on_dropped: Callable[[int], None] = lambda _: None
        """Called before this log drops its bytes from a position on, for those who read its files."""
        self.damage: LogDamage | None = None
        """The entries that recovery found lost. The files do not change before `erase_after_end`."""

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

    @property
    def stored_end_index(self) -> int:
        """The last entry that the files hold. The first entry of a log that was reset is in memory only until
        the former entries are erased."""
        return self._end if self._reset_to is None else self._reset_to.index - 1

    # Files --------------------------------------------------------------------------------------------------

    @property
    def data_file_bases(self) -> list[int]:
        """The first positions of the data files, in order."""
        return self._files.data.bases

    def open_data_file(self, base: int) -> int | None:
        """A new descriptor of the data file that begins at this position. None if this log has none there;
        it has no file that waits for its erasure."""
        return self._files.data.open_file(base)

    @property
    def body_sizes(self) -> range:
        """The sizes in bytes that the body of an entry may have."""
        return range(self._file_size - ENTRY_HEADER_SIZE - FILLER_SIZE_MIN + 1)

    # Opening ------------------------------------------------------------------------------------------------

    def set_origin(self, pos: int) -> None:
        """Sets the position of the first entry of a new log, before `open`. It is a multiple of the size of a
        data file, and not 0 if other files hold the bytes before it. The empty first data file then stays."""
        assert pos % self._file_size == 0
        self._files.origin = pos

    def open(self, committed_index: int | None = None, stopped_end: int | None = None) -> None:
        """Opens and recovers the log: it ends before the first byte at which there is no readable entry. If
        the bytes after it are what a crash leaves of entries that were never synced, erases them. Otherwise,
        or if the log ends before `committed_index` or `stopped_end`, `damage` says what is lost, and nothing
        changes before `erase_after_end`. `committed_index`: that of the checkpoint, None without one.
        `stopped_end`: the last entry when the peer stopped in order, None if it did not."""
        files = self._files
        bases = files.open()
        marked_end = self._mark.open()
        self._end_pos = files.begin_pos
        if bases and (marked_end is None or marked_end > bases[0]):
            first = files.first_entry(bases[0])
            if first is not None:
                self._begin = first.index
                base = bases[-_RECOVERED_FILES:][0]
                entry = files.read_entry(base, with_body=False)
                is_known = entry is not None and files.read_index_unit(entry.index) == index_unit_of(entry)
                start = base if is_known and (marked_end is None or marked_end > base) else first.pos
                self._scan(start, marked_end)
                if self._end == -1 and start != first.pos:
                    self._scan(first.pos, marked_end)  # the first entry of that file is damaged
        if self._end == -1:
            self._begin = -1
        proof = None if marked_end is not None else self._find_proof_of_loss(committed_index)
        self.damage = _describe_damage(files, self._end_pos, self._end, committed_index, stopped_end, proof)
        if self.damage is None:
            self.erase_after_end()

    def _scan(self, pos: int, end_pos: int | None) -> None:
        """Finds the end of the log, and rebuilds the index where it differs."""
        index, term = None, -1
        for entry in self._files.entries_from(pos, end_pos):
            if (index is not None and entry.index != index + 1) or entry.term < term:
                break
            self._check_units(entry.index, encode_index_unit(entry))
            index, term = entry.index, entry.term
            self._end, self._end_term, self._end_pos = index, term, entry.pos + entry.size

    def _check_units(self, first_index: int, units: bytes) -> None:
        """Writes the index units of entries that recovery has read, if the index has others, and notes the
        terms that those of the same entries name."""
        stored = self._files.read_index_units(first_index, len(units) // INDEX_UNIT_SIZE)
        if stored == units:
            return
        for at in range(0, len(stored), INDEX_UNIT_SIZE):
            before, after = decode_index_unit(stored, at), decode_index_unit(units, at)
            if before[:4] == after[:4] and before[4] != after[4]:
                self._indexed_terms[after[3]] = before[4]
        for dropped in list(self._indexed_terms)[:-_INDEXED_TERMS_MAX]:
            del self._indexed_terms[dropped]
        self._files.write_index_units(first_index, units)

    def end_doubt(self, term_max: int | None) -> str:
        """Why a flipped bit may have changed the term of the last entry, empty without a reason: data file
        and index name different terms, or it alone has a term beyond `term_max`, that of the peer (None:
        unknown). A peer is elected by the term of its last entry, so a wrong one would make a log that is
        behind the newest of the group. The terms of earlier entries lie between those of their neighbours."""
        index, term = self._end, self._end_term
        indexed = self._indexed_terms.get(index)
        if indexed is not None:
            return f"has term {term}, but term {indexed} in the index"
        if index >= 0 and term_max is not None and max(term_max, self.term(index - 1)) < term:
            return f"has term {term}, but the term of this peer is {term_max}"
        return ""

    def _find_proof_of_loss(self, committed_index: int | None) -> DLedgerEntry | None:
        """An entry that proves that the first unreadable one was durable, None without one."""
        expected = self._end + 1 if self._end >= 0 else None
        return find_proof_of_loss(self._files.data, self._files.read_entry, self._end_pos, expected)

    def mark_unreadable(self, index: int, fault: str = "is unreadable") -> None:
        """Ends the log before an entry that cannot be read or has this fault, and describes it in
        `damage`."""
        unit = self._files.read_index_unit(index)
        pos = unit[1] if unit is not None else -1
        last = self.entry(index - 1)
        lost_to = self._end
        self._cache.clear()
        self._end, self._end_term = (last.index, last.term) if last is not None else (-1, -1)
        self._begin = self._begin if last is not None else -1
        self._end_pos = last.pos + last.size if last is not None else self._files.begin_pos
        place = self._files.describe(pos if pos >= 0 else self._end_pos, self._end + 1)
        self.damage = LogDamage(
            self._end_pos, self._end, f"{place} {fault}; the log had entries up to {lost_to}"
        )

    def erase_after_end(self) -> None:
        """Erases all bytes after the end of the log, durably."""
        self._drop_after_end(marked=True)
        self.erase_now()
        self.durable_index = self._end

    def files_after_end(self) -> list[Path]:
        """The data files with bytes after the end of the log, in order. The first one may begin before it."""
        data = self._files.data
        return [data.path(base) for base in data.bases if base + self._file_size > self._end_pos]

    # Reading ------------------------------------------------------------------------------------------------

    def _unit(self, index: int) -> tuple[int, ...] | None:
        """The index unit of an entry, None if the log does not hold it."""
        if index < 0 or not self._begin <= index <= self._end:
            return None
        return self._files.read_index_unit(index)

    def entry(self, index: int) -> DLedgerEntry | None:
        """The entry at `index`, None if the log does not hold it."""
        cached = self._cache.entries.get(index)
        if cached is not None:
            return cached
        unit = self._unit(index)
        return self._files.read_entry(unit[1]) if unit is not None else None

    def term(self, index: int) -> int:
        """The term of the entry at `index`, -1 if the log does not hold it."""
        if index == self._end:
            return self._end_term
        cached = self._cache.entries.get(index)
        if cached is not None:
            return cached.term
        unit = self._unit(index)
        return unit[4] if unit is not None else -1

    def position(self, index: int) -> int:
        """The position of the entry at `index`, -1 if the log does not hold it."""
        cached = self._cache.entries.get(index)
        if cached is not None:
            return cached.pos
        unit = self._unit(index)
        return unit[1] if unit is not None else -1

    def end_position(self, index: int) -> int:
        """The position after the entry at `index`, -1 if the log does not hold it."""
        if index == self._end:
            return self._end_pos
        unit = self._unit(index)
        return unit[1] + unit[2] if unit is not None else -1

    # Writing ------------------------------------------------------------------------------------------------

    def append(self, entries: list[DLedgerEntry]) -> None:
        """Writes entries that follow the last one. LogFullError: the log has not changed; if any byte was
        written, it is not writable until that byte is erased. OSError: the disk failed, and the state of the
        log is unknown."""
        self.append_blocks(blocks_of(entries, self._file_size, self._encoded))
        for entry in entries:
            self._cache.add(entry)

    def _encoded(self, entry: DLedgerEntry) -> bytes | bytearray:
        """The bytes of an entry in a data file."""
        return self._encode(entry, self.durable_index)

    def append_blocks(self, blocks: list[EntryBlock]) -> None:
        """Writes the entries of these blocks, as `append` does."""
        assert self.is_writable, "dropped entries are not erased yet"
        files = self._files
        before = (self._begin, self._end, self._end_term, self._end_pos)
        written = files.data.writes, files.index.writes
        try:
            for block in blocks:
                pos = block.pos
                assert block.first_index == self._end + 1 or self._end == -1, (block.first_index, self._end)
                if pos != self._end_pos or pos % self._file_size == 0:
                    assert pos % self._file_size == 0 or pos - self._end_pos < FILLER_SIZE_MIN
                    files.write_filler(self._end_pos, pos)
                    self._index_due = True
                files.data.write(pos, block.data)
                files.write_index_units(block.first_index, block.units)
                if self._begin == -1:
                    self._begin = block.first_index
                self._end, self._end_term = block.first_index + block.entry_count - 1, block.term
                self._end_pos = block.end_pos
        except LogFullError:
            self._begin, self._end, self._end_term, self._end_pos = before
            if (files.data.writes, files.index.writes) != written:
                self._drop_after_end(marked=False)
            raise

    def replace_last(self, entry: DLedgerEntry) -> None:
        """Writes the last entry again, which has rotted: it has this index, term, position and size.
        LogFullError: the file may hold any part of either. OSError as `append`."""
        assert self.is_writable, "dropped entries are not erased yet"
        assert (entry.index, entry.term) == (self._end, self._end_term), (entry.index, self._end)
        assert entry.pos + entry.size == self._end_pos, (entry.pos, entry.size, self._end_pos)
        self._cache.remove(entry.index)
        self.durable_index = min(self.durable_index, entry.index - 1)
        self._files.data.write(entry.pos, self._encoded(entry))

    def truncate(self, end_index: int) -> None:
        """Truncates the log after `end_index`. It is not writable until the dropped bytes are erased."""
        if end_index >= self._end:
            return
        last = self.entry(end_index)
        self._cache.remove_after(end_index)
        if last is None:
            self._begin = self._end = self._end_term = -1
            self._end_pos = self._files.begin_pos
        else:
            self._end, self._end_term, self._end_pos = last.index, last.term, last.pos + last.size
        self._drop_after_end(marked=True)

    def reset(self, entry: DLedgerEntry) -> None:
        """Drops all entries, and starts again with `entry` at its own index and position. Until the old
        entries are erased, the log is not writable, and `entry` is in memory only."""
        self.on_dropped(self._files.begin_pos)
        self._cache.clear()
        self._begin = self._end = entry.index
        self._end_term, self._end_pos = entry.term, entry.pos + entry.size
        self._cache.add(entry)
        self._erasures += [self._files.data.drop_from(0), self._files.index.drop_from(0)]
        self._reset_to = entry
        self.durable_index = entry.index - 1
        self.is_writable = False

    def drop_before(self, index: int) -> None:
        """Drops data files, and then index files, that hold only entries before `index`, which stays. The
        jobs of `take_removals` remove them in this order: an entry without its index unit could not be
        read."""
        files, unit = self._files, self._files.read_index_unit(index)
        if unit is None or not self._begin < index <= self._end:
            return
        data = files.data.drop_before(unit[1] - unit[1] % self._file_size)
        first = files.read_entry(files.begin_pos, with_body=False)
        if first is None:  # the log was reset in the middle of this file, and no file was dropped
            return
        self._begin = first.index
        units = files.index.drop_before(self._begin * INDEX_UNIT_SIZE)
        self._cache.remove_before(self._begin)
        self._removals += [data.run, units.run]

    def take_removals(self) -> list[Callable[[], None]]:
        """Jobs for a worker thread, in this order: they remove the files that were dropped since the last
        call."""
        found, self._removals = self._removals, []
        return found

    # Erasing ------------------------------------------------------------------------------------------------

    def _drop_after_end(self, *, marked: bool) -> None:
        """Drops all bytes after the end of the log. `marked`: some of them were durable."""
        self.on_dropped(self._end_pos)
        keeps_file = self._end < 0 and 0 < self._end_pos == self._files.origin
        self._erasures += [
            self._files.data.erase_from(self._end_pos, keeps_file=keeps_file),
            self._files.index.erase_from((self._end + 1) * INDEX_UNIT_SIZE),
        ]
        if marked:
            self._marked_end = self._end_pos
        self.durable_index = min(self.durable_index, self._end)
        self.is_writable = False

    def take_erasure(self) -> Callable[[], None]:
        """A job for a worker thread that erases all dropped bytes durably. OSError: dropped entries may come
        back, and the log must not be used."""
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
        """The job of `take_erasure` is done: the log is writable again. OSError or LogFullError: the first
        entry after a reset cannot be written."""
        self.is_writable = True
        entry, self._reset_to = self._reset_to, None
        if entry is not None:
            self._begin = self._end = self._end_term = -1
            self._end_pos = entry.pos
            base = entry.pos - entry.pos % self._file_size
            self._files.write_filler(base, entry.pos)
            self.append([entry])

    def erase_now(self) -> None:
        """Erases all dropped bytes, and waits for it."""
        self.take_erasure()()
        self.on_erasure_completed()

    # Durability ---------------------------------------------------------------------------------------------

    def take_unsynced(self) -> UnsyncedFiles:
        """The files to sync (see `Segments.take_unsynced`). The index of the last data files need not be
        durable, for recovery rebuilds it. When a data file is started, the index of the earlier ones must
        be."""
        with_index, self._index_due = self._index_due, False
        return self._files.take_unsynced(with_index=with_index)

    def mark_synced(self, index: int, term: int) -> None:
        """The files of `take_unsynced` are durable. When it was called, the log ended with this entry."""
        if index > self.durable_index and self.term(index) == term:
            self.durable_index = index

    def close(self) -> None:
        """Closes the files. The kernel still holds what was not synced."""
        self._files.close()
        self._mark.close()


def _describe_damage(
    files: LogFiles,
    end_pos: int,
    end_index: int,
    committed_index: int | None,
    stopped_end: int | None,
    proof: DLedgerEntry | None,
) -> LogDamage | None:
    """The damage behind the end of a recovered log, None if a crash explains what is there."""
    place = files.describe(end_pos, end_index + 1)
    if proof is not None:
        text = (
            f"{place} is unreadable, but was durable when entry {proof.index} of term {proof.term} was "
            f"written at byte {proof.pos}, which is readable"
        )
        return LogDamage(end_pos, end_index, text)
    if committed_index is not None and end_index < committed_index:
        text = f"the log ends with entry {end_index} at {place}, but entry {committed_index} was committed"
        return LogDamage(end_pos, end_index, text)
    if stopped_end is not None and end_index < stopped_end:
        text = (
            f"the log ends with entry {end_index} at {place}, but ended with entry {stopped_end} when the "
            "peer stopped in order"
        )
        return LogDamage(end_pos, end_index, text)
    return None
