"""Keeps the consume queue of one (topic, queue id): a unit of 20 bytes for each message, in files of one size
(ConsumeQueue).

A unit consists of physical offset (8 bytes), size (4) and tag code (8), big endian. Its logical offset is its
number. A queue whose first message has an offset > 0 starts, in its file, with blank units (0, 2³¹−1, 0).

New units are in memory first: `buffer` holds the queue's bytes from `buffer_start` on. The append path writes
a unit at `buffer_position`, and calls `make_room` when `buffer_position` reaches `buffer_limit`. A worker
thread writes the units into the queue's files later (`queue_flusher`). After a crash, recovery rebuilds the
units that were in memory only from the log.

The module is longer than 600 lines because appends, reads, expiry and recovery share the bounds of a queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from epochmq_formats.extension_unit import ExtensionUnit, is_address
from epochmq_formats.queue_unit import (
    POSITION_AND_SIZE,
    PRE_BLANK,
    PRE_BLANK_SIZE,
    UNIT,
    UNIT_BYTES,
    positions_and_sizes,
)
from epochmq_protocol.errors import InvariantError
from epochmq_protocol.topics import RMQ_SYS_SCHEDULE_TOPIC
from epochmq_store.files.page_residency import NotResidentError, PageResidency
from epochmq_store.files.queue_files import MappingCache, QueueFile, QueueFiles
from epochmq_store.queues.galloping_search import first_that
from epochmq_store.queues.pending_units import WRITE_THRESHOLD_BYTES, PendingUnits
from epochmq_store.queues.queue_end import bisect_end, goes_on_behind, scan_end
from epochmq_store.queues.queue_extension import QueueExtension
from epochmq_store.queues.topic_values import topic_values

ADDRESS_SEARCH_MAX: Final = 300_000
"""Units at the end of a queue among which the newest address of its extension is searched."""
_BUFFER_MIN_BYTES: Final = 16 * UNIT_BYTES


class ExpiredUnits(NamedTuple):
    """The units in a queue's files whose messages the log has lost (`ConsumeQueue.find_expired`)."""

    source: QueueFiles
    files: list[QueueFile]  # the files without any remaining message
    min_offset: int  # of the first remaining message, or the end of the written units
    first_physical_offset: int  # of that message, -1 without one


class ConsumeQueue:
    """One queue. Offsets are logical (messages), unless the name says physical (bytes of the commit log)."""

    __slots__ = (
        "buffer",
        "buffer_limit",
        "buffer_position",
        "buffer_start",
        "extension",
        "files",
        "has_special_codes",
        "hasher",
        "is_schedule",
        "magic",
        "max_offset",
        "max_physical",
        "min_offset",
        "pending",
        "queue_id",
        "record_overhead",
        "topic",
        "topic_field",
    )

    blank_unit: ClassVar[bytes] = PRE_BLANK

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
        extension: QueueExtension | None = None,
    ) -> None:
        """`directory` is that of all consume queues. `load` finds the existing files; `recover` must follow.
        The queue registers its unwritten units with `pending`. With an `extension`, units hold addresses in
        it in place of tag codes. Loading raises OSError or StoreDamagedError."""
        self.topic = topic
        self.queue_id = queue_id
        self.magic, self.topic_field, self.record_overhead, self.hasher = topic_values(topic)
        self.is_schedule = topic == RMQ_SYS_SCHEDULE_TOPIC
        self.extension = extension
        # Whether the code in a unit is something else than the tag code that the append path gets.
        self.has_special_codes = self.is_schedule or extension is not None
        self.pending = PendingUnits() if pending is None else pending
        if mappings is None:
            mappings = MappingCache()
        self.files = QueueFiles(directory, file_size, mappings, f"{topic}/{queue_id}")
        self.min_offset = 0
        """The first message that the log may still hold. Invariant: 0 <= min_offset <= max_offset."""
        self.max_offset = 0
        """The offset of the next message. Units are dense: the one of offset `n` is at byte 20 * n of the
        queue. Invariant: the files and the buffer end at byte 20 * max_offset."""
        self.max_physical = -1
        self.buffer: bytearray | None = None
        """Invariant: begins with the first unit that the files lack, or before it."""
        self.buffer_start = 0
        self.buffer_position = 0
        """Invariant: a multiple of 20, at most the size of the buffer; 0 without one."""
        self.buffer_limit = 0
        if load:
            self.files.load()

    def __repr__(self) -> str:
        return f"{self.topic}-{self.queue_id}[{self.min_offset}, {self.max_offset})"

    # Writing

    def make_room(self) -> None:
        """Makes memory for the next unit, and registers the queue for writing. Raises DiskFullError, or
        OSError while no worker thread writes; the queue is unchanged then."""
        buffer = self.buffer
        position = self.buffer_position
        if buffer is None:
            self.pending.reserve_memory(_BUFFER_MIN_BYTES)
            buffer = self.buffer = bytearray(_BUFFER_MIN_BYTES)
            self.buffer_start = self.max_offset * UNIT_BYTES
            position = self.buffer_position = 0
            if not self.files.files:
                self.min_offset = max(self.min_offset, self.max_offset)
        elif position >= len(buffer):
            self.pending.reserve_memory(len(buffer))
            if self.buffer is not buffer:
                # The memory limit was reached, and this thread has written all units, this queue's too.
                self.pending.free_memory(len(buffer))
                self.make_room()
                return
            buffer = self._grow_buffer(buffer)
            position = self.buffer_position
        unwritten = self.buffer_start + position - self.written_end
        pending = self.pending
        pending.waiting.setdefault(self)
        room = len(buffer)
        if unwritten >= WRITE_THRESHOLD_BYTES:
            pending.due.setdefault(self)
        else:
            room = min(room, position + max(WRITE_THRESHOLD_BYTES - unwritten, UNIT_BYTES))
        self.buffer_limit = room - room % UNIT_BYTES

    def _grow_buffer(self, buffer: bytearray) -> bytearray:
        """Removes written units from the buffer, and doubles it if they are less than half of it. The caller
        has reserved the memory."""
        done = self.written_end - self.buffer_start
        left = self.buffer_position - done
        size = len(buffer)
        if left * 2 > size:
            size *= 2
        else:
            self.pending.free_memory(size)
        grown = bytearray(size)
        grown[:left] = buffer[done : self.buffer_position]
        self.buffer_start += done
        self.buffer = grown
        self.buffer_position = left
        return grown

    @property
    def written_end(self) -> int:
        """The byte of the queue up to which its files hold the units."""
        files = self.files.files
        return files[-1].end if files else self.buffer_start

    def unwritten(self) -> tuple[QueueFiles, int, bytes]:
        """The files, the start byte and a copy of the units that the files lack. `mark_written` must
        follow."""
        buffer = self.buffer
        start = self.written_end
        if buffer is None:
            return self.files, start, b""
        return self.files, start, bytes(memoryview(buffer)[start - self.buffer_start : self.buffer_position])

    def mark_written(self) -> None:
        """Notes that units were written into the files; frees the memory if these were all."""
        if self.buffer is None:
            return
        if self.buffer_start + self.buffer_position == self.written_end:
            self.pending.mark_queue_written(self)
            self._release_buffer()
        else:
            self.pending.due.pop(self, None)
            self.buffer_limit = 0

    def newest_record(self) -> int:
        """Physical offset of the newest message, -1 if its unit is not in memory."""
        if self.buffer is None or self.buffer_position < UNIT_BYTES:
            return -1
        offset: int = UNIT.unpack_from(self.buffer, self.buffer_position - UNIT_BYTES)[0]
        return offset

    def put(
        self,
        offset: int,
        physical: int,
        size: int,
        tags_code: int,
        store_timestamp: int = 0,
        bit_map: bytes = b"",
    ) -> bool:
        """Adds the unit of a parsed record (putMessagePositionInfo). False when the queue has the record
        already. As in RocketMQ a gap is closed: the unit goes to the end, whatever offset its record has.
        Offset 0 after other messages means that the topic was deleted and created again; the old units are
        removed. `store_timestamp` and `bit_map` are for the extension. Raises DiskFullError or OSError."""
        if physical + size <= self.max_physical:
            return False
        if offset < self.max_offset:
            if offset:
                return False
            self.destroy()
        elif offset > self.max_offset and self.max_offset * UNIT_BYTES == self._first_byte:
            # The queue is empty and starts at the offset of its first message.
            self._remove_files()
            self.max_offset = offset
        if self.buffer_position >= self.buffer_limit:
            self.make_room()
        assert self.buffer is not None
        if self.extension is not None:
            tags_code = self.extension.put(tags_code, store_timestamp, bit_map)
        UNIT.pack_into(self.buffer, self.buffer_position, physical, size, tags_code)
        self.buffer_position += UNIT_BYTES
        self.max_offset += 1
        self.max_physical = physical + size
        return True

    def repair(self, offset: int, physical: int, size: int, tags_code: int) -> None:
        """Rewrites the unit of a record after a crash if it differs and the new one fits between its
        neighbours. Lost pages cause differences; a unit may lie across two pages."""
        at = offset * UNIT_BYTES
        file = self.files.find(at)
        if file is None or offset >= self.max_offset or at >= self.written_end:
            return
        unit = UNIT.pack(physical, size, tags_code)
        present = file.map[at - file.start : at - file.start + UNIT_BYTES]
        if present == unit or (
            present[:-8] == unit[:-8] and is_address(int.from_bytes(present[-8:], signed=True))
        ):
            return
        if at > self.files.min_offset and self._position_and_size(offset - 1)[0] >= physical:
            return
        if offset + 1 < self.max_offset and self._position_and_size(offset + 1)[0] <= physical:
            return
        file.overwrite(at - file.start, unit)
        self.pending.unsynced[file] = None

    def _release_buffer(self) -> None:
        """Frees the buffer; the next unit calls `make_room`."""
        if self.buffer is not None:
            self.pending.free_memory(len(self.buffer))
        self.buffer = None
        self.buffer_position = self.buffer_limit = 0

    # Reading

    def units(self, offset: int, count: int) -> Iterator[tuple[int, int, int]]:
        """(physical offset, size, tag code) of up to `count` units from `offset` on, up to the end of their
        file. Empty when the queue has no unit at `offset`."""
        return UNIT.iter_unpack(self._bytes(offset, count))

    def _bytes(self, offset: int, count: int) -> bytes | bytearray:
        """The bytes of the units that `units` returns."""
        start = offset * UNIT_BYTES
        end = min(offset + count, self.max_offset) * UNIT_BYTES
        if start >= end:
            return b""
        buffer = self.buffer
        if buffer is not None and start >= self.buffer_start:
            return buffer[start - self.buffer_start : end - self.buffer_start]
        file = self.files.find(start)
        if file is None:
            return b""
        found = file.map[start - file.start : min(end - file.start, file.wrote)]
        if buffer is not None and start + len(found) < min(end, file.start + file.size):
            found += buffer[start + len(found) - self.buffer_start : end - self.buffer_start]
        return found

    def positions_and_sizes(
        self, offset: int, count: int, residency: PageResidency | None = None
    ) -> tuple[int, ...]:
        """Physical offsets and sizes of the same units as one flat tuple: offset, size, offset, size, … With
        `residency` raises the errors of `require_resident`."""
        start = offset * UNIT_BYTES
        if self.buffer is not None and start >= self.buffer_start:
            units_there = min(count, self.max_offset - offset)
            return (
                positions_and_sizes(units_there).unpack_from(self.buffer, start - self.buffer_start)
                if units_there > 0
                else ()
            )
        file = self.files.find(start)
        if file is None or offset >= self.max_offset:
            return ()
        at = start - file.start
        units_there = min(count, self.max_offset - offset, (file.size - at) // UNIT_BYTES)
        is_written = at + units_there * UNIT_BYTES <= file.wrote
        if residency is not None:
            if is_written and units_there > 0 and file.mapping is not None:
                residency.require(file, at, units_there * UNIT_BYTES)
            else:
                self.require_resident(residency, offset, units_there)
        if not is_written:
            return positions_and_sizes(units_there).unpack(self._bytes(offset, units_there))
        return positions_and_sizes(units_there).unpack_from(file.map, at)

    def require_resident(self, residency: PageResidency, offset: int, count: int) -> None:
        """Raises NotResidentError unless these units are in memory. A file that is not mapped counts as not
        in memory, because opening it may wait for the disk."""
        start = offset * UNIT_BYTES
        if self.buffer is not None and start >= self.buffer_start:
            return
        file = self.files.find(start)
        if file is None:
            return
        at = start - file.start
        size = min(count * UNIT_BYTES, file.wrote - at)
        if size <= 0:
            return
        if file.mapping is None:
            raise NotResidentError(file, at, size)
        residency.require(file, at, size)

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        """The unit at `offset`, None outside [min_offset, max_offset)."""
        if offset < self.min_offset:
            return None
        return next(self.units(offset, 1), None)

    def extension_unit(self, code: int) -> ExtensionUnit | None:
        """The extension unit whose address stands in place of a tag code; None if `code` is a tag code, or if
        the unit is lost."""
        if self.extension is None or not is_address(code):
            return None
        return self.extension.get(code)

    def _position_and_size(self, offset: int) -> tuple[int, int]:
        """Physical offset and size of an existing unit, which may lie before `min_offset`."""
        at = offset * UNIT_BYTES
        place: tuple[int, int]
        if self.buffer is not None and at >= self.buffer_start:
            place = POSITION_AND_SIZE.unpack_from(self.buffer, at - self.buffer_start)
        else:
            file = self.files.find(at)
            assert file is not None
            place = POSITION_AND_SIZE.unpack_from(file.map, at - file.start)
        return place

    def roll_next_file(self, offset: int) -> int:
        """First offset of the file after the one that contains `offset`."""
        in_file = self.files.file_size // UNIT_BYTES
        return offset + in_file - offset % in_file

    def first_at_or_after(self, physical: int, low: int, high: int) -> int:
        """Smallest offset in [low, high) whose record starts at or after this physical offset, `high` without
        one."""
        while low < high:
            middle = (low + high) // 2
            start, size = self._position_and_size(middle)
            if start < physical or size == PRE_BLANK_SIZE:
                low = middle + 1
            else:
                high = middle
        return low

    def first_ending_after(self, physical: int, low: int, high: int) -> int:
        """Smallest offset in [low, high) whose record ends after this physical offset, `high` without one.
        The search starts at the end, where the offset usually is."""
        return first_that(lambda offset: self._ends_after(offset, physical), low, high)

    def _ends_after(self, offset: int, physical: int) -> bool:
        start, size = self._position_and_size(offset)
        return start + size > physical and size != PRE_BLANK_SIZE

    # Invariants

    def check_invariants(self) -> None:
        """Raises InvariantError if the queue contradicts the rules at its fields. O(1); while no thread
        writes the queue, as after recovery."""
        if not 0 <= self.min_offset <= self.max_offset or not self._is_dense():
            raise InvariantError(
                "ConsumeQueue",
                "0 <= min_offset <= max_offset, and files and buffer hold one unit for each offset before it",
                queue=f"{self.topic}-{self.queue_id}",
                min_offset=self.min_offset,
                max_offset=self.max_offset,
                written_end=self.written_end,
                buffer_start=self.buffer_start,
                buffer_position=self.buffer_position,
            )

    def _is_dense(self) -> bool:
        end, written_end, position = self.max_offset * UNIT_BYTES, self.written_end, self.buffer_position
        if self.buffer is None:
            return position == 0 and (written_end == end or not self.files.files)
        if position % UNIT_BYTES or position > len(self.buffer):
            return False
        return self.buffer_start <= written_end <= self.buffer_start + position == end

    # Recovery, truncation, expiry

    def recover(self, *, zeroed: bool = False, before_cut: Callable[[], None] = lambda: None) -> bool:
        """Finds the end of the queue, and truncates there. `zeroed` says that only zeros follow the units,
        because this store stopped cleanly. Returns whether units of records that the log has may be missing;
        then calls `before_cut` before it truncates. Raises OSError."""
        files = self.files.files
        self._release_buffer()
        if not files:
            return False
        is_cut = False
        end = bisect_end(files[-1]) if zeroed else None
        if end is not None:
            files[-1].wrote = end.position - files[-1].start
            self.max_offset = end.position // UNIT_BYTES
        else:
            end = scan_end(files)
            # The first unit of a file is written when it is made, so a last one without units has lost them.
            is_cut = end.position <= files[-1].start or goes_on_behind(files, end.position)
            if is_cut:
                before_cut()
            self._truncate_bytes(end.position)
        self.max_physical = end.max_physical
        return is_cut

    def truncate(self, physical: int) -> None:
        """Removes every unit at or after this physical offset, durably (truncateDirtyLogicFiles). Raises
        OSError."""
        if 0 <= self.max_physical <= physical:
            return  # the last record ends before it, and so do all others
        self.truncate_to(self.first_at_or_after(physical, self._first_offset, self.max_offset))

    def truncate_to(self, offset: int) -> None:
        """Removes every unit from this offset on, durably. Raises OSError."""
        if offset >= self.max_offset:
            return
        self._truncate_bytes(offset * UNIT_BYTES)
        self.max_physical = -1
        if offset > self._first_offset:
            start, size = self._position_and_size(offset - 1)
            self.max_physical = start + size
        if self.extension is not None:
            self.extension.truncate(self.newest_address())

    def newest_address(self) -> int | None:
        """The newest address of an extension unit in the last units of the queue."""
        first = self._first_byte // UNIT_BYTES
        for offset in range(self.max_offset - 1, max(first, self.max_offset - ADDRESS_SEARCH_MAX) - 1, -1):
            unit = next(self.units(offset, 1), None)
            if unit is None:
                return None
            if is_address(unit[2]):
                return unit[2]
        return None

    @property
    def _first_byte(self) -> int:
        """The byte at which the queue's first unit starts or will start."""
        if self.files.files:
            return self.files.files[0].start
        return self.buffer_start if self.buffer is not None else 0

    @property
    def _first_offset(self) -> int:
        """The first offset with a unit whose message may exist."""
        if self.files.files or self.buffer is not None:
            return max(self.min_offset, self._first_byte // UNIT_BYTES)
        return self.max_offset

    def _truncate_bytes(self, end: int) -> None:
        """Truncates the queue at this byte. An empty last file is deleted, unless its name is the only record
        of the queue's next offset. No thread writes the queue meanwhile."""
        if self.buffer is not None and self.buffer_start <= self.written_end <= end:
            self.buffer_position = end - self.buffer_start
        else:
            self._release_buffer()
            self.pending.mark_queue_written(self)
            self.files.truncate(end)
            files = self.files.files
            if files and files[-1].start == end and (len(files) > 1 or not end):
                files.pop().delete()
        self.max_offset = end // UNIT_BYTES
        self.min_offset = min(self.min_offset, self.max_offset)

    def find_expired(self, min_physical: int) -> ExpiredUnits:
        """Finds the units in the files whose messages the log has lost. Changes nothing; on any thread.
        Raises OSError."""
        own = self.files
        files = list(own.files)
        expired = 0
        while expired < len(files) - 1:
            if _pread_position_and_size(files[expired], files[expired].size - UNIT_BYTES)[0] >= min_physical:
                break
            expired += 1
        low = high = self.min_offset
        first = -1
        if files:
            low = max(low, files[expired].start // UNIT_BYTES)
            high = max(files[-1].end // UNIT_BYTES, low)
            end = high
            while low < high:
                middle = (low + high) // 2
                start, size = _read_position_and_size(own, middle)
                if start < min_physical or size == PRE_BLANK_SIZE:
                    low = middle + 1
                else:
                    high = middle
                    first = start
            if low == end:
                first = -1
        return ExpiredUnits(own, files[:expired], low, first)

    def expire(self, expired: ExpiredUnits, min_physical: int) -> list[QueueFile]:
        """Raises `min_offset`, and returns the files without any remaining message for the caller to
        delete."""
        if expired.source is not self.files:
            return []
        files = self.files.files
        taken = []
        for file in expired.files:
            if len(files) > 1 and files[0] is file:
                taken.append(files.pop(0))
        low = max(self.min_offset, min(expired.min_offset, self.max_offset))
        if low * UNIT_BYTES >= self.written_end:
            low = self.first_at_or_after(min_physical, low, self.max_offset)  # in memory
        self.min_offset = low
        if taken and self.extension is not None:
            unit = self.unit(low)
            if unit is not None and is_address(unit[2]):
                taken += self.extension.take_expired(unit[2])
        return taken

    def first_physical_offset_in_memory(self, without: int) -> int:
        """Physical offset of the first message: `without` in an empty queue, -1 if the unit is not in
        memory."""
        if self.min_offset >= self.max_offset:
            return without
        if self.buffer is not None and self.min_offset * UNIT_BYTES >= self.buffer_start:
            return self._position_and_size(self.min_offset)[0]
        return -1

    def correct_min_offset(self, min_physical: int) -> None:
        """Raises `min_offset` to the first unit whose record exists (correctMinOffset)."""
        first = self._first_offset
        if first < self.max_offset and first * UNIT_BYTES < self.written_end:
            # Usually it is the first unit; this read is cheaper than a mapping.
            file = self.files.find(first * UNIT_BYTES)
            assert file is not None
            place = file.pread(first * UNIT_BYTES - file.start, POSITION_AND_SIZE.size)
            start, size = POSITION_AND_SIZE.unpack(place)
            # Bits of a position may flip, and a message before the log never was.
            if (start >= min_physical or start < 0) and size != PRE_BLANK_SIZE:
                self.min_offset = first
                return
        self.min_offset = self.first_at_or_after(min_physical, self._first_offset, self.max_offset)

    def close(self) -> None:
        """Frees memory and mappings. The caller has written the units before."""
        self.pending.mark_queue_written(self)
        self._release_buffer()
        self.files.close()
        if self.extension is not None:
            self.extension.close()

    def begin_at(self, offset: int) -> None:
        """Lets a queue that has never had a message begin at this offset, in memory only. The file of its
        first message makes it durable."""
        if not self.max_offset and not self.files.files and self.buffer is None:
            self.min_offset = self.max_offset = offset

    def destroy(self) -> None:
        """Removes the files; the queue is empty and starts at offset 0."""
        self._remove_files()
        self.min_offset = self.max_offset = 0
        self.max_physical = -1

    def _remove_files(self) -> None:
        """Frees the memory and hands the files to the writing thread, which deletes them after its present
        writes."""
        self.pending.mark_queue_written(self)
        self._release_buffer()
        if self.extension is not None:
            self.extension.destroy()
        old = self.files
        if old.files or self.pending.written_by_worker:
            self.files = QueueFiles(old.directory, old.file_size, old.mappings)
            self.pending.delete_files(old)


def _read_position_and_size(files: QueueFiles, offset: int) -> tuple[int, int]:
    """Physical offset and size of a unit, not read through a mapping. Raises OSError."""
    at = offset * UNIT_BYTES
    file = files.find(at)
    if file is None:
        raise OSError(f"unit {offset} of the consume queue in {files.directory} is missing")
    return _pread_position_and_size(file, at - file.start)


def _pread_position_and_size(file: QueueFile, at: int) -> tuple[int, int]:
    found: tuple[int, int] = POSITION_AND_SIZE.unpack(file.pread(at, POSITION_AND_SIZE.size))
    return found
