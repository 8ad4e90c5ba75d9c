"""Keeps the batch consume queue of one queue of a topic with `queue.type=BatchCQ`: a unit of 46 bytes for
each inner batch, in files of one size (BatchConsumeQueue).

An inner batch is one record of the log with several messages. Its unit tells the queue offset of its first
message and the number of its messages, so a queue offset is found by bisection. A record that is no inner
batch has a unit with one message. In this module the *number* of a unit is its place in the files, and an
*offset* is a queue offset.

New units are in memory first, as those of other queues are: `_unwritten` holds the units from byte
`_unwritten_start` of the queue on, until the writing thread has put them into the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, Final

from epochmq_formats.batch_unit import UNIT, UNIT_BYTES, BatchUnit
from epochmq_store.files.page_residency import NotResidentError, PageResidency
from epochmq_store.files.queue_files import MappingCache, QueueFile, QueueFiles
from epochmq_store.queues.batch_queue_end import bisect_end, read_unit, scan_end
from epochmq_store.queues.consume_queue import ConsumeQueue, ExpiredUnits
from epochmq_store.queues.galloping_search import first_that
from epochmq_store.queues.inner_batch import InnerBatch, inner_batch_of
from epochmq_store.queues.pending_units import WRITE_THRESHOLD_BYTES, PendingUnits

NO_MESSAGE: Final = -1  # `min_offset` of a queue without units, as in RocketMQ


class BatchConsumeQueue(ConsumeQueue):
    """One queue. The buffer of the base class stays empty, so that an append finds no room in it."""

    __slots__ = ("_heads", "_unwritten", "_unwritten_start")

    blank_unit: ClassVar[bytes] = bytes(UNIT_BYTES)

    def __init__(
        self,
        topic: str,
        queue_id: int,
        directory: Path,
        file_size: int,
        *,
        load: bool = False,
        pending: PendingUnits | None = None,
        mappings: MappingCache | None = None,
    ) -> None:
        """As for the base class. `file_size` is a multiple of UNIT_BYTES."""
        self._unwritten = bytearray()
        self._unwritten_start = 0
        self._heads: dict[int, BatchUnit] = {}
        """By number: the first units of files, as far as they were read."""
        super().__init__(topic, queue_id, directory, file_size, load=load, pending=pending, mappings=mappings)
        self.min_offset = NO_MESSAGE

    # Writing

    def put(
        self,
        offset: int,
        physical: int,
        size: int,
        tags_code: int,
        store_timestamp: int = 0,
        bit_map: bytes = b"",
    ) -> bool:
        """Adds the unit of a record that is no inner batch."""
        return self.put_record(b"", offset, physical, size, tags_code, store_timestamp)

    def put_record(
        self, properties: bytes, offset: int, physical: int, size: int, tags_code: int, store_timestamp: int
    ) -> bool:
        """Adds the unit of a record with these stored properties (putMessagePositionInfoWrapper). False when
        the queue has the record already. Offset 0 after other messages means that the topic was deleted and
        created again; the old units are removed. Raises DiskFullError or OSError."""
        if physical + size <= self.max_physical:
            return False
        inner = inner_batch_of(properties) or InnerBatch(offset, 1)
        if inner.base < self.max_offset:
            if inner.base:
                return False
            self.destroy()
        self.pending.reserve_memory(UNIT_BYTES)
        self._unwritten += UNIT.pack(*BatchUnit(physical, size, tags_code, store_timestamp, *inner))
        self.pending.waiting.setdefault(self)
        if len(self._unwritten) >= WRITE_THRESHOLD_BYTES:
            self.pending.due.setdefault(self)
        if self.min_offset == NO_MESSAGE:
            self.min_offset = inner.base
        self.max_offset = inner.base + inner.messages
        self.max_physical = physical + size
        return True

    def repair(self, offset: int, physical: int, size: int, tags_code: int) -> None:
        """Changes nothing: `recover` finds a torn unit, because its numbers do not rise."""

    @property
    def written_end(self) -> int:
        """The byte of the queue up to which its files hold the units."""
        files = self.files.files
        return files[-1].end if files else self._unwritten_start

    def unwritten(self) -> tuple[QueueFiles, int, bytes]:
        """As for the base class."""
        start = self.written_end
        return self.files, start, bytes(memoryview(self._unwritten)[start - self._unwritten_start :])

    def mark_written(self) -> None:
        """As for the base class."""
        written = self.written_end - self._unwritten_start
        if written > 0:
            self.pending.free_memory(written)
            self._unwritten = self._unwritten[written:]
            self._unwritten_start += written
        if self._unwritten:
            self.pending.due.pop(self, None)
        else:
            self.pending.mark_queue_written(self)

    def newest_record(self) -> int:
        """Physical offset of the newest inner batch, -1 if its unit is not in memory."""
        return self._unit(self.end_number - 1).physical if self._unwritten else -1

    def _release_buffer(self) -> None:
        """Frees the memory of all units that were not written."""
        self.pending.free_memory(len(self._unwritten))
        self._unwritten = bytearray()
        self._unwritten_start = self.written_end

    # Units by number

    @property
    def first_number(self) -> int:
        """Number of the first unit in the files."""
        files = self.files.files
        return (files[0].start if files else self._unwritten_start) // UNIT_BYTES

    @property
    def end_number(self) -> int:
        """Number after that of the last unit."""
        return (self._unwritten_start + len(self._unwritten)) // UNIT_BYTES

    @property
    def units_per_file(self) -> int:
        """Number of units of one file. The first unit of a file has a multiple of it as its number."""
        return self.files.file_size // UNIT_BYTES

    def unit_at(
        self, number: int, guard: PageResidency | None = None, searched: range | None = None
    ) -> BatchUnit:
        """The unit with this number, which exists. With a `guard` raises NotResidentError instead of waiting
        for the disk: for this unit, or for all written units of its file among which the caller searches."""
        if guard is not None and number * UNIT_BYTES < self._unwritten_start:
            needed = range(number, number + 1)
            self._require(guard, needed, searched or needed)
        return self._unit(number)

    def _unit(self, number: int) -> BatchUnit:
        at = number * UNIT_BYTES
        if at >= self._unwritten_start:
            return BatchUnit._make(UNIT.unpack_from(self._unwritten, at - self._unwritten_start))
        file = self.files.find(at)
        assert file is not None
        return BatchUnit._make(UNIT.unpack_from(file.map, at - file.start))

    def _require(self, guard: PageResidency, needed: range, missing: range) -> None:
        """Raises NotResidentError for the written units among `missing` unless those of `needed` are in
        memory; all are in one file. A file that is not mapped counts as not in memory."""
        file = self.files.find(needed.start * UNIT_BYTES)
        assert file is not None
        start = missing.start * UNIT_BYTES - file.start
        end = min(missing.stop * UNIT_BYTES, self._unwritten_start) - file.start
        if file.mapping is None:
            raise NotResidentError(file, start, end - start)
        try:
            guard.require(file, needed.start * UNIT_BYTES - file.start, len(needed) * UNIT_BYTES)
        except NotResidentError:
            raise NotResidentError(file, start, end - start) from None

    def first_number_where(
        self, holds: Callable[[BatchUnit], bool], guard: PageResidency | None = None
    ) -> int:
        """Number of the first unit for which `holds` is true, `end_number` without one. `holds` is false for
        the units before it and true for all later ones. Raises NotResidentError as `unit_at` does."""
        first, high = self.first_number, self.end_number
        if first == high:
            return high
        start = self.start_of_file(high - 1)
        while holds(self.head(start, guard)):
            high = start
            if start == first:
                return first
            start = self.start_of_file(start - 1)
        low = start + 1
        in_memory = self._unwritten_start // UNIT_BYTES
        if low < in_memory < high:
            if holds(self._unit(in_memory)):
                high = in_memory
            else:
                low = in_memory + 1
        while low < high:
            middle = (low + high) // 2
            if holds(self.unit_at(middle, guard, range(low, high))):
                high = middle
            else:
                low = middle + 1
        return low

    def start_of_file(self, number: int) -> int:
        """Number of the first unit in the file of this one."""
        return max(number - number % self.units_per_file, self.first_number)

    def _end_of_file(self, number: int) -> int:
        return number - number % self.units_per_file + self.units_per_file

    def head(self, number: int, guard: PageResidency | None = None) -> BatchUnit:
        """The first unit of a file. Once read it stays in memory, so that a search reads one file only."""
        found = self._heads.get(number)
        if found is None:
            found = self._heads[number] = self.unit_at(number, guard)
        return found

    # Units by offset

    def number_of(self, offset: int, guard: PageResidency | None = None) -> int:
        """Number of the last unit that begins at or before this offset, -1 without one."""
        number = self.first_number_where(lambda unit: unit.base > offset, guard) - 1
        return number if number >= self.first_number else -1

    def batch_units(self, offset: int) -> Iterator[BatchUnit]:
        """The units from the one with this offset on, up to the end of their file. Empty if the queue has
        none."""
        number = self.number_of(offset)
        if number < 0 or offset >= self.max_offset:
            return
        for at in range(number, min(self._end_of_file(number), self.end_number)):
            yield self._unit(at)

    def units(self, offset: int, count: int) -> Iterator[tuple[int, int, int]]:
        """(physical offset, size, tag code) of the inner batches with the messages [offset, offset + count),
        up to the end of their file."""
        for unit in self.batch_units(offset):
            if unit.base >= offset + count:
                return
            yield unit.physical, unit.size, unit.tags_code

    def positions_and_sizes(
        self, offset: int, count: int, residency: PageResidency | None = None
    ) -> tuple[int, ...]:
        """Always empty, so that readers take the way that knows inner batches."""
        return ()

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        """The unit with this offset, None outside [min_offset, max_offset)."""
        if not self.min_offset <= offset < self.max_offset or (number := self.number_of(offset)) < 0:
            return None
        return self._unit(number)[:3]

    def require_resident(self, residency: PageResidency, offset: int, count: int) -> None:
        """Raises NotResidentError unless the units with these messages, and those that lead to them, are in
        memory."""
        number = self.number_of(offset, residency)
        in_memory = self._unwritten_start // UNIT_BYTES
        if not 0 <= number < in_memory:
            return
        wanted = range(number, min(number + count, self._end_of_file(number), in_memory))
        self._require(residency, wanted, wanted)

    def roll_next_file(self, offset: int) -> int:
        """0, as in RocketMQ. No get needs it, because `batch_units` finds every offset."""
        return 0

    def first_at_or_after(self, physical: int, low: int, high: int) -> int:
        """The first offset in [low, high) of an inner batch that starts at or after this physical offset,
        `high` without one."""
        number = self.first_number_where(lambda unit: unit.physical >= physical)
        return high if number == self.end_number else min(max(self._unit(number).base, low), high)

    def first_ending_after(self, physical: int, low: int, high: int) -> int:
        """The first offset in [low, high) of an inner batch that ends after this physical offset, `high`
        without one."""
        number = self.number_ending_after(physical)
        return high if number == self.end_number else min(max(self._unit(number).base, low), high)

    def number_ending_after(self, physical: int) -> int:
        """Number of the first unit whose record ends after this physical offset, `end_number` without one.
        The search starts at the end, where the offset usually is."""
        return first_that(
            lambda number: self._ends_after(number, physical), self.first_number, self.end_number
        )

    def _ends_after(self, number: int, physical: int) -> bool:
        unit = self._unit(number)
        return unit.physical + unit.size > physical

    # Recovery, truncation, expiry

    def recover(self, *, zeroed: bool = False, before_cut: Callable[[], None] = lambda: None) -> bool:
        """As for the base class: finds the end of the queue, and truncates there."""
        self._release_buffer()
        files = self.files.files
        if not files:
            return False
        is_cut = False
        found = bisect_end(files[-1]) if zeroed else 0
        if found:
            files[-1].wrote = found
            self._unwritten_start = files[-1].end
        else:
            end = scan_end(files)
            is_cut = end <= files[-1].start
            if is_cut:
                before_cut()
            self._truncate_bytes(end)
        self._update_limits()
        return is_cut

    def truncate(self, physical: int) -> None:
        """As for the base class (truncateDirtyLogicFiles)."""
        if not 0 <= self.max_physical <= physical:
            self._truncate_units(self.first_number_where(lambda unit: unit.physical >= physical))

    def truncate_to(self, offset: int) -> None:
        """Removes every inner batch that ends after this offset, durably. Raises OSError."""
        if offset < self.max_offset:
            self._truncate_units(self.first_number_where(lambda unit: unit.end > offset))

    def _truncate_units(self, end: int) -> None:
        self._truncate_bytes(end * UNIT_BYTES)
        self._update_limits()

    def _truncate_bytes(self, end: int) -> None:
        """Truncates the queue at this byte. An empty last file is deleted, unless it is the only one and does
        not begin the queue. No thread writes the queue meanwhile."""
        self._heads.clear()
        if end >= self.written_end:
            kept = end - self._unwritten_start
            self.pending.free_memory(len(self._unwritten) - kept)
            self._unwritten = self._unwritten[:kept]
            return
        self.files.truncate(end)
        files = self.files.files
        if files and files[-1].start == end and (len(files) > 1 or not end):
            files.pop().delete()
        self._release_buffer()
        self.pending.mark_queue_written(self)

    def _update_limits(self) -> None:
        """Derives the offsets from the first and the last unit (reviseMaxAndMinOffsetInQueue)."""
        if self.first_number == self.end_number:
            self.min_offset, self.max_offset, self.max_physical = NO_MESSAGE, 0, -1
        else:
            last = self._peek(self.end_number - 1)
            self.max_offset, self.max_physical = last.end, last.physical + last.size
            if self.min_offset == NO_MESSAGE:
                self.min_offset = self._peek(self.first_number).base
            self.min_offset = min(self.min_offset, self.max_offset)

    def _peek(self, number: int) -> BatchUnit:
        """A unit, read without a mapping. Raises OSError."""
        if number * UNIT_BYTES >= self._unwritten_start:
            return self._unit(number)
        return read_unit(self.files, number)

    def correct_min_offset(self, min_physical: int) -> None:
        """Raises `min_offset` to the first inner batch that exists in the log (correctMinOffset)."""
        first, end = self.first_number, self.end_number
        if first == end:
            self.min_offset = NO_MESSAGE
            return
        head = self._peek(first)  # usually it is the first unit; this read is cheaper than a mapping
        if head.physical >= min_physical:
            self.min_offset = head.base
            return
        number = self.first_number_where(lambda unit: unit.physical >= min_physical)
        self.min_offset = self._unit(number - 1).end

    def find_expired(self, min_physical: int) -> ExpiredUnits:
        """As for the base class."""
        own = self.files
        files = list(own.files)
        expired = 0
        while expired < len(files) - 1:
            if read_unit(own, files[expired + 1].start // UNIT_BYTES - 1).physical >= min_physical:
                break
            expired += 1
        if not files:
            return ExpiredUnits(own, [], self.min_offset, -1)
        first = low = files[expired].start // UNIT_BYTES
        high = end = max(files[-1].end // UNIT_BYTES, low)
        while low < high:
            middle = (low + high) // 2
            if read_unit(own, middle).physical < min_physical:
                low = middle + 1
            else:
                high = middle
        remaining = read_unit(own, low) if low < end else None
        if low > first:
            min_offset = read_unit(own, low - 1).end
        else:
            min_offset = self.min_offset if remaining is None else remaining.base
        return ExpiredUnits(own, files[:expired], min_offset, -1 if remaining is None else remaining.physical)

    def expire(self, expired: ExpiredUnits, min_physical: int) -> list[QueueFile]:
        """As for the base class."""
        if expired.source is not self.files:
            return []
        files = self.files.files
        taken = []
        for file in expired.files:
            if len(files) > 1 and files[0] is file:
                taken.append(files.pop(0))
                self._heads.pop(file.start // UNIT_BYTES, None)
        self.min_offset = max(self.min_offset, min(expired.min_offset, self.max_offset))
        if expired.first_physical_offset < 0:
            for number in range(self._unwritten_start // UNIT_BYTES, self.end_number):
                unit = self._unit(number)
                if unit.physical >= min_physical:
                    break
                self.min_offset = unit.end
        return taken

    def first_physical_offset_in_memory(self, without: int) -> int:
        """As for the base class."""
        if self.max_offset == 0 or self.min_offset >= self.max_offset:
            return without
        if self._unwritten and self.min_offset >= self._unit(self._unwritten_start // UNIT_BYTES).base:
            unit = self.unit(self.min_offset)
            return -1 if unit is None else unit[0]
        return -1

    def destroy(self) -> None:
        """Removes the files; the queue is empty and starts at offset 0."""
        self._remove_files()
        self._heads.clear()
        self._unwritten_start = 0
        self.min_offset, self.max_offset, self.max_physical = NO_MESSAGE, 0, -1
