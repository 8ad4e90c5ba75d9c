"""The format of a unit of a batch consume queue (BatchConsumeQueue), and of a compacted queue
(SparseConsumeQueue).

A unit has 46 bytes, big endian: physical offset (8), size (4), tag code (8), store time (8), queue offset of
the first message (8), number of messages (2), compacted offset (4; always -1), reserved (4).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from epochmq_formats.fields import struct_of

UNIT: Final = struct_of(
    (
        ("physical", "q"), ("size", "i"), ("tags_code", "q"), ("store_timestamp", "q"), ("base", "q"),
        ("messages", "h"), ("compacted_offset", "i"), ("reserved", "i"),
    )
)  # fmt: skip
UNIT_BYTES: Final = 46
MESSAGES_MAX: Final = (1 << 15) - 1
"""Messages of one inner batch; the unit has two bytes for their number."""
NO_COMPACTED_OFFSET: Final = -1


class BatchUnit(NamedTuple):
    """A unit: one record of the log, with the messages at queue offsets [base, base + messages)."""

    physical: int
    size: int
    tags_code: int
    store_timestamp: int  # epoch ms
    base: int
    messages: int
    compacted_offset: int = NO_COMPACTED_OFFSET
    reserved: int = 0

    @property
    def end(self) -> int:
        """Queue offset after the last message."""
        return self.base + self.messages

    def follows(self, last: BatchUnit | None) -> bool:
        """Whether this is a valid unit after `last`. Zeros, and units that an earlier truncation has left,
        are not."""
        if self.physical < 0 or self.size <= 0 or self.base < 0 or self.messages <= 0:
            return False
        return last is None or (self.physical > last.physical and self.base >= last.end)


END_UNIT: Final = UNIT.pack(-1, 0, 0, 0, 0, 0, NO_COMPACTED_OFFSET, 0)
"""Follows the last unit of a complete file of a compacted queue."""
