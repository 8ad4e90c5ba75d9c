"""The format of a unit of a consume queue's extension (ConsumeQueueExt.CqExtUnit).

A unit consists of its size (2 bytes), tag code (8), store time in epoch ms (8), size of the bit map (2) and
the bit map. In the consume queue, the unit's address stands in the place of the tag code: its offset plus
−2⁶³. Units do not cross files; where the next one does not fit, −1 takes the place of its size.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from epochmq_formats.fields import struct_of

_FIELDS: Final = (("size", "h"), ("tags_code", "q"), ("store_timestamp", "q"), ("bit_map_size", "h"))
HEAD: Final = struct_of(_FIELDS)
SIZE: Final = struct_of(_FIELDS[:1])
UNIT_BYTES_MAX: Final = 0x7FFF
ADDRESS_ZERO: Final = -(1 << 63)
ADDRESS_MAX: Final = -(1 << 31) - 1
"""A tag code of this value or below is an address."""
END_SIZE: Final = -1
END_MARK: Final = SIZE.pack(END_SIZE)
END_MARK_SPACE: Final = 4
"""A file keeps so many bytes behind its last unit."""


class ExtensionUnit(NamedTuple):
    """The tag code and store time (epoch ms) of a message, and its filter bit map, empty if none was
    computed."""

    tags_code: int
    store_timestamp: int
    bit_map: bytes


def is_address(tags_code: int) -> bool:
    """Whether a tag code in a consume queue is the address of an extension unit."""
    return tags_code <= ADDRESS_MAX


def encode_unit(unit: ExtensionUnit) -> bytes:
    """The unit's bytes, which must not be more than UNIT_BYTES_MAX."""
    tags_code, store_timestamp, bit_map = unit
    return HEAD.pack(HEAD.size + len(bit_map), tags_code, store_timestamp, len(bit_map)) + bit_map


def decode_unit(data: bytes | memoryview) -> ExtensionUnit | None:
    """The unit at the beginning of the data; None where no unit was written. Raises ValueError if its sizes
    contradict each other or the data."""
    if len(data) < HEAD.size:
        raise ValueError(f"{len(data)} bytes are left, a unit has at least {HEAD.size}")
    size, tags_code, store_timestamp, bit_map_size = HEAD.unpack_from(data)
    if size == 0:
        return None
    if size < HEAD.size or bit_map_size != size - HEAD.size:
        raise ValueError(f"it has {size} bytes with a bit map of {bit_map_size}")
    if size > len(data):
        raise ValueError(f"it has {size} bytes, {len(data)} are left")
    return ExtensionUnit(tags_code, store_timestamp, bytes(data[HEAD.size : size]))
