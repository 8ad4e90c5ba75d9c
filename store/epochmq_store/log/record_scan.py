"""Reads a range of the commit log from the disk and checks its records (`record_checks`), on a worker thread.

Behind a broken record the scan continues at the next offset where a record with that physical offset begins.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from epochmq_protocol.checksum import crc32
from epochmq_protocol.record_layout import BLANK_BYTES
from epochmq_store.files.mapped_file import PAGE_BYTES
from epochmq_store.log.damaged_ranges import DamagedRange
from epochmq_store.log.quiet_reader import QuietReader
from epochmq_store.log.record_checks import PLAIN, PlainRecords
from epochmq_store.log.scanned_unit import ScannedPiece, ScannedUnit

READ_BYTES: Final = 64 << 10
"""Bytes that one step reads and checks. Of small records, a step holds the interpreter for a millisecond."""
PIECE_BYTES: Final = 64 << 10
"""The least size of a piece with a checksum of its own, except at the end of a scan and before damage."""
_TRUSTED_SIZE_MAX: Final = 16 << 20
"""A record that claims to be larger is believed only if a record begins where it ends."""


class RecordScan:
    """One scan of records in one file. `step` runs on a worker thread; the caller may pause between steps."""

    def __init__(
        self,
        path: Path,
        file_start: int,
        file_size: int,
        start: int,
        until: int,
        records: PlainRecords = PLAIN,
        *,
        end: int | None = None,
        on_record: Callable[[bytes, int, int, int], None] | None = None,
    ) -> None:
        """The file begins at the log offset `file_start`. The scan begins with the record at the log offset
        `start`, and ends with the first record that ends at or after `until`, or with the file. It reads
        nothing from the log offset `end` on (None: the end of the file), and ends before a record that goes
        on there. `on_record` gets each whole record: a buffer, its position and size there, and its log
        offset."""
        self._reader = QuietReader(path)
        self._records = records
        self._on_record = on_record
        self._file_start, self._file_size = file_start, file_size
        self._start, self._until = start - file_start, until - file_start
        self._end = file_size if end is None else min(end - file_start, file_size)
        """Position in the file after the last byte that is read."""
        self._is_cut = False
        """Whether the scan has met a record that goes on after `end`."""
        self._buffer = b""
        self._at = self._start
        """Position in the file of the buffer's first byte, where a record starts."""
        self._unreadable: list[tuple[int, int]] = []
        self._pieces: list[ScannedPiece] = []
        self._damaged: list[DamagedRange] = []
        self._piece_start, self._piece_crc = self._at, 0
        self._summed = self._at
        """Up to this position the piece's checksum is computed."""
        self._broken_from: int | None = None
        """Where the broken record begins, behind which the next whole one is searched."""
        self._fault = ""
        self._used_end = self._at
        """Where the records end; behind a blank record the file has unused bytes."""

    def step(self) -> ScannedUnit | None:
        """Reads and checks the next READ_BYTES. Returns the result of the scan with the last step. Raises
        OSError if the file cannot be opened."""
        self._reader.open()
        read_end = self._at + len(self._buffer)
        if read_end < self._end:
            size = min(READ_BYTES - read_end % READ_BYTES, self._end - read_end)
            self._buffer += self._read(read_end, size)
        if not self._walk():
            return None
        self._end_piece(self._used_end)
        self.close()
        base = self._file_start
        return ScannedUnit(base + self._start, base + self._at, tuple(self._pieces), tuple(self._damaged))

    @property
    def newest_damage(self) -> DamagedRange | None:
        """The last damaged range so far that a whole record or the end of the scan follows. The next one may
        be joined to it."""
        return self._damaged[-1] if self._damaged else None

    def close(self) -> None:
        """Closes the file; a later `step` is not possible."""
        self._reader.close()

    # Reading

    def _read(self, at: int, size: int) -> bytes:
        try:
            return self._reader.read(at, size)
        except OSError:
            return self._read_pages(at, size)

    def _read_pages(self, at: int, size: int) -> bytes:
        """Reads page by page, and puts zeros in the place of unreadable pages."""
        pages = []
        end = at + size
        while at < end:
            count = min(PAGE_BYTES - at % PAGE_BYTES, end - at)
            try:
                pages.append(self._reader.read(at, count))
            except OSError:
                pages.append(bytes(count))
                self._unreadable.append((at, at + count))
            at += count
        return b"".join(pages)

    # Checking

    def _walk(self) -> bool:
        """Checks the records in the buffer; True when the scan is complete."""
        buffer, base = self._buffer, self._at
        position = 0
        while True:
            at = base + position
            if self._broken_from is not None:
                found = self._next_start(buffer, position, base)
                if found is None:
                    position = self._skipped_to(len(buffer), base)
                    break
                position = found
                self._end_damage(base + position)
                continue
            self._used_end = at
            if at >= self._until or self._file_size - at < BLANK_BYTES:
                if self._file_size - at < BLANK_BYTES:
                    position = self._file_size - base
                break
            size = self._record_size(buffer, position, base)
            if size is None:
                break  # the rest of the record is not read yet
            if size < 0:
                position = self._file_size - base
                self._used_end = at + BLANK_BYTES
                self._sum(buffer, base, self._used_end)
                break
            if self._broken_from is None:
                if self._on_record is not None:
                    self._on_record(buffer, position, size, self._file_start + at)
                position += size
                if at + size - self._piece_start >= PIECE_BYTES:
                    self._sum(buffer, base, at + size)
                    self._end_piece(at + size)
            elif size:
                position += size
                self._end_damage(base + position)
            else:
                position += 1
        if self._broken_from is None:
            self._sum(buffer, base, self._used_end)
        self._at = base + position
        self._buffer = buffer[position:]
        self._unreadable = [one for one in self._unreadable if one[1] > self._at]
        is_past = self._at >= min(self._until, self._file_size) and self._broken_from is None
        return is_past or self._is_cut or self._at >= self._end

    def _record_size(self, buffer: bytes, position: int, base: int) -> int | None:
        """The size of the record at this position; -1 for a blank record; None if more bytes must be read. If
        the record is broken, begins a damaged range; the size is then 0 if it cannot be trusted."""
        left = len(buffer) - position
        at = base + position
        is_all = base + len(buffer) >= self._end
        records, space = self._records, self._file_size - at
        if left < records.start_bytes and (not is_all or self._end < self._file_size):
            self._is_cut = is_all
            return None
        size = records.size(buffer, position)
        fault = self._unreadable_fault(at, at + records.start_bytes)
        if not fault and records.is_blank(buffer, position):
            if size == space:
                self._is_cut = self._end < self._file_size
                return None if self._is_cut else -1
            fault = f"a blank record of {size} bytes does not end with the file"
        elif not fault:
            fault = records.start_fault(buffer, position, self._file_start + at, space)
        if fault:
            self._begin_damage(buffer, base, at, fault)
            return 0
        if size > self._end - at:
            if not is_all:
                return None
            if self._next_start(buffer, position + 1, base) is None:
                self._is_cut = True
                return None
            self._begin_damage(buffer, base, at, f"a record claims to have {size} bytes")
            return 0
        if size > left:
            if size <= _TRUSTED_SIZE_MAX or self._starts_record_on_disk(at + size):
                return None
            self._begin_damage(buffer, base, at, f"a record claims to have {size} bytes")
            return 0
        fault = self._unreadable_fault(at, at + size) or records.content_fault(buffer, position, size)
        if fault:
            self._begin_damage(buffer, base, at, fault)
            # The size can be trusted if the next record begins where this one ends.
            return size if self._starts_record_on_disk(at + size) else 0
        return size

    def _unreadable_fault(self, start: int, end: int) -> str:
        touched = any(first < end and start < last for first, last in self._unreadable)
        return "the disk cannot be read" if touched else ""

    def _starts_record_on_disk(self, at: int) -> bool:
        """Whether a record, or the unused end of the file, begins at this position of the file."""
        if at == self._end or self._file_size - at < BLANK_BYTES:
            return True
        try:
            head = self._reader.read(at, self._records.start_bytes)
        except OSError:
            return False
        return self._records.begins(head, 0, self._file_start + at, self._file_size - at)

    def _next_start(self, buffer: bytes, position: int, base: int) -> int | None:
        """The next position in the buffer where a record begins."""
        for found in self._records.starts(buffer, position):
            at = base + found
            if self._unreadable_fault(at, at + BLANK_BYTES):
                continue
            if self._records.begins(buffer, found, self._file_start + at, self._file_size - at):
                return found
        return None

    def _skipped_to(self, buffered: int, base: int) -> int:
        """The position in the buffer before which no record begins. At the end of what is read the damage
        ends, too."""
        if base + buffered >= self._end:
            self._end_damage(self._end)
            self._used_end = self._end
            return buffered
        return max(buffered - self._records.start_bytes + 1, 0)

    # Results

    def _sum(self, buffer: bytes, base: int, end: int) -> None:
        """Adds the bytes up to this position of the file to the checksum of the piece. The buffer begins at
        the position `base`."""
        if end > self._summed:
            self._piece_crc = crc32(buffer[self._summed - base : end - base], self._piece_crc)
            self._summed = end

    def _end_piece(self, end: int) -> None:
        base = self._file_start
        if end > self._piece_start:
            self._pieces.append(ScannedPiece(base + self._piece_start, base + end, self._piece_crc))
        self._piece_start, self._piece_crc, self._summed = end, 0, end

    def _begin_damage(self, buffer: bytes, base: int, at: int, fault: str) -> None:
        self._sum(buffer, base, at)
        self._end_piece(at)
        self._broken_from, self._fault = at, fault

    def _end_damage(self, end: int) -> None:
        assert self._broken_from is not None
        start, fault = self._file_start + self._broken_from, self._fault
        end += self._file_start
        if self._damaged and self._damaged[-1].end == start:
            start, fault = self._damaged[-1].start, self._damaged[-1].fault
            self._damaged.pop()
        self._damaged.append(DamagedRange(start, end, fault))
        self._broken_from = None
        self._used_end = self._piece_start = self._summed = end - self._file_start
        self._piece_crc = 0
