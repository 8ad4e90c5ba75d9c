# pure: bytes of index files to columns
"""Decodes the header and the entries of an index file (RocketMQ's `IndexFile`), and checks its chains.

An index file is a hash table. Each entry belongs to a slot, by its hash. A slot points to its newest entry,
and each entry to the previous entry of its slot: these entries are a chain. The newest entry is the chain's
head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

Array = Any

INDEX_ENTRY: Final = np.dtype([("hash", ">i4"), ("physical", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
INDEX_HEADER_BYTES: Final = 40
INDEX_ENTRY_BYTES: Final = INDEX_ENTRY.itemsize


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


def slot_count(size: int) -> int | None:
    """The number of slots of a file of this size, if it has four entries for each slot as RocketMQ's files
    do; None for other sizes."""
    slots, rest = divmod(size - INDEX_HEADER_BYTES, 4 + 4 * INDEX_ENTRY_BYTES)
    return slots if rest == 0 and slots > 0 else None


def index_header(data: Array) -> tuple[int, int, int]:
    """The physical offsets of the first and the last message in the index file, and the number of entries
    including entry 0, which is unused. All three are as the header says."""
    begin, end = (int(x) for x in np.frombuffer(data[16:32], ">i8"))
    return begin, end, max(int(np.frombuffer(data[36:40], ">i4")[0]), 1)


def entry_pairs(data: Array) -> tuple[Array, Array]:
    """The hashes of entries, and their physical offsets."""
    table = np.frombuffer(data, INDEX_ENTRY)
    return table["hash"].astype(np.int64), table["physical"].astype(np.int64)


class IndexChains:
    """Follows the chains of an index file part by part. Needs four bytes for each slot, independent of the
    number of entries."""

    def __init__(self, slots: int) -> None:
        self._newest = np.zeros(slots, np.int32)

    def follow(self, first: int, data: Array) -> IndexEntries:
        """The next entries, the first of which has the number `first`."""
        table = np.frombuffer(data, INDEX_ENTRY)
        hashes = table["hash"].astype(np.int64)
        numbers = np.arange(first, first + len(table))
        slot = np.abs(hashes) % len(self._newest)
        expected = self._newest[slot].astype(np.int64)
        # Entries of one slot within this part: each has to point to the one before it.
        order = np.argsort(slot, kind="stable")
        after = np.flatnonzero(slot[order[1:]] == slot[order[:-1]])
        expected[order[after + 1]] = numbers[order[after]]
        self._newest[slot] = numbers  # numpy keeps the last value for equal slots
        previous = table["previous"].astype(np.int64)
        return IndexEntries(
            numbers,
            hashes,
            table["physical"].astype(np.int64),
            table["seconds"].astype(np.int64),
            previous,
            np.flatnonzero(previous != expected),
        )

    def orphaned_heads(self, slots: Array) -> Array:
        """The numbers of the heads to which their slots do not point. `slots` are the numbers in the file's
        slots (big-endian int32)."""
        return np.sort(self._newest[(self._newest != slots) & (self._newest > 0)])
