# pure: bytes of consume queues to columns
"""Decodes the units of a consume queue (`ConsumeQueue`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

Array = Any

UNIT_BYTES: Final = 20
PRE_BLANK_SIZE: Final = 0x7FFF_FFFF
UNIT: Final = np.dtype([("physical", ">i8"), ("size", ">i4"), ("tags", ">i8")])


@dataclass(frozen=True)
class QueueUnits:
    """Units that point to a message, as columns of equal length."""

    offsets: Array
    physical: Array
    sizes: Array
    tags: Array


def decode_units(data: Array, first: int) -> QueueUnits:
    """The units in `data`, whose first one has the queue offset `first`. Empty units are left out, as are
    those that fill a queue before its first message (size 2³¹−1), and an incomplete unit at the end."""
    table = np.frombuffer(data[: len(data) - len(data) % UNIT_BYTES], UNIT)
    sizes = table["size"].astype(np.int64)
    used = np.flatnonzero((sizes > 0) & ~((sizes == PRE_BLANK_SIZE) & (table["physical"] == 0)))
    # Nearly always the used units are the first ones, and a slice is cheaper than an index array.
    dense = len(used) > 0 and used[-1] == len(used) - 1
    chosen: Any = slice(0, len(used)) if dense else used
    physical, tags = (table[name][chosen].astype(np.int64) for name in ("physical", "tags"))
    return QueueUnits(used + first, physical, sizes[chosen], tags)
