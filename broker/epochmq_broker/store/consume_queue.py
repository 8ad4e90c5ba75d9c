"""The consume queue of one (topic, queue id): 20 bytes for each message, in files of one size (ConsumeQueue).

A unit is physical offset (8), size (4), tag code (8), big endian; the logical offset is the unit's number.
A queue whose first message has an offset > 0 begins, in its file, with units (0, 2³¹−1, 0).

New units are in memory first, in `map` from byte `base` of the queue on: the append path puts them there
through `map`, `position` and `room`, and calls `make_room` when `position` reaches `room`. A worker thread
writes them into the queue's files later (`queue_flush`). A crash takes those that are in memory only, and
recovery makes them again from the log, as it does after every crash.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from epochmq_broker.store import record
from epochmq_broker.store.key_hash import KeyHasher
from epochmq_broker.store.mapped_file import PAGE_BYTES
from epochmq_broker.store.pending_units import WRITE_THRESHOLD_BYTES, PendingUnits
from epochmq_broker.store.queue_files import MappingCache, QueueFile, QueueFiles
from epochmq_broker.store.store_config import CONSUME_QUEUE_UNIT_BYTES as UNIT_BYTES
from epochmq_protocol import javahash

UNIT: Final = struct.Struct(">qiq")
PRE_BLANK_SIZE: Final = 0x7FFF_FFFF
PRE_BLANK: Final = UNIT.pack(0, PRE_BLANK_SIZE, 0)
RECOVERY_FILES_MAX: Final = 3  # how many of the last files recovery reads

_BUFFER_MIN_BYTES: Final = 16 * UNIT_BYTES
_BLANKS_AT_ONCE: Final = 3276
_POSITION_AND_SIZE = struct.Struct(">qi")


@lru_cache(maxsize=64)
def _places(count: int) -> struct.Struct:
    """Physical offset and size of so many units, without their tag codes."""
    return struct.Struct(">" + "qi8x" * count)


class ExpiredUnits(NamedTuple):
    """What `ConsumeQueue.find_expired` has found in some files: those whose messages are all gone, the first
    offset with a message that is left, or the end of what is written, and where that message lies in the log;
    -1 when the files have none."""

    of: QueueFiles
    files: list[QueueFile]
    min_offset: int
    first_physical: int


class ConsumeQueue:
    """One queue. Offsets are logical (messages) unless the name says physical (bytes of the commit log)."""

    __slots__ = (
        "base",
        "files",
        "hasher",
        "magic",
        "map",
        "max_offset",
        "max_physical",
        "min_offset",
        "overhead",
        "pending",
        "position",
        "queue_id",
        "room",
        "schedule",
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
    ) -> None:
        """`directory` is the folder of all consume queues. `load` finds the files that are there; `recover`
        must follow. `pending` is told when there is something to write. Raises OSError or StoreDamagedError
        when loading."""
        self.topic = topic
        self.queue_id = queue_id
        name = topic.encode()
        v2 = len(topic) > record.V1_TOPIC_MAX
        self.magic = record.MAGIC_V2 if v2 else record.MAGIC_V1
        self.topic_field = (struct.pack(">H", len(name)) if v2 else bytes((min(len(name), 255),))) + name
        # Bytes of a record with IPv4 hosts besides body and properties; too many for any limit when the
        # topic's length cannot be written, so that the size check refuses it.
        legal = len(name) <= (record.PROPERTIES_MAX_BYTES if v2 else record.V1_TOPIC_MAX)
        self.overhead = record.HEAD_V4.size + len(self.topic_field) + 2 if legal else 1 << 40
        self.schedule = topic == record.SCHEDULE_TOPIC
        self.hasher = KeyHasher(javahash.topic_seed(topic))
        self.pending = PendingUnits() if pending is None else pending
        if mappings is None:
            mappings = MappingCache()
        self.files = QueueFiles(directory / topic / str(queue_id), file_size, mappings)
        self.min_offset = 0
        self.max_offset = 0
        self.max_physical = -1
        self.map: bytearray | None = None
        self.base = 0
        self.position = 0
        self.room = 0
        if load:
            self.files.load()

    def __repr__(self) -> str:
        return f"{self.topic}-{self.queue_id}[{self.min_offset}, {self.max_offset})"

    # Writing

    def make_room(self) -> None:
        """Makes the next unit writable, in memory, and reports that there is something to write. Raises
        DiskFullError, or OSError while no worker thread writes; the queue is as it was then."""
        buffer = self.map
        position = self.position
        if buffer is None:
            self.pending.hold(_BUFFER_MIN_BYTES)
            buffer = self.map = bytearray(_BUFFER_MIN_BYTES)
            self.base = self.max_offset * UNIT_BYTES
            position = self.position = 0
            if not self.files.files:
                self.min_offset = max(self.min_offset, self.max_offset)
        elif position >= len(buffer):
            self.pending.hold(len(buffer))
            if self.map is not buffer:
                # There was so much to write that it has been written, this queue's units too.
                self.pending.free(len(buffer))
                self.make_room()
                return
            buffer = self._grown(buffer)
            position = self.position
        unwritten = self.base + position - self.written_end
        pending = self.pending
        pending.waiting.setdefault(self)
        room = len(buffer)
        if unwritten >= WRITE_THRESHOLD_BYTES:
            pending.due.setdefault(self)
        else:
            room = min(room, position + max(WRITE_THRESHOLD_BYTES - unwritten, UNIT_BYTES))
        self.room = room - room % UNIT_BYTES

    def _grown(self, buffer: bytearray) -> bytearray:
        """The buffer without the units that are in files by now, or twice as large if that is less than half
        of it. The memory for that is held already."""
        done = self.written_end - self.base
        left = self.position - done
        size = len(buffer)
        if left * 2 > size:
            size *= 2
        else:
            self.pending.free(size)
        grown = bytearray(size)
        grown[:left] = buffer[done : self.position]
        self.base += done
        self.map = grown
        self.position = left
        return grown

    @property
    def written_end(self) -> int:
        """Up to which byte of the queue units are in its files."""
        files = self.files.files
        return files[-1].end if files else self.base

    def unwritten(self) -> tuple[QueueFiles, int, bytes]:
        """A copy of the units that are not in the queue's files yet, and where they belong. `written` must
        follow."""
        buffer = self.map
        start = self.written_end
        if buffer is None:
            return self.files, start, b""
        return self.files, start, bytes(memoryview(buffer)[start - self.base : self.position])

    def written(self) -> None:
        """Units have been written into the files: gives the memory back if these were all."""
        if self.map is None:
            return
        if self.base + self.position == self.written_end:
            self.pending.forget(self)
            self._leave()
        else:
            self.pending.due.pop(self, None)
            self.room = 0

    def put(self, offset: int, physical: int, size: int, tags_code: int) -> bool:
        """Dispatches a parsed record (putMessagePositionInfo); False when the queue has it already. A gap is
        closed up, as in Java: the unit goes to the end, wherever its record says it belongs. Offset 0 behind
        other messages is the start of a topic that was deleted and made again: the old ones go. Raises
        DiskFullError or OSError."""
        if physical + size <= self.max_physical:
            return False
        if offset < self.max_offset:
            if offset:
                return False
            self.destroy()
        elif offset > self.max_offset and self.max_offset * UNIT_BYTES == self._first_byte:
            # Nothing in it yet: it begins where its first message says.
            self._remove_files()
            self.max_offset = offset
        if self.position >= self.room:
            self.make_room()
        assert self.map is not None
        UNIT.pack_into(self.map, self.position, physical, size, tags_code)
        self.position += UNIT_BYTES
        self.max_offset += 1
        self.max_physical = physical + size
        return True

    def repair(self, offset: int, physical: int, size: int, tags_code: int) -> None:
        """After a crash: writes the unit of a record the queue should have once more if it differs, which
        lost pages can do (a unit may lie across two), provided that it fits between its neighbours."""
        at = offset * UNIT_BYTES
        file = self.files.find(at)
        if file is None or offset >= self.max_offset or at >= self.written_end:
            return
        unit = UNIT.pack(physical, size, tags_code)
        if file.map[at - file.start : at - file.start + UNIT_BYTES] == unit:
            return
        if at > self.files.min_offset and self._place(offset - 1)[0] >= physical:
            return
        if offset + 1 < self.max_offset and self._place(offset + 1)[0] <= physical:
            return
        file.overwrite(at - file.start, unit)
        self.pending.unsynced[file] = None

    def _leave(self) -> None:
        """Gives up the units in memory; the next unit calls `make_room`."""
        if self.map is not None:
            self.pending.free(len(self.map))
        self.map = None
        self.position = self.room = 0

    # Reading

    def units(self, offset: int, count: int) -> Iterator[tuple[int, int, int]]:
        """(physical offset, size, tag code) of up to `count` units from `offset` on, to the end of a file at
        most; nothing when the queue has no unit there."""
        return UNIT.iter_unpack(self._bytes(offset, count))

    def _bytes(self, offset: int, count: int) -> bytes | bytearray:
        """The bytes of these units."""
        start = offset * UNIT_BYTES
        end = min(offset + count, self.max_offset) * UNIT_BYTES
        if start >= end:
            return b""
        buffer = self.map
        if buffer is not None and start >= self.base:
            return buffer[start - self.base : end - self.base]
        file = self.files.find(start)
        if file is None:
            return b""
        found = file.map[start - file.start : min(end - file.start, file.wrote)]
        if buffer is not None and start + len(found) < min(end, file.start + file.size):
            found += buffer[start + len(found) - self.base : end - self.base]
        return found

    def places(self, offset: int, count: int) -> tuple[int, ...]:
        """Of the same units physical offset and size, one after the other: offset, size, offset, size, …"""
        start = offset * UNIT_BYTES
        if self.map is not None and start >= self.base:
            found = min(count, self.max_offset - offset)
            return _places(found).unpack_from(self.map, start - self.base) if found > 0 else ()
        file = self.files.find(start)
        if file is None or offset >= self.max_offset:
            return ()
        at = start - file.start
        found = min(count, self.max_offset - offset, (file.size - at) // UNIT_BYTES)
        if at + found * UNIT_BYTES > file.wrote:
            return _places(found).unpack(self._bytes(offset, found))
        return _places(found).unpack_from(file.map, at)

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        """One unit, None outside [min_offset, max_offset)."""
        if offset < self.min_offset:
            return None
        return next(self.units(offset, 1), None)

    def _place(self, offset: int) -> tuple[int, int]:
        """Physical offset and size of a unit that exists, in front of `min_offset` too."""
        at = offset * UNIT_BYTES
        found: tuple[int, int]
        if self.map is not None and at >= self.base:
            found = _POSITION_AND_SIZE.unpack_from(self.map, at - self.base)
        else:
            file = self.files.find(at)
            assert file is not None
            found = _POSITION_AND_SIZE.unpack_from(file.map, at - file.start)
        return found

    def roll_next_file(self, offset: int) -> int:
        """First offset of the file after the one that holds `offset`."""
        in_file = self.files.file_size // UNIT_BYTES
        return offset + in_file - offset % in_file

    def first_at_or_after(self, physical: int, low: int, high: int) -> int:
        """Smallest offset in [low, high) whose unit lies at or behind this physical offset, `high` when
        none does."""
        while low < high:
            middle = (low + high) // 2
            start, size = self._place(middle)
            if start < physical or size == PRE_BLANK_SIZE:
                low = middle + 1
            else:
                high = middle
        return low

    def first_ending_after(self, physical: int, low: int, high: int) -> int:
        """Smallest offset in [low, high) whose record ends behind this physical offset, `high` when none
        does. It is looked for from the end, where it usually lies."""
        step = 1
        while high - step > low and self._ends_behind(high - step, physical):
            high -= step
            step *= 2
        low = max(low, high - step)
        while low < high:
            middle = (low + high) // 2
            if self._ends_behind(middle, physical):
                high = middle
            else:
                low = middle + 1
        return low

    def _ends_behind(self, offset: int, physical: int) -> bool:
        start, size = self._place(offset)
        return start + size > physical and size != PRE_BLANK_SIZE

    # Recovery, truncation, expiry

    def recover(self, *, zeroed: bool = False) -> None:
        """Finds the end of the queue: the first unit of the last files that is none. Raises OSError.

        Units lie in rising order; one that does not is what an earlier truncation left behind. `zeroed`:
        nothing but zeros lies behind the units (this store has stopped cleanly), so that the end is found by
        bisection, with some reads for each queue however long it is."""
        files = self.files.files
        self._leave()
        if not files:
            return
        if zeroed and self._bisect_end(files[-1]):
            return
        at = max(len(files) - RECOVERY_FILES_MAX, 0)
        end = 0
        last = -1
        for file in files[at:]:
            found = self._recover_file(file, last)
            end = file.start + found
            if found:
                physical, size = _POSITION_AND_SIZE.unpack(
                    file.pread(found - UNIT_BYTES, _POSITION_AND_SIZE.size)
                )
                if size != PRE_BLANK_SIZE:
                    last = physical
                    self.max_physical = physical + size
            if found != file.size:
                break
        self._cut(end)

    def _bisect_end(self, file: QueueFile) -> bool:
        """Takes the end of the last file for the end of the queue; False, nothing being changed, when that
        file is empty."""
        fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # Most queues are short: their units come with the first page.
            head = os.pread(fd, min(PAGE_BYTES, file.size), 0)
            in_head = len(head) // UNIT_BYTES
            low, high, last = 0, file.size // UNIT_BYTES, (-1, 0)
            middle = max(in_head - 1, 0)
            while low < high:
                at = middle * UNIT_BYTES
                place = head[at : at + UNIT_BYTES] if middle < in_head else os.pread(fd, UNIT_BYTES, at)
                found = _POSITION_AND_SIZE.unpack_from(place)
                if found[1] > 0:
                    low, last = middle + 1, found
                else:
                    high = middle
                middle = (low + high) // 2
        finally:
            os.close(fd)
        if not low:
            return False
        file.wrote = low * UNIT_BYTES
        self.max_offset = (file.start + file.wrote) // UNIT_BYTES
        if last[1] != PRE_BLANK_SIZE:
            self.max_physical = last[0] + last[1]
        return True

    def _recover_file(self, file: QueueFile, last: int) -> int:
        """Bytes of valid units at the head of a file, all behind physical offset `last`."""
        at = 0
        for physical, size, _ in UNIT.iter_unpack(file.pread(0, file.size - file.size % UNIT_BYTES)):
            if size <= 0 or physical < 0 or (physical <= last and size != PRE_BLANK_SIZE):
                break
            if size != PRE_BLANK_SIZE:
                last = physical
            at += UNIT_BYTES
        return at

    def truncate(self, physical: int) -> None:
        """Removes every unit at or behind this physical offset, on disk too (truncateDirtyLogicFiles). Raises
        OSError."""
        if 0 <= self.max_physical <= physical:
            return  # the last record lies in front of it, and so do all
        self.cut(self.first_at_or_after(physical, self._first, self.max_offset))

    def cut(self, offset: int) -> None:
        """Ends the queue in front of this offset, on disk too. Raises OSError."""
        if offset >= self.max_offset:
            return
        self._cut(offset * UNIT_BYTES)
        self.max_physical = -1
        if offset > self._first:
            start, size = self._place(offset - 1)
            self.max_physical = start + size

    @property
    def _first_byte(self) -> int:
        """Where the queue's first unit lies, or will lie."""
        if self.files.files:
            return self.files.files[0].start
        return self.base if self.map is not None else 0

    @property
    def _first(self) -> int:
        """The first offset that has a unit and may have a message."""
        if self.files.files or self.map is not None:
            return max(self.min_offset, self._first_byte // UNIT_BYTES)
        return self.max_offset

    def _cut(self, end: int) -> None:
        """Ends the queue at this byte; a last file that would hold nothing goes, unless it is the only
        trace of where the queue's offsets continue. No thread writes the queue meanwhile."""
        if self.map is not None and self.base <= self.written_end <= end:
            self.position = end - self.base
        else:
            self._leave()
            self.pending.forget(self)
            self.files.truncate(end)
            files = self.files.files
            if len(files) > 1 and files[-1].start == end:
                files.pop().delete()
        self.max_offset = end // UNIT_BYTES
        self.min_offset = min(self.min_offset, self.max_offset)

    def find_expired(self, min_physical: int) -> ExpiredUnits:
        """Looks in the files for units of messages that the log has lost. On any thread; changes nothing.
        Raises OSError."""
        own = self.files
        files = list(own.files)
        expired = 0
        while expired < len(files) - 1:
            if _place_in(files[expired], files[expired].size - UNIT_BYTES)[0] >= min_physical:
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
                start, size = _place_at(own, middle)
                if start < min_physical or size == PRE_BLANK_SIZE:
                    low = middle + 1
                else:
                    high = middle
                    first = start
            if low == end:
                first = -1
        return ExpiredUnits(own, files[:expired], low, first)

    def expire(self, found: ExpiredUnits, min_physical: int) -> list[QueueFile]:
        """Raises `min_offset`, and takes out the files whose messages are all gone; the caller deletes
        them."""
        if found.of is not self.files:
            return []
        files = self.files.files
        taken = []
        for file in found.files:
            if len(files) > 1 and files[0] is file:
                taken.append(files.pop(0))
        low = max(self.min_offset, min(found.min_offset, self.max_offset))
        if low * UNIT_BYTES >= self.written_end:
            low = self.first_at_or_after(min_physical, low, self.max_offset)  # in memory
        self.min_offset = low
        return taken

    def first_physical_in_memory(self, without: int) -> int:
        """Where the first message lies in the log; `without` when there is none, -1 when the files would have
        to be read."""
        if self.min_offset >= self.max_offset:
            return without
        if self.map is not None and self.min_offset * UNIT_BYTES >= self.base:
            return self._place(self.min_offset)[0]
        return -1

    def correct_min_offset(self, min_physical: int) -> None:
        """Raises `min_offset` to the first unit whose record still exists (correctMinOffset)."""
        first = self._first
        if first < self.max_offset and first * UNIT_BYTES < self.written_end:
            # Mostly it is the first of all; a mapping would cost more than this read.
            file = self.files.find(first * UNIT_BYTES)
            assert file is not None
            place = file.pread(first * UNIT_BYTES - file.start, _POSITION_AND_SIZE.size)
            start, size = _POSITION_AND_SIZE.unpack(place)
            if start >= min_physical and size != PRE_BLANK_SIZE:
                self.min_offset = first
                return
        self.min_offset = self.first_at_or_after(min_physical, self._first, self.max_offset)

    def close(self) -> None:
        """Gives up memory and mappings. Whatever must be kept has been written before."""
        self.pending.forget(self)
        self._leave()
        self.files.close()

    def destroy(self) -> None:
        """Removes the files; the queue is empty and starts at 0 again."""
        self._remove_files()
        self.min_offset = self.max_offset = 0
        self.max_physical = -1

    def _remove_files(self) -> None:
        """Gives up memory and files. The files are deleted by whoever writes, behind what is being
        written."""
        self.pending.forget(self)
        self._leave()
        old = self.files
        if old.files or self.pending.written_by_worker:
            self.files = QueueFiles(old.directory, old.file_size, old.mappings)
            self.pending.remove(old)


def _place_at(files: QueueFiles, offset: int) -> tuple[int, int]:
    """Physical offset and size of a unit, not through a mapping. Raises OSError."""
    at = offset * UNIT_BYTES
    file = files.find(at)
    if file is None:
        raise OSError(f"{files.directory} has lost its unit {offset}")
    return _place_in(file, at - file.start)


def _place_in(file: QueueFile, at: int) -> tuple[int, int]:
    found: tuple[int, int] = _POSITION_AND_SIZE.unpack(file.pread(at, _POSITION_AND_SIZE.size))
    return found
