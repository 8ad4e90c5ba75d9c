"""What a replica receives: bytes of its master's log, put at the end of its own, and dispatched behind them.

Receiving and dispatching are apart, because dispatching costs a hundred times more a byte: the log grows as
fast as the network brings it, queues and index follow in short rounds, and only up to what is confirmed.
While the log lacks what is confirmed already, the rounds are few. Bytes arrive in pieces that know nothing of
records, so the log may end within one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from epochmq_broker.store import record
from epochmq_broker.store.commit_log import CommitLog
from epochmq_broker.store.dispatch import Dispatcher
from epochmq_broker.store.mapped_file import MappedFile

ROUND_RECORDS: Final = 256
BULK_BYTES: Final = 64 * 1024
"""From here on a system call is cheaper than the pages that a store into the mapping would have to fill with
zeros first."""


class Inflow:
    """The end of a replica's log. `end` is its offset."""

    __slots__ = ("_dispatcher", "_log")

    def __init__(self, log: CommitLog, dispatcher: Dispatcher) -> None:
        self._log = log
        self._dispatcher = dispatcher

    @property
    def end(self) -> int:
        """Offset behind the last byte."""
        return self._log.max_offset

    def begin_at(self, start: int, size: int) -> MappedFile:
        """The file that takes the next bytes of the log, with space for `size` of them or up to its end.
        Raises ValueError when `start` is not the log's end, DiskFullError or OSError."""
        if self._log.max_offset == 0:
            self._dispatcher.position = start
        return self._log.room_raw(start, size)

    def write(self, start: int, data: memoryview, *, more: bool = False) -> None:
        """Appends bytes; `more`: they are part of much. Raises as `begin_at` does, and ValueError for bytes
        that cross the end of a file."""
        size = len(data)
        file = self.begin_at(start, size)
        at = file.wrote
        if at + size > file.size:
            raise ValueError(f"{size} bytes at {start} cross the end of a file")
        if size < BULK_BYTES and not more:
            file.map[at : at + size] = data
        else:
            file.write(at, data)
        file.wrote = at + size

    def take(self, start: int, most: int, move: Callable[[int, int, int], int]) -> int:
        """Appends up to `most` bytes that `move` puts into a file: it is told the descriptor, the position in
        the file, and how many at most, and says how many it put there. Raises as `begin_at` and `move`
        do."""
        file = self.begin_at(start, most)
        at = file.wrote
        count = move(file.fd, at, min(most, file.size - at))
        file.wrote = at + count
        return count

    # Dispatch

    def begin(self) -> None:
        """The log stops being written here itself: all that was put is dispatched."""
        self._dispatcher.position = max(self._dispatcher.position, self._log.max_offset)

    @property
    def waiting(self) -> bool:
        """Whether the log ends behind what is dispatched."""
        return self._dispatcher.position < self._log.max_offset

    @property
    def behind(self) -> int:
        """Bytes of the log that are in no queue yet."""
        return max(self._log.max_offset - self._dispatcher.position, 0)

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
