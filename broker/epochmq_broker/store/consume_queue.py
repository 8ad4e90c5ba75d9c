"""The consume queue of one (topic, queue id): 20 bytes for each message, in files of one size (ConsumeQueue).

A unit is physical offset (8), size (4), tag code (8), big endian; the logical offset is the unit's number.
A queue whose first message has an offset > 0 begins, in its file, with units (0, 2³¹−1, 0).

Writing goes through `map`, `position` and `room` straight from the append path; `make_room` changes files
and reserves space when `position` reaches `room`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from mmap import mmap
from pathlib import Path
from typing import Final

from epochmq_broker.store import record
from epochmq_broker.store.key_hash import KeyHasher
from epochmq_broker.store.mapped_file import PAGE_BYTES, DiskFullError, MappedFile, MappedFileQueue
from epochmq_broker.store.settings import CONSUME_QUEUE_UNIT_BYTES as UNIT_BYTES
from epochmq_protocol import javahash

UNIT: Final = struct.Struct(">qiq")
PRE_BLANK_SIZE: Final = 0x7FFF_FFFF
PRE_BLANK: Final = UNIT.pack(0, PRE_BLANK_SIZE, 0)
RECOVERED_FILES: Final = 3  # how many of the last files recovery reads

_ROOM_MIN_BYTES: Final = 4 * PAGE_BYTES
_ROOM_MAX_BYTES: Final = 1 << 20
_POSITION_AND_SIZE = struct.Struct(">qi")


@lru_cache(maxsize=64)
def _places(count: int) -> struct.Struct:
    """Physical offset and size of so many units, without their tag codes."""
    return struct.Struct(">" + "qi8x" * count)


class ConsumeQueue:
    """One queue. Offsets are logical (messages) unless the name says physical (bytes of the commit log)."""

    __slots__ = (
        "files",
        "hasher",
        "magic",
        "map",
        "max_offset",
        "max_physical",
        "min_offset",
        "overhead",
        "position",
        "queue_id",
        "room",
        "schedule",
        "topic",
        "topic_field",
    )

    def __init__(
        self, topic: str, queue_id: int, directory: Path, file_size: int, *, load: bool = False
    ) -> None:
        """`directory` is the folder of all consume queues. `load` opens the files that are there; `recover`
        must follow. Raises OSError or StoreDamagedError when loading."""
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
        self.files = MappedFileQueue(directory / topic / str(queue_id), file_size, keep_fd=False, levels=3)
        self.min_offset = 0
        self.max_offset = 0
        self.max_physical = -1
        self.map: mmap | None = None
        self.position = 0
        self.room = 0
        if load:
            self.files.load()

    def __repr__(self) -> str:
        return f"{self.topic}-{self.queue_id}[{self.min_offset}, {self.max_offset})"

    # Writing

    def make_room(self) -> None:
        """Makes the next unit writable: the next file, or more reserved space. Raises DiskFullError or
        OSError; the queue is as it was then."""
        self.settle()
        files = self.files
        if not files.files:
            start = self.max_offset * UNIT_BYTES
            file = files.add(start - start % files.file_size)
            try:
                self._fill(file, start - file.start)
            except BaseException:
                files.destroy()
                raise
            self.min_offset = max(self.min_offset, self.max_offset)
        else:
            file = files.files[-1]
            if file.wrote == file.size:
                self._leave()
                file = files.add(file.start + file.size)
        growth = min(max(file.reserved, _ROOM_MIN_BYTES), _ROOM_MAX_BYTES)
        try:
            file.reserve(min(file.wrote + growth, file.size))
        except DiskFullError:
            file.reserve(file.wrote + UNIT_BYTES)
        self.map = file.map
        self.position = file.wrote
        self.room = file.reserved - file.reserved % UNIT_BYTES

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
        elif offset > self.max_offset and self.max_offset * UNIT_BYTES == max(self.files.min_offset, 0):
            # Nothing in it yet: it begins where its first message says.
            self._leave()
            self.files.destroy()
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
        file = self.files.find(offset * UNIT_BYTES)
        if file is None or offset >= self.max_offset:
            return
        at = offset * UNIT_BYTES - file.start
        unit = UNIT.pack(physical, size, tags_code)
        if file.map[at : at + UNIT_BYTES] == unit:
            return
        if offset * UNIT_BYTES > self.files.min_offset and self._place(offset - 1)[0] >= physical:
            return
        if offset + 1 < self.max_offset and self._place(offset + 1)[0] <= physical:
            return
        file.map[at : at + UNIT_BYTES] = unit

    def _fill(self, file: MappedFile, until: int) -> None:
        """Units in front of a queue's first message."""
        if until:
            file.reserve(until)
            file.map[:until] = PRE_BLANK * (until // UNIT_BYTES)
            file.wrote = until

    def settle(self) -> None:
        """Hands the write position back to the last file; before anything looks at files instead of the
        queue."""
        if self.map is not None:
            self.files.files[-1].wrote = self.position

    def _leave(self) -> None:
        """Forgets the file that is written; the next unit calls `make_room`."""
        self.map = None
        self.position = self.room = 0

    # Reading

    def units(self, offset: int, count: int) -> Iterator[tuple[int, int, int]]:
        """(physical offset, size, tag code) of up to `count` units from `offset` on, within one file;
        nothing when the queue has no unit there."""
        start = offset * UNIT_BYTES
        file = self.files.find(start)
        if file is None or offset >= self.max_offset:
            return iter(())
        at = start - file.start
        end = min(at + count * UNIT_BYTES, file.size, self.max_offset * UNIT_BYTES - file.start)
        return UNIT.iter_unpack(file.map[at:end])

    def places(self, offset: int, count: int) -> tuple[int, ...]:
        """Of the same units physical offset and size, one after the other: offset, size, offset, size, …"""
        start = offset * UNIT_BYTES
        file = self.files.find(start)
        if file is None or offset >= self.max_offset:
            return ()
        at = start - file.start
        found = min(count, self.max_offset - offset, (file.size - at) // UNIT_BYTES)
        return _places(found).unpack_from(file.map, at)

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        """One unit, None outside [min_offset, max_offset)."""
        if offset < self.min_offset:
            return None
        return next(self.units(offset, 1), None)

    def _place(self, offset: int) -> tuple[int, int]:
        """Physical offset and size of a unit that exists, in front of `min_offset` too."""
        file = self.files.find(offset * UNIT_BYTES)
        assert file is not None
        physical, size = _POSITION_AND_SIZE.unpack_from(file.map, offset * UNIT_BYTES - file.start)
        return physical, size

    def roll_next_file(self, offset: int) -> int:
        """First offset of the file after the one that holds `offset`."""
        in_file = self.files.file_size // UNIT_BYTES
        return offset + in_file - offset % in_file

    def first_behind(self, physical: int, low: int, high: int) -> int:
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

    def first_ending_behind(self, physical: int, low: int, high: int) -> int:
        """Smallest offset in [low, high) whose record ends behind this physical offset, `high` when none
        does."""
        while low < high:
            middle = (low + high) // 2
            start, size = self._place(middle)
            if start + size <= physical or size == PRE_BLANK_SIZE:
                low = middle + 1
            else:
                high = middle
        return low

    # Recovery, truncation, expiry

    def recover(self) -> None:
        """Finds the end of the queue: the first unit of the last files that is none. Raises OSError.

        Units lie in rising order; one that does not is what an earlier truncation left behind."""
        files = self.files.files
        self._leave()
        if not files:
            return
        at = max(len(files) - RECOVERED_FILES, 0)
        end = 0
        last = -1
        for file in files[at:]:
            found = self._recover_file(file, last)
            end = file.start + found
            if found:
                physical, size = _POSITION_AND_SIZE.unpack_from(file.map, found - UNIT_BYTES)
                if size != PRE_BLANK_SIZE:
                    last = physical
                    self.max_physical = physical + size
            if found != file.size:
                break
        self._cut(end)

    def _recover_file(self, file: MappedFile, last: int) -> int:
        """Bytes of valid units at the head of a file, all behind physical offset `last`."""
        at = 0
        for physical, size, _ in UNIT.iter_unpack(file.peek(0, file.size - file.size % UNIT_BYTES)):
            if size <= 0 or physical < 0 or (physical <= last and size != PRE_BLANK_SIZE):
                break
            if size != PRE_BLANK_SIZE:
                last = physical
            at += UNIT_BYTES
        return at

    def truncate(self, physical: int) -> None:
        """Removes every unit at or behind this physical offset, on disk too (truncateDirtyLogicFiles). Raises
        OSError."""
        self.settle()
        self.cut(self.first_behind(physical, self._first, self.max_offset))

    def cut(self, offset: int) -> None:
        """Ends the queue in front of this offset, on disk too. Raises OSError."""
        if offset >= self.max_offset:
            return
        self.settle()
        self._cut(offset * UNIT_BYTES)
        self.max_physical = -1
        if offset > self._first:
            start, size = self._place(offset - 1)
            self.max_physical = start + size

    @property
    def _first(self) -> int:
        """The first offset that has a unit and may have a message."""
        start = self.files.min_offset
        return self.max_offset if start < 0 else max(self.min_offset, start // UNIT_BYTES)

    def _cut(self, end: int) -> None:
        """Ends the queue at this byte; a last file that would hold nothing goes, unless it is the only
        trace of where the queue's offsets continue."""
        self.files.truncate(end)
        files = self.files.files
        if len(files) > 1 and files[-1].start == end:
            files.pop().delete()
        self.max_offset = end // UNIT_BYTES
        self.min_offset = min(self.min_offset, self.max_offset)
        self._leave()

    def expire(self, min_physical: int) -> list[MappedFile]:
        """Takes out files whose messages are all in front of the log's first byte, never the last one, and
        raises `min_offset`. The caller deletes the files."""
        expired = []
        files = self.files.files
        while len(files) > 1:
            last, _ = _POSITION_AND_SIZE.unpack_from(files[0].map, files[0].size - UNIT_BYTES)
            if last >= min_physical:
                break
            expired.append(files.pop(0))
        self.correct_min_offset(min_physical)
        return expired

    def correct_min_offset(self, min_physical: int) -> None:
        """Raises `min_offset` to the first unit whose record still exists (correctMinOffset)."""
        files = self.files.files
        if not files:
            return
        low = max(self.min_offset, files[0].start // UNIT_BYTES)
        self.min_offset = self.first_behind(min_physical, low, self.max_offset)

    def close(self) -> None:
        """Closes the files."""
        self.settle()
        self._leave()
        self.files.close()

    def destroy(self) -> None:
        """Removes the files; the queue is empty and starts at 0 again."""
        self._leave()
        self.files.destroy()
        self.min_offset = self.max_offset = 0
        self.max_physical = -1
