# pure: bytes of consume queues to columns
"""Decodes the units of a consume queue in compiled code."""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from epochmq_formats.queue_unit import PHYSICAL_AT, PRE_BLANK_SIZE, SIZE_AT, TAGS_AT, UNIT_BYTES
from epochmq_spark.decode.memory_loads import big_i64, big_u32
from epochmq_spark.decode.queue_units import QueueUnits

Array = Any


@nb.njit(nogil=True, cache=True)
def _decode(data: Any, columns: Any) -> Any:
    """Sets the columns number, physical offset, size and tag code of the units with a message. Returns how
    many there are."""
    found = 0
    for number in range(columns.shape[1]):
        at = number * UNIT_BYTES
        size = np.int64(np.int32(big_u32(data, at + SIZE_AT)))
        physical = big_i64(data, at + PHYSICAL_AT)
        if size > 0 and not (size == PRE_BLANK_SIZE and physical == 0):
            columns[0, found], columns[1, found], columns[2, found] = number, physical, size
            columns[3, found] = big_i64(data, at + TAGS_AT)
            found += 1
    return found


def decode_units(data: Array, first: int) -> QueueUnits:
    """The units in `data`, whose first one has the queue offset `first`. Empty units are left out, as are
    those that fill a queue before its first message (size 2³¹−1), and an incomplete unit at the end."""
    columns = np.empty((4, len(data) // UNIT_BYTES), np.int64)
    found = _decode(data, columns)
    numbers, physical, sizes, tags = columns[:, :found]
    return QueueUnits(numbers + first, physical, sizes, tags)
