"""Appends bytes of the master's log to a replica's log, and dispatches the complete records.

Appending and dispatching are separate, because a byte costs a hundred times more to dispatch. The log grows
at the speed of the network; queues and index follow in short rounds, up to the confirm offset. While the log
itself is behind the confirm offset, rounds are rare. Bytes arrive in pieces that ignore record boundaries, so
the log may end within a record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from epochmq_protocol import message_const as const
from epochmq_protocol import record_layout
from epochmq_store import record
from epochmq_store.appending.commit_log_dispatcher import CommitLogDispatcher
from epochmq_store.files.mapped_file import MappedFile
from epochmq_store.log.commit_log import CommitLog

DISPATCH_BATCH_RECORDS: Final = 256
BULK_BYTES: Final = 64 * 1024
"""From this size on `pwrite` is cheaper than a store into the mapping, whose new pages are zeroed first."""


class ReplicaLogWriter:
    """Writes at the end of a replica's log."""

    __slots__ = ("_dispatcher", "_log")

    def __init__(self, log: CommitLog, dispatcher: CommitLogDispatcher) -> None:
        self._log = log
        self._dispatcher = dispatcher

    @property
    def end(self) -> int:
        """Offset after the last byte."""
        return self._log.max_offset

    def writable_file(self, start: int, size: int) -> MappedFile:
        """The file for the next bytes of the log, with space for `size` of them or up to its end. Raises
        ValueError when `start` is not the log's end, DiskFullError or OSError."""
        if self._log.max_offset == 0:
            self._dispatcher.position = start
        return self._log.writable_file_at(start, size)

    def write(self, start: int, data: memoryview, *, more: bool = False) -> None:
        """Appends bytes; `more` says that many follow. Raises as `writable_file` does, and ValueError for
        bytes that cross the end of a file."""
        size = len(data)
        file = self.writable_file(start, size)
        at = file.wrote
        if at + size > file.size:
            raise ValueError(f"{size} bytes at {start} cross the end of a file")
        if size < BULK_BYTES and not more:
            file.map[at : at + size] = data
        else:
            file.write(at, data)
        file.wrote = at + size

    def splice(self, start: int, max_bytes: int, move: Callable[[int, int, int], int]) -> int:
        """Appends up to `max_bytes` bytes, which `move(descriptor, position in the file, max bytes)` puts
        into the file and whose number it returns. Returns that number. Raises as `writable_file` and `move`
        do."""
        file = self.writable_file(start, max_bytes)
        at = file.wrote
        count = move(file.fd, at, min(max_bytes, file.size - at))
        file.wrote = at + count
        return count

    # Dispatch

    def mark_all_dispatched(self) -> None:
        """Sets the dispatch position to the end of the log. Called when this broker stops being the master,
        because the append path has dispatched everything."""
        self._dispatcher.position = max(self._dispatcher.position, self._log.max_offset)

    @property
    def has_undispatched(self) -> bool:
        """Whether the log has bytes that are not dispatched."""
        return self._dispatcher.position < self._log.max_offset

    @property
    def undispatched_bytes(self) -> int:
        """Bytes of the log that are in no queue yet."""
        return max(self._log.max_offset - self._dispatcher.position, 0)

    @property
    def dispatched_offset(self) -> int:
        """The offset up to which records are in queues and index. If the log ends within a blank record, it
        may be greater than the end of the log."""
        return self._dispatcher.position

    @property
    def dispatched_records_end(self) -> int:
        """The end of the last record that is in queues and index. A blank record at the end of the last file
        does not count: it is written again after a restart."""
        return self._dispatcher.records_end

    def dispatch(self, limit: int, max_records: int = DISPATCH_BATCH_RECORDS) -> bool:
        """Dispatches up to `max_records` records that end at or before `limit`. True when that number was
        reached. Raises DiskFullError or OSError."""
        return self._dispatcher.catch_up(limit, max_records) >= max_records

    def is_damaged_before(self, limit: int) -> bool:
        """Whether a record before `limit` cannot be dispatched: it is neither whole nor a part of one."""
        position = self._dispatcher.position
        return position < min(limit, self._log.max_offset) and self.is_damaged_at(position)

    def is_damaged_at(self, position: int) -> bool:
        """Whether there is no record at this offset of the log, nor a part of one at the end of the log."""
        file = self._log.files.find(position)
        if file is None or position >= self._log.max_offset:
            return False
        if self._log.parse(position, (), check_crc=True) is not None:
            return False
        at = position - file.start
        left = file.wrote - at
        if left < record_layout.BLANK_BYTES:
            return False
        size, magic = record_layout.SIZE_AND_MAGIC.unpack_from(file.map, at)
        is_part = magic in (const.MAGIC_V1, const.MAGIC_V2) and left < size <= file.size - at
        if is_part and left >= record_layout.PHYSICAL_OFFSET_AT + record_layout.LONG.size:
            (physical,) = record_layout.LONG.unpack_from(file.map, at + record_layout.PHYSICAL_OFFSET_AT)
            is_part = physical == position
        return not is_part

    # The end

    def scan_valid_records(self, position: int, max_records: int) -> tuple[int, bool]:
        """Reads up to `max_records` records from `position` on and verifies their checksums. Returns the
        start of the first invalid record, or the end of the last record read, and whether the scan is
        complete: it has met an invalid record or the end of the log."""
        log = self._log
        end = log.max_offset
        for _ in range(max_records):
            if position >= end:
                return min(position, end), True
            found = log.parse(position, (), check_crc=True)
            if isinstance(found, record.DispatchRequest):
                position += found.size
            elif found == record.BLANK:
                position = log.roll_next_file(position)
            else:
                return position, True
        return position, False

    def complete_blank_record(self) -> None:
        """If the log ends within a blank record whose header has arrived, completes it: the log continues at
        the next file."""
        file = self._log.file
        if (
            file is not None
            and 0 < file.wrote < file.size
            and self._dispatcher.position >= file.start + file.size
        ):
            file.wrote = file.size
