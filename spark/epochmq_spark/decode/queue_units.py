# pure: bytes of consume queues and index files to columns
"""Units of a consume queue, and entries of an index file (`ConsumeQueue`, `IndexFile`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

Array = Any

UNIT_BYTES: Final = 20
PRE_BLANK_SIZE: Final = 0x7FFF_FFFF
UNIT: Final = np.dtype([("physical", ">i8"), ("size", ">i4"), ("tags", ">i8")])
INDEX_ENTRY: Final = np.dtype([("hash", ">i4"), ("physical", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
INDEX_HEADER_BYTES: Final = 40
INDEX_ENTRY_BYTES: Final = INDEX_ENTRY.itemsize


@dataclass(frozen=True)
class QueueUnits:
    """Units that lead to a message; columns of one length."""

    offsets: Array
    physical: Array
    sizes: Array
    tags: Array


def units(data: Array, first: int) -> QueueUnits:
    """The units of a range, whose first one has the queue offset `first`. Empty ones, and those that fill a
    queue that began later (size 2³¹−1), are left out; so is what is left of a unit at the end."""
    table = np.frombuffer(data[: len(data) - len(data) % UNIT_BYTES], UNIT)
    sizes = table["size"].astype(np.int64)
    used = np.flatnonzero((sizes > 0) & ~((sizes == PRE_BLANK_SIZE) & (table["physical"] == 0)))
    # Nearly always they are the first ones, and a slice costs less than a choice.
    dense = len(used) > 0 and used[-1] == len(used) - 1
    chosen: Any = slice(0, len(used)) if dense else used
    physical, tags = (table[name][chosen].astype(np.int64) for name in ("physical", "tags"))
    return QueueUnits(used + first, physical, sizes[chosen], tags)


@dataclass(frozen=True)
class IndexEntries:
    """A part of an index file. `broken` are the places in it of entries that do not lead to the one before
    them in their slot."""

    numbers: Array
    hashes: Array
    physical: Array
    seconds: Array
    previous: Array
    broken: Array


def slot_count(size: int) -> int | None:
    """How many slots a file of this size has when it holds four entries for each, as RocketMQ's do."""
    slots, rest = divmod(size - INDEX_HEADER_BYTES, 4 + 4 * INDEX_ENTRY_BYTES)
    return slots if rest == 0 and slots > 0 else None


def index_header(data: Array) -> tuple[int, int, int]:
    """First and last physical offset that an index file says it covers, and the number of its entries with
    entry 0, which is none."""
    begin, end = (int(x) for x in np.frombuffer(data[16:32], ">i8"))
    return begin, end, max(int(np.frombuffer(data[36:40], ">i4")[0]), 1)


def entry_pairs(data: Array) -> tuple[Array, Array]:
    """Hashes and physical offsets of entries."""
    table = np.frombuffer(data, INDEX_ENTRY)
    return table["hash"].astype(np.int64), table["physical"].astype(np.int64)


class IndexChains:
    """Follows the entries of an index file, part by part: each leads to the one before it in its slot, the
    slot to the newest. Takes four bytes a slot, however many entries there are."""

    def __init__(self, slots: int) -> None:
        self._newest = np.zeros(slots, np.int32)

    def take(self, first: int, data: Array) -> IndexEntries:
        """The next entries, from the number `first` on."""
        table = np.frombuffer(data, INDEX_ENTRY)
        hashes = table["hash"].astype(np.int64)
        numbers = np.arange(first, first + len(table))
        slot = np.abs(hashes) % len(self._newest)
        expected = self._newest[slot].astype(np.int64)
        order = np.argsort(slot, kind="stable")
        after = np.flatnonzero(slot[order[1:]] == slot[order[:-1]])
        expected[order[after + 1]] = numbers[order[after]]
        self._newest[slot] = numbers  # where slots are equal the last one stays
        previous = table["previous"].astype(np.int64)
        return IndexEntries(
            numbers,
            hashes,
            table["physical"].astype(np.int64),
            table["seconds"].astype(np.int64),
            previous,
            np.flatnonzero(previous != expected),
        )

    def lost(self, heads: Array) -> Array:
        """Numbers of the newest entries to which their slots (big-endian int32) do not lead."""
        return np.sort(self._newest[(self._newest != heads) & (self._newest > 0)])
