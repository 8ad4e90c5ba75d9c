# pure: entries of index files to columns
"""Decodes the entries of an index file in compiled code, and follows its chains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba as nb
import numpy as np

from epochmq_formats.index_file import ENTRY_BYTES, HASH_AT, PHYSICAL_AT, PREVIOUS_AT, SECONDS_AT
from epochmq_spark.decode.memory_loads import big_i64, big_u32

Array = Any


@dataclass(frozen=True)
class IndexEntries:
    """A part of an index file, as columns. `seconds` are the seconds from the file's begin time to the store
    time. `broken` are the positions in this part of entries that do not point to the previous entry of their
    slot."""

    numbers: Array
    hashes: Array
    physical: Array
    seconds: Array
    previous: Array
    broken: Array


@nb.njit(nogil=True, cache=True)
def _follow(data: Any, first: int, newest: Any, columns: Any, broken: Any) -> None:
    """Sets the columns hash, physical offset, seconds and previous entry, and which entries do not point to
    the newest entry of their slot before them. `newest` has the number of that entry for each slot."""
    for number in range(columns.shape[1]):
        at = number * ENTRY_BYTES
        hashed = np.int64(np.int32(big_u32(data, at + HASH_AT)))
        previous = np.int64(np.int32(big_u32(data, at + PREVIOUS_AT)))
        columns[0, number], columns[1, number] = hashed, big_i64(data, at + PHYSICAL_AT)
        columns[2, number], columns[3, number] = np.int64(np.int32(big_u32(data, at + SECONDS_AT))), previous
        slot = abs(hashed) % len(newest)
        broken[number] = previous != newest[slot]
        newest[slot] = first + number


class IndexChains:
    """Follows the chains of an index file part by part. Needs four bytes for each slot, independent of the
    number of entries."""

    def __init__(self, slots: int) -> None:
        self._newest = np.zeros(slots, np.int32)

    def follow(self, first: int, data: Array) -> IndexEntries:
        """The next entries, the first of which has the number `first`."""
        count = len(data) // ENTRY_BYTES
        columns, broken = np.empty((4, count), np.int64), np.empty(count, np.bool_)
        _follow(data, first, self._newest, columns, broken)
        numbers = np.arange(first, first + count)
        hashes, physical, seconds, previous = columns
        return IndexEntries(numbers, hashes, physical, seconds, previous, np.flatnonzero(broken))

    def orphaned_heads(self, slots: Array) -> Array:
        """The numbers of the heads to which their slots do not point. `slots` are the numbers in the file's
        slots (big-endian int32)."""
        return np.sort(self._newest[(self._newest != slots) & (self._newest > 0)])
