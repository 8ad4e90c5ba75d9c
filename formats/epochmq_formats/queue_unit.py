"""The format of a unit of a consume queue (ConsumeQueue): physical offset (8 bytes), size (4) and tag code
(8), big endian."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from epochmq_formats.fields import positions_of, struct_of

FIELDS: Final = (("physical", "q"), ("size", "i"), ("tags", "q"))
UNIT: Final = struct_of(FIELDS)
UNIT_BYTES: Final = 20
POSITION_AND_SIZE: Final = struct_of(FIELDS[:2])
PHYSICAL_AT, SIZE_AT, TAGS_AT = positions_of(FIELDS)
PRE_BLANK_SIZE: Final = 0x7FFF_FFFF
PRE_BLANK: Final = UNIT.pack(0, PRE_BLANK_SIZE, 0)
"""Fills the first file of a queue up to the place of its first message."""


@lru_cache(maxsize=64)
def positions_and_sizes(count: int) -> struct.Struct:
    """The struct that unpacks physical offset and size of `count` units and skips their tag codes."""
    return struct.Struct(">" + "qi8x" * count)
