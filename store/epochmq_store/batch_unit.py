"""The format of a unit of a batch consume queue (BatchConsumeQueue), and the properties of an inner batch
from which a unit is made.

A unit has 46 bytes, big endian: physical offset (8), size (4), tag code (8), store time (8), queue offset of
the first message (8), number of messages (2), compacted offset (4; always -1), reserved (4).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from epochmq_store.record import property_value
from epochmq_store.store_config import BATCH_UNIT_BYTES

UNIT: Final = struct.Struct(">qiqqqhii")
UNIT_BYTES: Final = BATCH_UNIT_BYTES
MESSAGES_MAX: Final = (1 << 15) - 1
"""Messages of one inner batch; the unit has two bytes for their number."""
NO_COMPACTED_OFFSET: Final = -1
DIGITS_MAX: Final = 19  # fewer digits always fit into eight bytes


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


class InnerBatch(NamedTuple):
    """Where the messages of an inner batch are in their queue."""

    base: int
    messages: int


def inner_batch_of(properties: bytes) -> InnerBatch | None:
    """The inner batch that stored properties describe by INNER_BASE and INNER_NUM (setBatchSizeIfNeeded).
    None for a record that is no inner batch, or whose numbers are not valid."""
    base = property_value(properties, b"INNER_BASE\x01") or b""
    count = property_value(properties, b"INNER_NUM\x01") or b""
    if not (base.isdigit() and count.isdigit() and len(base) < DIGITS_MAX and len(count) < DIGITS_MAX):
        return None
    found = InnerBatch(int(base), int(count))
    return found if 0 < found.messages <= MESSAGES_MAX else None
