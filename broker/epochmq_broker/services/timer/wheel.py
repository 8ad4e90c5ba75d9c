"""Keeps the timer wheel: for each delivery time the first and last unit of the timer log (TimerWheel).

`epochmq_formats.timer_wheel` defines the format of the file `timerwheel`.

The wheel is in memory, where pages without a slot take no space. A worker thread writes changed pages into
the sparse file, so a full disk is an error of that thread, and never a SIGBUS."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from epochmq_formats.timer_wheel import SLOT, SLOT_TIME, SLOTS, WHEEL_BYTES
from epochmq_protocol.durable_files import TEMPORARY_SUFFIX, sync_directory
from epochmq_store.files.mapped_file import PAGE_BYTES, StoreDamagedError, data_ranges

_EMPTY: Final = bytes(SLOT.size)
_READ_BYTES: Final = 1 << 20


class Slot(NamedTuple):
    """A slot with messages. Positions are those of units in the timer log; the units are linked from the
    last to the first. Messages that delete others count -1 in `num`."""

    first: int
    last: int
    num: int
    magic: int


class TimerWheel:
    """The wheel of one store. Times are epoch ms; they are rounded down to the precision."""

    def __init__(self, path: Path, precision_ms: int) -> None:
        self.path = path
        self.precision_ms = precision_ms
        self._bytes = WHEEL_BYTES
        self._slots = mmap.mmap(-1, self._bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._used: set[int] = set()  # numbers of the pages with any slot
        self._dirty: set[int] = set()
        self._fd = -1

    @property
    def is_empty(self) -> bool:
        """Whether no slot was ever written."""
        return not self._used

    def load(self) -> bool:
        """Reads the file. Returns False if it does not exist: the first `write` makes it. Raises
        StoreDamagedError if it is not a timer wheel, or OSError."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            size = os.fstat(fd).st_size
            if size != self._bytes:
                raise StoreDamagedError(
                    f"{self.path} has {size} bytes, a timer wheel has {self._bytes}; move the file away, "
                    "and the wheel is rebuilt from the timer log"
                )
            self._read(fd)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return True

    def _read(self, fd: int) -> None:
        for start, stop in data_ranges(fd, 0, self._bytes):
            at = start - start % PAGE_BYTES
            while at < stop:
                data = os.pread(fd, min(_READ_BYTES, self._bytes - at), at)
                for page in range(0, len(data), PAGE_BYTES):
                    content = data[page : page + PAGE_BYTES]
                    if content.count(0) != len(content):
                        self._slots[at + page : at + page + len(content)] = content
                        self._used.add((at + page) // PAGE_BYTES)
                at += len(data)

    def close(self) -> None:
        """Closes the file; the caller has written the dirty pages."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._slots.close()

    # Slots

    def slot(self, time_ms: int) -> Slot | None:
        """The slot of this time, None if it is empty."""
        key = time_ms // self.precision_ms
        time, first, last, num, magic = SLOT.unpack_from(self._slots, key % SLOTS * SLOT.size)
        return Slot(first, last, num, magic) if time == key else None

    def num(self, time_ms: int) -> int:
        """The number of messages in the slot of this time. Every send of a timer message asks for it."""
        key = time_ms // self.precision_ms
        time, _, _, num, _ = SLOT.unpack_from(self._slots, key % SLOTS * SLOT.size)
        return num if time == key else 0

    def put(self, time_ms: int, slot: Slot) -> None:
        """Sets the slot of this time."""
        key = time_ms // self.precision_ms
        at = key % SLOTS * SLOT.size
        SLOT.pack_into(self._slots, at, key, *slot)
        page = at // PAGE_BYTES
        self._used.add(page)
        self._dirty.add(page)

    def clear(self, time_ms: int) -> None:
        """Empties the slot of this time."""
        at = time_ms // self.precision_ms % SLOTS * SLOT.size
        self._slots[at : at + SLOT.size] = _EMPTY
        self._dirty.add(at // PAGE_BYTES)

    def clear_all(self) -> None:
        """Empties all slots."""
        for page in self._used:
            self._slots[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = bytes(PAGE_BYTES)
        self._dirty |= self._used

    def next_used(self, time_ms: int, end_ms: int, tries: int) -> int:
        """The first time from `time_ms` on, before `end_ms`, whose slot is not empty, or the time at which
        the search ended after `tries` slots."""
        precision, slots, unpack = self.precision_ms, self._slots, SLOT_TIME.unpack_from
        first = time_ms // precision
        end = min(-(-end_ms // precision), first + tries)
        for key in range(first, end):
            if unpack(slots, key % SLOTS * SLOT.size)[0] == key:
                return key * precision
        return end * precision

    def count_from(self, time_ms: int) -> int:
        """The number of messages that are due at this time or later. Reads all used pages."""
        start = time_ms // self.precision_ms
        total = 0
        for page in self._used:
            at = page * PAGE_BYTES
            for key, _, _, num, _ in SLOT.iter_unpack(self._slots[at : at + PAGE_BYTES]):
                if key >= start:
                    total += num
        return total

    def num_between(self, start_ms: int, end_ms: int) -> int:
        """The number of messages that are due from `start_ms` on and before `end_ms`."""
        first, end = start_ms // self.precision_ms, end_ms // self.precision_ms
        total, key = 0, first
        while key < end:
            at = key % SLOTS * SLOT.size
            count = min(end - key, (PAGE_BYTES - at % PAGE_BYTES) // SLOT.size)
            if at // PAGE_BYTES in self._used:
                slots = SLOT.iter_unpack(self._slots[at : at + count * SLOT.size])
                total += sum(num for time, _, _, num, _ in slots if first <= time < end)
            key += count
        return total

    def linked_after(self, end: int) -> list[tuple[int, Slot]]:
        """(time, slot) of the slots whose last unit lies at or after this end of the timer log."""
        return [(key * self.precision_ms, slot) for key, slot in self._all() if slot.last >= end]

    def _all(self) -> Iterator[tuple[int, Slot]]:
        for page in sorted(self._used):
            at = page * PAGE_BYTES
            for time, first, last, num, magic in SLOT.iter_unpack(self._slots[at : at + PAGE_BYTES]):
                if time > 0:
                    yield time, Slot(first, last, num, magic)

    # Writing the file

    def take_dirty(self) -> list[tuple[int, bytes]]:
        """(position, content) of the pages that changed since the last call."""
        dirty, self._dirty = self._dirty, set()
        slots = self._slots
        return [(at, slots[at : at + PAGE_BYTES]) for at in (page * PAGE_BYTES for page in sorted(dirty))]

    def return_dirty(self, pages: list[tuple[int, bytes]]) -> None:
        """Marks pages as changed again that could not be written."""
        self._dirty.update(at // PAGE_BYTES for at, _ in pages)

    def write(self, pages: list[tuple[int, bytes]]) -> None:
        """Writes pages durably; on any thread. Raises OSError."""
        if self._fd < 0:
            self._create(pages)
            return
        for at, content in pages:
            os.pwrite(self._fd, content, at)
        if pages:
            os.fdatasync(self._fd)

    def _create(self, pages: list[tuple[int, bytes]]) -> None:
        """Makes the file with all its content, or not at all: an incomplete one could not be told from a
        complete one."""
        temporary = self.path.with_name(self.path.name + TEMPORARY_SUFFIX)
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, self._bytes)
            for at, content in pages:
                os.pwrite(fd, content, at)
            os.fsync(fd)
            temporary.replace(self.path)
            sync_directory(self.path.parent)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
