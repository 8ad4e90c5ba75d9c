"""Keeps the extension of one consume queue: a unit of variable size for each message, with its tag code, its
store time and a filter bit map (ConsumeQueueExt).

`epochmq_formats.extension_unit` defines the format. As in RocketMQ, an extension may lack units after a
crash; readers then do without.

New units are in memory first, and are written as those of consume queues are (`pending_units`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from epochmq_formats.extension_unit import (
    ADDRESS_ZERO,
    END_MARK,
    END_MARK_SPACE,
    HEAD,
    SIZE,
    UNIT_BYTES_MAX,
    ExtensionUnit,
    encode_unit,
)
from epochmq_store.files.mapped_file import QueueMemoryFullError
from epochmq_store.files.page_residency import PageResidency
from epochmq_store.files.queue_files import MappingCache, QueueFile, QueueFiles
from epochmq_store.queues.pending_units import WRITE_THRESHOLD_BYTES, PendingUnits

BitMapOf = Callable[[str, bytes], bytes]
"""The filter bit map of a message from its topic and stored properties; empty without one."""


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
        size = HEAD.size + len(bit_map)
        if size > UNIT_BYTES_MAX:
            return tags_code
        file_size = self.files.file_size
        left = file_size - self.end % file_size
        padding = b"" if size + END_MARK_SPACE <= left else END_MARK.ljust(left, b"\0")
        try:
            self.pending.reserve_memory(len(padding) + size)
        except (QueueMemoryFullError, OSError):
            return tags_code
        address = self.end + len(padding) + ADDRESS_ZERO
        self._buffer += padding
        self._buffer += encode_unit(ExtensionUnit(tags_code, store_timestamp, bit_map))
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
        offset = address - ADDRESS_ZERO
        if offset >= self._buffer_start:
            return _unit_in(self._buffer, offset - self._buffer_start)
        file = self.files.find(offset)
        if file is None or offset + HEAD.size > file.end:
            return None
        head = file.map[offset - file.start : offset - file.start + HEAD.size]
        found = _unit_in(head + bytes(max(HEAD.unpack(head)[3], 0)), 0)
        if found is None or not found.bit_map:
            return found
        at = offset - file.start + HEAD.size
        return found._replace(bit_map=file.map[at : at + len(found.bit_map)])

    def require_resident(self, residency: PageResidency, addresses: list[int]) -> None:
        """Raises NotResidentError unless the units between the first and the last of these addresses, which
        rise, are in memory."""
        if not addresses:
            return
        first, last = addresses[0] - ADDRESS_ZERO, addresses[-1] - ADDRESS_ZERO
        while first <= last and first < self._buffer_start:
            file = self.files.find(first)
            if file is None:
                return
            until = min(last + UNIT_BYTES_MAX, file.end)
            if until > first:
                residency.require(file, first - file.start, until - first)
            first = file.start + file.size

    # Recovery, truncation, expiry

    def recover(self, last_address: int | None) -> None:
        """Ends the extension behind the unit at the newest address in the consume queue. Raises OSError."""
        if last_address is None:
            self.destroy()
            return
        offset = last_address - ADDRESS_ZERO
        file = self.files.find(offset)
        if file is None:
            # The unit is lost. The next one must not get an address that the consume queue has already.
            self.destroy()
            self._buffer_start = offset - offset % self.files.file_size + self.files.file_size
            return
        size = SIZE.unpack(file.pread(offset - file.start, SIZE.size))[0]
        end = min(offset + max(size, HEAD.size), file.start + file.size)
        self.files.truncate(end)
        self._drop_buffer(end)

    def truncate(self, last_address: int | None) -> None:
        """Removes the units behind the one at `last_address`; all without one. Raises OSError."""
        if last_address is not None and last_address - ADDRESS_ZERO >= self._buffer_start:
            unit = self.get(last_address)
            if unit is not None:
                end = last_address - ADDRESS_ZERO + HEAD.size + len(unit.bit_map)
                removed = self.end - end
                del self._buffer[end - self._buffer_start :]
                self.pending.free_memory(removed)
                return
        self._drop_buffer(self._buffer_start)
        self.recover(last_address)

    def take_expired(self, first_address: int) -> list[QueueFile]:
        """Removes the files whose units all lie before this address, and returns them for the caller to
        delete."""
        offset = first_address - ADDRESS_ZERO
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
    if at + HEAD.size > len(data):
        return None
    size, tags_code, store_timestamp, bit_map_size = HEAD.unpack_from(data, at)
    if size < HEAD.size:
        return None
    start = at + HEAD.size
    return ExtensionUnit(tags_code, store_timestamp, bytes(data[start : start + max(bit_map_size, 0)]))
