# pure: bytes of the extensions of consume queues
"""Decodes the units of a consume queue's extension (ConsumeQueueExt).

A unit consists of its size (2 bytes), tag code (8), store time in epoch ms (8), size of the bit map (2) and
the bit map. Where the next unit does not fit into a file, −1 takes the place of its size. A consume queue has
the address of the unit, its offset − 2⁶³, in the place of a tag code."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

ADDRESS_ZERO: Final = -(1 << 63)
ADDRESS_MAX: Final = -(1 << 31) - 1
"""A tag code of this value or below is an address."""
HEAD: Final = struct.Struct(">hqqh")
END_MARK: Final = -1
UNIT_BYTES_MAX: Final = 0x7FFF


class StoredExtensionUnit(NamedTuple):
    """A unit; `bit_map` is empty if no filter was registered."""

    tags_code: int
    store_time: int
    bit_map: bytes


def decode_unit(data: bytes | memoryview) -> StoredExtensionUnit | None:
    """The unit at the beginning of the data; None where no unit was written. Raises ValueError if its sizes
    contradict each other or the data."""
    if len(data) < HEAD.size:
        raise ValueError(f"{len(data)} bytes are left, a unit has at least {HEAD.size}")
    size, tags_code, store_time, bit_map_size = HEAD.unpack_from(data)
    if size == 0:
        return None
    if size < HEAD.size or bit_map_size != size - HEAD.size:
        raise ValueError(f"it has {size} bytes with a bit map of {bit_map_size}")
    if size > len(data):
        raise ValueError(f"it has {size} bytes, {len(data)} are left")
    return StoredExtensionUnit(tags_code, store_time, bytes(data[HEAD.size : size]))
