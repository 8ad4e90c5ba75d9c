"""Keeps the extension of one consume queue: a unit of variable size for each message, with its tag code, its
store time and a filter bit map (ConsumeQueueExt).

A unit consists of its size (2 bytes), tag code (8), store time in epoch ms (8), size of the bit map (2) and
the bit map. In the consume queue, the unit's address stands in the place of the tag code: its offset plus
−2⁶³. Units do not cross files; where the next one does not fit, −1 takes the place of its size. As in
RocketMQ, an extension may lack units after a crash; readers then do without.

New units are in memory first, and are written as those of consume queues are (`pending_units`).
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import ClassVar, Final

from epochmq_store.extension_unit import ExtensionUnit
from epochmq_store.mapped_file import QueueMemoryFullError
from epochmq_store.page_residency import PageResidency
from epochmq_store.pending_units import WRITE_THRESHOLD_BYTES, PendingUnits
from epochmq_store.queue_files import MappingCache, QueueFile, QueueFiles

ADDRESS_MAX: Final = -(1 << 31) - 1
"""A tag code of this value or below is an address."""
_ADDRESS_ZERO: Final = -(1 << 63)
_HEAD: Final = struct.Struct(">hqqh")
_SIZE: Final = struct.Struct(">h")
_END_MARK: Final = _SIZE.pack(-1)
_END_MARK_SPACE: Final = 4
UNIT_MAX: Final = 0x7FFF


def is_address(tags_code: int) -> bool:
    """Whether a tag code in a consume queue is the address of an extension unit."""
    return tags_code <= ADDRESS_MAX


class QueueExtension:
    """The extension of one queue. It registers its unwritten units with `pending`."""

    blank_unit: ClassVar[bytes] = b"\0"
    max_physical = -1  # an extension says nothing about the log

    __slots__ = ("_buffer", "_buffer_start", "files", "pending")

    def __init__(
        self, directory: Path, file_size: int, pending: PendingUnits, mappings: MappingCache, *, load: bool
    ) -> None:
        """`directory` is that of this queue. `load` finds the existing files; `recover` must follow."""
        self.pending = pending
        self.files = QueueFiles(directory, file_size, mappings)
        self._buffer = bytearray()
        self._buffer_start = 0  # the offset of the first byte that the files lack
        if load:
            self.files.load()

    @property
    def end(self) -> int:
        """The offset of the next unit."""
        return self._buffer_start + len(self._buffer)

    # Writing

    def put(self, tags_code: int, store_timestamp: int, bit_map: bytes) -> int:
        """Adds a unit, and returns what the consume queue gets in place of the tag code: the unit's address,
        or the tag code itself if the unit cannot be stored."""
        size = _HEAD.size + len(bit_map)
        if size > UNIT_MAX:
            return tags_code
        file_size = self.files.file_size
        left = file_size - self.end % file_size
        padding = b"" if size + _END_MARK_SPACE <= left else _END_MARK.ljust(left, b"\0")
        try:
            self.pending.reserve_memory(len(padding) + size)
        except (QueueMemoryFullError, OSError):
            return tags_code
        address = self.end + len(padding) + _ADDRESS_ZERO
        self._buffer += padding
        self._buffer += _HEAD.pack(size, tags_code, store_timestamp, len(bit_map))
        self._buffer += bit_map
        self.pending.waiting.setdefault(self)
        if len(self._buffer) >= WRITE_THRESHOLD_BYTES:
            self.pending.due.setdefault(self)
        return address

    def unwritten(self) -> tuple[QueueFiles, int, bytes]:
        """The files, the start offset and a copy of the bytes that the files lack. `mark_written` must
        follow."""
        return self.files, self._buffer_start, bytes(self._buffer)

    def mark_written(self) -> None:
        """Notes that bytes were written into the files."""
        files = self.files.files
        written = (files[-1].end if files else self._buffer_start) - self._buffer_start
        del self._buffer[:written]
        self._buffer_start += written
        self.pending.free_memory(written)
        if not self._buffer:
            self.pending.mark_queue_written(self)
        else:
            self.pending.due.pop(self, None)

    def newest_record(self) -> int:
        """An extension says nothing about the log."""
        return -1

    # Reading

    def get(self, address: int) -> ExtensionUnit | None:
        """The unit at an address, None if it is lost."""
        offset = address - _ADDRESS_ZERO
        if offset >= self._buffer_start:
            return _unit_in(self._buffer, offset - self._buffer_start)
        file = self.files.find(offset)
        if file is None or offset + _HEAD.size > file.end:
            return None
        head = file.map[offset - file.start : offset - file.start + _HEAD.size]
        found = _unit_in(head + bytes(max(_HEAD.unpack(head)[3], 0)), 0)
        if found is None or not found.bit_map:
            return found
        at = offset - file.start + _HEAD.size
        return found._replace(bit_map=file.map[at : at + len(found.bit_map)])

    def require_resident(self, residency: PageResidency, addresses: list[int]) -> None:
        """Raises NotResidentError unless the units between the first and the last of these addresses, which
        rise, are in memory."""
        if not addresses:
            return
        first, last = addresses[0] - _ADDRESS_ZERO, addresses[-1] - _ADDRESS_ZERO
        while first <= last and first < self._buffer_start:
            file = self.files.find(first)
            if file is None:
                return
            until = min(last + UNIT_MAX, file.end)
            if until > first:
                residency.require(file, first - file.start, until - first)
            first = file.start + file.size

    # Recovery, truncation, expiry

    def recover(self, last_address: int | None) -> None:
        """Ends the extension behind the unit at the newest address in the consume queue. Raises OSError."""
        if last_address is None:
            self.destroy()
            return
        offset = last_address - _ADDRESS_ZERO
        file = self.files.find(offset)
        if file is None:
            # The unit is lost. The next one must not get an address that the consume queue has already.
            self.destroy()
            self._buffer_start = offset - offset % self.files.file_size + self.files.file_size
            return
        size = _SIZE.unpack(file.pread(offset - file.start, _SIZE.size))[0]
        end = min(offset + max(size, _HEAD.size), file.start + file.size)
        self.files.truncate(end)
        self._drop_buffer(end)

    def truncate(self, last_address: int | None) -> None:
        """Removes the units behind the one at `last_address`; all without one. Raises OSError."""
        if last_address is not None and last_address - _ADDRESS_ZERO >= self._buffer_start:
            unit = self.get(last_address)
            if unit is not None:
                end = last_address - _ADDRESS_ZERO + _HEAD.size + len(unit.bit_map)
                removed = self.end - end
                del self._buffer[end - self._buffer_start :]
                self.pending.free_memory(removed)
                return
        self._drop_buffer(self._buffer_start)
        self.recover(last_address)

    def take_expired(self, first_address: int) -> list[QueueFile]:
        """Removes the files whose units all lie before this address, and returns them for the caller to
        delete."""
        offset = first_address - _ADDRESS_ZERO
        taken = []
        files = self.files.files
        while len(files) > 1 and files[0].start + files[0].size <= offset:
            taken.append(files.pop(0))
        return taken

    def destroy(self) -> None:
        """Removes all units; the files are deleted soon. The next unit has the offset 0."""
        self._drop_buffer(0)
        old = self.files
        if old.files:
            self.files = QueueFiles(old.directory, old.file_size, old.mappings)
            self.pending.delete_files(old)

    def _drop_buffer(self, start: int) -> None:
        self.pending.mark_queue_written(self)
        self.pending.free_memory(len(self._buffer))
        self._buffer = bytearray()
        self._buffer_start = start

    def close(self) -> None:
        """Frees memory and mappings. The caller has written the units before."""
        self._drop_buffer(self._buffer_start)
        self.files.close()


def _unit_in(data: bytes | bytearray, at: int) -> ExtensionUnit | None:
    if at + _HEAD.size > len(data):
        return None
    size, tags_code, store_timestamp, bit_map_size = _HEAD.unpack_from(data, at)
    if size < _HEAD.size:
        return None
    start = at + _HEAD.size
    return ExtensionUnit(tags_code, store_timestamp, bytes(data[start : start + max(bit_map_size, 0)]))
