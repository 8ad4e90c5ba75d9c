"""Reads and writes one index file: entries by the hash of `topic#key`, newest first in each slot (IndexFile).

`epochmq_formats.index_file` defines the format.
"""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

from epochmq_formats.index_file import (
    ENTRY,
    ENTRY_BYTES,
    ENTRY_WITH_PACKED_NUMBER,
    HEADER,
    HEADER_BYTES,
    SLOT,
    SLOT_BYTES,
)
from epochmq_store.files.mapped_file import MappedFile
from epochmq_store.files.page_residency import PageResidency

_NO_ENTRY = b"\0\0\0\0"
_RESERVE_BYTES = 1 << 20
_SECONDS_MAX = 0x7FFF_FFFF
_PUT_MAX = 1 << 20  # entries of one put, more than there ever are; a killed process may leave some of them

IndexEntry = tuple[int, int, int]  # hash of topic#key, physical offset, store time in epoch ms


class IndexFile:
    """A file of fixed capacity. Its attributes are the header; `store_header` writes them into the
    mapping."""

    __slots__ = (
        "_capacity",
        "_entries_at",
        "_file",
        "_slots",
        "begin_physical",
        "begin_timestamp",
        "count",
        "end_physical",
        "end_timestamp",
        "slots_used",
    )

    def __init__(self, path: Path, slots: int, capacity: int) -> None:
        """Opens or creates a file. Raises StoreDamagedError, DiskFullError or OSError."""
        self._slots = slots
        self._capacity = capacity
        self._entries_at = HEADER_BYTES + slots * SLOT_BYTES
        self._file = MappedFile(path, 0, self._entries_at + capacity * ENTRY_BYTES, keep_fd=False)
        self._file.unsynced_parent_dirs = 1
        header: tuple[int, ...] = HEADER.unpack(self._file.pread(0, HEADER_BYTES))
        self.begin_timestamp, self.end_timestamp, self.begin_physical, self.end_physical = header[:4]
        self.slots_used, count = header[4:]
        self.count = max(count, 1)  # the number the next entry gets

    @property
    def path(self) -> Path:
        """The path; the file's name is the time of its creation."""
        return self._file.path

    @property
    def full(self) -> bool:
        """Whether the file has no space for another entry."""
        return self.count >= self._capacity

    def continue_from(self, physical: int, timestamp: int) -> None:
        """Sets the header of a new file to the end of the full file before it."""
        if physical > 0:
            self.begin_physical = self.end_physical = physical
        if timestamp > 0:
            self.begin_timestamp = self.end_timestamp = timestamp

    def put(self, entries: list[IndexEntry], start: int) -> int:
        """Adds entries from `start` on until the file is full, and returns the index of the first entry not
        added. After DiskFullError no entry is added.

        The header is written last, so a killed process leaves a file without its newest entries."""
        end = min(len(entries), start + self._capacity - self.count)
        if end <= start:
            return start
        at = self._entries_at + self.count * ENTRY_BYTES
        self._reserve(at + (end - start) * ENTRY_BYTES)
        if self.count == 1:
            # The seconds of a file's first entry count from the time in the previous header.
            at = self._put_first(entries[start], at)
            start += 1
        view = self._file.map
        size = end - start
        pack_entry = ENTRY_WITH_PACKED_NUMBER.pack
        slots = self._slots
        begin = self.begin_timestamp
        used = self.slots_used
        last = seconds = -1
        block: list[bytes] = []
        add = block.append
        newest: dict[int, int] = {}
        newest_of = newest.get
        # Slots are read and written as integers in the machine's byte order, which takes a third of the time
        # of slices. The numbers of the new entries are byte-swapped together.
        numbers = struct.unpack(f"={size}I", struct.pack(f">{size}I", *range(self.count, self.count + size)))
        with memoryview(view) as whole, whole[HEADER_BYTES : self._entries_at].cast("I") as slot_view:
            for (hashed, physical, timestamp), number in zip(entries[start:end], numbers, strict=True):
                if timestamp != last:
                    last = timestamp
                    seconds = min(max((timestamp - begin) // 1000, 0), _SECONDS_MAX) if begin > 0 else 0
                slot = hashed % slots
                before = newest_of(slot) or slot_view[slot]
                newest[slot] = number
                if before:
                    add(pack_entry(hashed, physical, seconds, before.to_bytes(4, sys.byteorder)))
                else:
                    used += 1
                    add(pack_entry(hashed, physical, seconds, _NO_ENTRY))
            # Whole entries first, then the slots that point to them, then the header: `undo_unfinished_put`
            # relies on this order.
            view[at : at + len(block) * ENTRY_BYTES] = b"".join(block)
            for slot, number in newest.items():
                slot_view[slot] = number
        if block:
            self.count += size
            self.slots_used = used
            _, self.end_physical, self.end_timestamp = entries[end - 1]
        self.store_header()
        return end

    def _put_first(self, entry: IndexEntry, at: int) -> int:
        hashed, physical, timestamp = entry
        slot = HEADER_BYTES + hashed % self._slots * SLOT_BYTES
        view = self._file.map
        seconds = 0
        if self.begin_timestamp > 0:
            seconds = min(max((timestamp - self.begin_timestamp) // 1000, 0), _SECONDS_MAX)
        view[at : at + ENTRY_BYTES] = ENTRY_WITH_PACKED_NUMBER.pack(hashed, physical, seconds, _NO_ENTRY)
        view[slot : slot + 4] = SLOT.pack(1)
        self.begin_physical = self.end_physical = physical
        self.begin_timestamp = self.end_timestamp = timestamp
        self.slots_used += 1
        self.count = 2
        return at + ENTRY_BYTES

    def undo_unfinished_put(self) -> None:
        """Repairs the slots after the process was killed inside `put` while the machine kept running. Slots
        may point to entries that the header does not count yet. Each is set back to the newest entry that the
        header counts; recovery enters the messages again. Entries are complete before a slot points to them,
        so each leads to its predecessor."""
        with self.path.open("rb") as file:  # by read calls, because mappings must not touch holes
            behind = self._entries_at + self.count * ENTRY_BYTES
            left = min(self._capacity - self.count, _PUT_MAX) * ENTRY_BYTES
            for hashed, physical, _, _ in ENTRY.iter_unpack(os.pread(file.fileno(), left, behind)):
                if not hashed and not physical:
                    return
                slot = HEADER_BYTES + hashed % self._slots * SLOT_BYTES
                newest = head = SLOT.unpack(os.pread(file.fileno(), SLOT_BYTES, slot))[0]
                while head >= self.count:
                    entry = os.pread(file.fileno(), ENTRY_BYTES, self._entries_at + head * ENTRY_BYTES)
                    older = ENTRY.unpack(entry)[3]
                    head = older if 0 < older < head else 0
                if head != newest:
                    SLOT.pack_into(self._file.map, slot, head)

    def find(
        self,
        hashed: int,
        begin: int,
        end: int,
        found: list[int],
        limit: int,
        residency: PageResidency | None = None,
    ) -> None:
        """Adds to `found`, up to `limit`, the physical offsets of the entries with this hash stored in
        [begin, end] (epoch ms, to the second), newest first."""
        view = self._file.map
        slot = HEADER_BYTES + hashed % self._slots * SLOT_BYTES
        if residency is not None:
            residency.require(self._file, slot, SLOT_BYTES)
        number: int = SLOT.unpack_from(view, slot)[0]
        if self.count <= 1:
            return
        while 0 < number <= self.count and len(found) < limit:
            if residency is not None:
                residency.require(self._file, self._entries_at + number * ENTRY_BYTES, ENTRY_BYTES)
            entry = ENTRY.unpack_from(view, self._entries_at + number * ENTRY_BYTES)
            entry_hash, physical, seconds, older = entry
            if seconds < 0:
                return
            timestamp = self.begin_timestamp + seconds * 1000
            if entry_hash == hashed and begin <= timestamp <= end:
                found.append(physical)
            # Along the chain of a slot entries get older. A damaged chain could be endless.
            if timestamp < begin or older >= number:
                return
            number = older

    def covers(self, begin: int, end: int) -> bool:
        """Whether the file may have messages stored in [begin, end]."""
        return begin <= self.end_timestamp and end >= self.begin_timestamp

    def store_header(self) -> None:
        """Writes the header into the mapping."""
        HEADER.pack_into(
            self._file.map,
            0,
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_physical,
            self.end_physical,
            self.slots_used,
            self.count,
        )

    def _reserve(self, end: int) -> None:
        file = self._file
        if end > file.reserved:
            wanted = min(-(-end // _RESERVE_BYTES) * _RESERVE_BYTES, file.size)
            file.reserve(wanted)

    def flush(self) -> None:
        """Syncs the file to disk; on any thread. Raises OSError."""
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def delete(self) -> None:
        """Closes and deletes the file."""
        self._file.delete()
