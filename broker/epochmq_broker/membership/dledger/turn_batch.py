"""Collects the records that a leader appends in one turn of the event loop, and predicts their positions.

The peer appends them together at the end of the turn, and nothing else within it, so each record's
position is known when it is encoded.
"""
# pure: values in, values out

from __future__ import annotations

from typing import Final

from epochmq_dledger.core.raft_log import next_pos
from epochmq_formats.dledger_log import ENTRY_HEADER_SIZE

BATCH_BYTES_MAX: Final = 16 << 20
"""Further records of the same turn are rejected."""


class TurnBatch:
    """The records of one turn. `end` is where the log ends with them."""

    __slots__ = ("_bytes", "_file_size", "end", "records", "start")

    def __init__(self, file_size: int) -> None:
        self._file_size = file_size
        self.start = self.end = 0
        self.records: list[bytes] = []
        self._bytes = 0

    def begin(self, end_pos: int) -> None:
        """Starts an empty batch after a log that ends at this position."""
        self.start = self.end = end_pos
        self.records = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the batch takes no further record."""
        return self._bytes >= BATCH_BYTES_MAX

    def place(self, size: int) -> int:
        """The physical offset that a record of this size gets: behind the header of its entry."""
        return next_pos(self.end, ENTRY_HEADER_SIZE + size, self._file_size) + ENTRY_HEADER_SIZE

    def add(self, physical: int, data: bytes) -> None:
        """Adds the record that `place` gave this physical offset."""
        self.records.append(data)
        self.end = physical + len(data)
        self._bytes += len(data)
