"""Keeps the timer log: a unit for each message in the wheel, in files of one size (TimerLog).

`epochmq_formats.timer_log` defines the format. Units refer to records of the commit log in the order in which
the timer topic's queue has them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from epochmq_formats.timer_log import (
    BLANK_BYTES,
    MAGIC_DELETE,
    MAGIC_ROLL,
    UNIT,
    UNIT_BYTES,
    encode_blank,
    is_blank,
    is_unit,
    units_end,
)
from epochmq_store.files.mapped_file import PAGE_BYTES, DiskFullError, MappedFile, MappedFileQueue
from epochmq_store.files.page_residency import NotResidentError, PageResidency

log = logging.getLogger(__name__)

RESERVE_BYTES: Final = 1 << 20
"""Disk space is reserved in chunks of this size before units are written."""
READ_BYTES: Final = UNIT_BYTES * 20_000


class Unit(NamedTuple):
    """One unit. `time_ms` is the time of its slot, epoch ms."""

    position: int
    previous: int
    magic: int
    write_time_ms: int
    delay_ms: int
    offset: int
    size: int
    topic_hash: int

    @property
    def time_ms(self) -> int:
        """When the message is due, or is to be stored again."""
        return self.write_time_ms + self.delay_ms

    @property
    def deletes(self) -> bool:
        """Whether the message deletes another one of this slot."""
        return self.magic & (MAGIC_DELETE | MAGIC_ROLL) == MAGIC_DELETE

    @property
    def rolls(self) -> bool:
        """Whether the message is stored again at its time."""
        return bool(self.magic & MAGIC_ROLL)

    @property
    def weight(self) -> int:
        """What the message adds to the number of messages in its slot."""
        return -1 if self.magic & MAGIC_DELETE else 1


class TimerLog:
    """The timer log of one store. Positions count bytes from the start of the first file ever."""

    def __init__(self, directory: Path, file_size: int) -> None:
        self.files = MappedFileQueue(directory, file_size, keep_fd=True, new_parent_dirs=2)
        self._units_end = units_end(file_size)

    @property
    def end(self) -> int:
        """The position after the last unit."""
        return self.files.max_offset

    @property
    def first(self) -> int:
        """The position of the first unit, 0 in an empty log."""
        return max(self.files.min_offset, 0)

    # Recovery

    def load(self) -> None:
        """Opens the files; `recover` must follow. Raises StoreDamagedError or OSError."""
        self.files.load()
        gap = self.files.first_after_gap()
        if gap is not None:
            log.error("files of the timer log are missing before %s", self.files.files[gap].path)
            self.files.delete_from(gap)

    def recover(self, start: int, visit: Callable[[Unit], None]) -> None:
        """Finds the end of the log, and calls `visit` for each unit from `start` on. What follows the last
        valid unit is zeroed. Raises OSError."""
        files = self.files.files
        if not files:
            return
        file = self.files.find(start) or (files[0] if start < files[0].start else files[-1])
        at = start - file.start
        if not 0 <= at <= file.size or at % UNIT_BYTES or not self._ends_valid_unit(file, at):
            at = 0
        for index in range(files.index(file), len(files)):
            file = files[index]
            file.flushed = at  # of a killed process the units may be in memory only
            at, is_whole = self._recover_file(file, at, visit)
            if not is_whole:
                file.wrote = at
                self._cut(file.start + at)
                return
            at = 0

    def _ends_valid_unit(self, file: MappedFile, at: int) -> bool:
        """Whether a valid unit ends at this position of a file, or the file starts there."""
        if at == 0 or at > self._units_end:
            return True
        return is_unit(UNIT.unpack(file.pread(at - UNIT_BYTES, UNIT_BYTES)))

    def _recover_file(self, file: MappedFile, at: int, visit: Callable[[Unit], None]) -> tuple[int, bool]:
        """(The end of the valid units in the file, whether the file is full)."""
        while at < self._units_end:
            data = file.pread(at, min(READ_BYTES, self._units_end - at))
            for fields in UNIT.iter_unpack(data[: len(data) - len(data) % UNIT_BYTES]):
                if is_blank(fields):
                    return file.size, True
                if not is_unit(fields):
                    return at, False
                visit(Unit(file.start + at, *fields[1:8]))
                at += UNIT_BYTES
        return file.size, True

    def _cut(self, end: int) -> None:
        self.files.truncate(end)

    def truncate(self, end: int) -> None:
        """Removes the units from this position on, durably. No thread flushes meanwhile. Raises OSError."""
        if end < self.end:
            self._cut(end)

    # Writing

    def append(self, previous: int, magic: int, write_time_ms: int, delay_ms: int, offset: int, size: int,
               topic_hash: int) -> int:  # fmt: skip
        """Adds a unit and returns its position. Raises DiskFullError or OSError; nothing has changed then."""
        files = self.files.files
        file = files[-1] if files else self.files.add(0)
        if file.wrote >= self._units_end:
            self._finish(file)
            file = self.files.add(file.start + file.size)
        self._reserve(file, file.wrote + UNIT_BYTES)
        position = file.end
        UNIT.pack_into(
            file.map,
            file.wrote,
            UNIT_BYTES,
            previous,
            magic,
            write_time_ms,
            delay_ms,
            offset,
            size,
            topic_hash,
            0,
        )
        file.wrote += UNIT_BYTES
        return position

    def reserve(self, count: int) -> int:
        """Reserves space for so many units in the last file, and returns for how many of them it has room.
        Raises DiskFullError or OSError."""
        files = self.files.files
        if not files:
            return 0
        file = files[-1]
        room = min(count, (self._units_end - file.wrote) // UNIT_BYTES)
        if room > 0:
            self._reserve(file, file.wrote + room * UNIT_BYTES)
        return max(room, 0)

    def append_packed(self, units: bytes) -> None:
        """Adds encoded units, for which `reserve` had room."""
        file = self.files.files[-1]
        file.map[file.wrote : file.wrote + len(units)] = units
        file.wrote += len(units)

    def _finish(self, file: MappedFile) -> None:
        """Makes the rest of a file blank."""
        if file.wrote < file.size:
            self._reserve(file, file.wrote + BLANK_BYTES)
            file.map[file.wrote : file.wrote + BLANK_BYTES] = encode_blank(file.size - file.wrote)
            file.wrote = file.size

    def _reserve(self, file: MappedFile, end: int) -> None:
        if end <= file.reserved:
            return
        try:
            file.reserve(min(-(-end // RESERVE_BYTES) * RESERVE_BYTES, file.size))
        except DiskFullError:
            file.reserve(end)  # the disk has no whole chunk left, but may have enough for this unit

    # Reading

    def unit(self, position: int, residency: PageResidency | None = None) -> Unit | None:
        """The unit at this position, None if the log does not have it. With `residency`, raises
        NotResidentError instead of waiting for the disk."""
        file = self.files.find(position)
        if file is None or position + UNIT_BYTES > file.end:
            return None
        at = position - file.start
        if residency is not None:
            residency.require(file, at, UNIT_BYTES)
        fields = UNIT.unpack_from(file.map, at)
        return Unit(position, *fields[1:8]) if is_unit(fields) else None

    def chain(self, position: int, count: int, residency: PageResidency | None) -> list[Unit]:
        """Up to `count` units of a slot from this position on, as they are linked: from the last to the
        first. Ends before a unit that the log does not have, before one that would have to be read from the
        disk, and behind one that is not linked to an earlier unit. Raises NotResidentError if the first unit
        would have to be read from the disk."""
        units: list[Unit] = []
        unpack, start, end, resident_from = UNIT.unpack_from, 0, 0, 0
        file = None
        while len(units) < count and position >= 0:
            if not start <= position <= end - UNIT_BYTES:
                file = self.files.find(position)
                if file is None or position + UNIT_BYTES > file.end:
                    break
                start, end, log = file.start, file.end, file.map
                resident_from = end
            if residency is not None and file is not None and position < resident_from:
                page = (position - start) // PAGE_BYTES * PAGE_BYTES
                try:
                    residency.require(file, page, position - start + UNIT_BYTES - page)
                except NotResidentError:
                    if not units:
                        raise
                    break
                resident_from = start + page
            fields = unpack(log, position - start)
            if not is_unit(fields):
                break
            units.append(Unit(position, *fields[1:8]))
            if fields[1] >= position:
                break
            position = fields[1]
        return units

    def next_file(self, position: int) -> int:
        """The position at which the file behind this one starts."""
        return position - position % self.files.file_size + self.files.file_size

    def position_before(self, position: int) -> int | None:
        """The position of the unit before this one; of the last unit if `position` is the end. None at the
        start of the log."""
        file = self.files.find(position - 1)
        if file is None:
            return None
        in_file = min(position - file.start, self._units_end)
        return file.start + in_file - UNIT_BYTES if in_file >= UNIT_BYTES else None

    def units_backwards(self) -> Iterator[Unit]:
        """All units, from the last to the first."""
        position = self.position_before(self.end) if self.files.files else None
        while position is not None:
            found = self.unit(position)
            if found is None:
                return
            yield found
            position = self.position_before(position)

    # Flush and expiry

    def unflushed(self) -> list[tuple[MappedFile, int]]:
        """(file, written bytes) of the files with units that are not on disk."""
        return [(file, file.wrote) for file in self.files.files if file.flushed < file.wrote]

    def take_expired(self, min_physical: int) -> list[MappedFile]:
        """Removes the first files, except the last one, while all their records have expired, and returns
        them. The caller deletes them (deleteExpiredFileByOffsetForTimerLog)."""
        files, expired = self.files.files, []
        while len(files) > 1:
            last = self.unit(files[0].start + self._units_end - UNIT_BYTES)
            if last is None or last.offset >= min_physical:
                break
            expired.append(files.pop(0))
        return expired

    def close(self) -> None:
        """Closes the files."""
        self.files.close()
