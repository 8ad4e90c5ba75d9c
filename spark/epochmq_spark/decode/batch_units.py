# pure: bytes of queue files with units of 46 bytes to tuples
"""Decodes the units of batch consume queues and of compacted queues (BatchConsumeQueue).

A unit has a physical offset (8 bytes), size (4), tag code (8), store time (8), queue offset (8), number of
messages (2) and two reserved fields (8)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

_UNIT: Final = struct.Struct(">qiqqqhii")
BATCH_UNIT_BYTES: Final = _UNIT.size


class StoredBatchUnit(NamedTuple):
    """A unit: a record with the messages at queue offsets [base, base + messages)."""

    physical: int
    size: int
    tags_code: int
    store_time: int
    base: int
    messages: int

    @property
    def end(self) -> int:
        """Queue offset after the last message."""
        return self.base + self.messages

    @property
    def is_used(self) -> bool:
        """Whether it is a unit, and neither zeros nor the mark behind the last unit of a file."""
        return self.physical >= 0 and self.size > 0 and self.base >= 0 and self.messages > 0


def decode_batch_units(data: bytes | memoryview) -> Iterator[StoredBatchUnit]:
    """All units in the data, used or not; an incomplete one at the end is left out."""
    whole = memoryview(data)[: len(data) - len(data) % BATCH_UNIT_BYTES]
    for fields in _UNIT.iter_unpack(whole):
        yield StoredBatchUnit(*fields[:6])
