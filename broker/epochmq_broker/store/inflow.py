"""What a replica receives: bytes of its master's log, put at the end of its own, and dispatched behind them.

Receiving and dispatching are apart, because dispatching costs a hundred times more a byte: the log grows as
fast as the network brings it, queues and index follow in short rounds, and only up to what is confirmed.
Bytes arrive in pieces that know nothing of records, so the log may end within one.
"""

from __future__ import annotations

from typing import Final

from epochmq_broker.store import record
from epochmq_broker.store.commit_log import CommitLog
from epochmq_broker.store.dispatch import Dispatcher
from epochmq_broker.store.mapped_file import MappedFile

ROUND_RECORDS: Final = 256


class Inflow:
    """The end of a replica's log. `end` is its offset."""

    __slots__ = ("_dispatcher", "_file", "_log")

    def __init__(self, log: CommitLog, dispatcher: Dispatcher) -> None:
        self._log = log
        self._dispatcher = dispatcher
        self._file: MappedFile | None = None

    @property
    def end(self) -> int:
        """Offset behind the last byte."""
        return self._log.max_offset

    def room(self, start: int, size: int) -> memoryview:
        """Where the next bytes of the log go: `size` of them or, at the end of a file, fewer. What is written
        there counts only when `received` says so. Raises ValueError when `start` is not the log's end,
        DiskFullError or OSError."""
        if self._log.max_offset == 0:
            self._dispatcher.position = start
        file = self._file = self._log.room_raw(start, size)
        at = file.wrote
        return memoryview(file.map)[at : min(at + size, file.size)]

    def received(self, count: int) -> None:
        """So many bytes were written into the last `room`."""
        assert self._file is not None
        self._file.wrote += count
        self._file = None

    def write(self, start: int, data: memoryview) -> None:
        """Appends bytes that are somewhere else. Raises as `room` does, and ValueError for bytes that cross
        the end of a file."""
        view = self.room(start, len(data))
        if len(view) < len(data):
            raise ValueError(f"{len(data)} bytes at {start} cross the end of a file")
        view[:] = data
        self.received(len(data))

    # Dispatch

    def begin(self) -> None:
        """The log stops being written here itself: all that was put is dispatched."""
        self._dispatcher.position = max(self._dispatcher.position, self._log.max_offset)

    @property
    def waiting(self) -> bool:
        """Whether the log ends behind what is dispatched."""
        return self._dispatcher.position < self._log.max_offset

    @property
    def dispatched(self) -> int:
        """Up to which offset records are in queues and index; within a blank record it may lie behind the
        end of the log."""
        return self._dispatcher.position

    def dispatch(self, limit: int, most: int = ROUND_RECORDS) -> bool:
        """Dispatches up to `most` records that end at or in front of `limit`; whether it stopped for having
        done so many. Raises DiskFullError or OSError."""
        return self._dispatcher.catch_up(limit, most) >= most

    # The end

    def sound_until(self, position: int, most: int) -> tuple[int, bool]:
        """Reads up to `most` records from `position` on, checksums too: where the first one that is not whole
        and sound begins, or how far it got; and whether the end of the log was reached that way."""
        log = self._log
        end = log.max_offset
        for _ in range(most):
            if position >= end:
                return min(position, end), True
            found = log.parse(position, (), check_crc=True)
            if isinstance(found, record.Dispatch):
                position += found.size
            elif found == record.BLANK:
                position = log.roll_next_file(position)
            else:
                return position, True
        return position, False

    def close_blank(self) -> None:
        """When the log ends within a blank record, it goes on at the next file, as the blank record says."""
        file = self._log.file
        if (
            file is not None
            and 0 < file.wrote < file.size
            and self._dispatcher.position >= file.start + file.size
        ):
            file.wrote = file.size
