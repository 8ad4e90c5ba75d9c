# pure: bytes of consume queues and index files to columns
"""Units of a consume queue, and entries of an index file (`ConsumeQueue`, `IndexFile`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

Array = Any

UNIT_BYTES: Final = 20
PRE_BLANK_SIZE: Final = 0x7FFF_FFFF
_UNIT = np.dtype([("physical", ">i8"), ("size", ">i4"), ("tags", ">i8")])
_ENTRY = np.dtype([("hash", ">i4"), ("physical", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
INDEX_HEADER_BYTES: Final = 40


@dataclass(frozen=True)
class Units:
    """Units that lead to a message; columns of one length."""

    offsets: Array
    physical: Array
    sizes: Array
    tags: Array


def units(data: Array, first: int) -> Units:
    """The units of a range, whose first one has the queue offset `first`. Empty ones, and those that fill a
    queue that began later (size 2³¹−1), are left out; so is what is left of a unit at the end."""
    table = np.frombuffer(data[: len(data) - len(data) % UNIT_BYTES], _UNIT)
    sizes = table["size"].astype(np.int64)
    used = np.flatnonzero((sizes > 0) & ~((sizes == PRE_BLANK_SIZE) & (table["physical"] == 0)))
    # Nearly always they are the first ones, and a slice costs less than a choice.
    dense = len(used) > 0 and used[-1] == len(used) - 1
    chosen: Any = slice(0, len(used)) if dense else used
    physical, tags = (table[name][chosen].astype(np.int64) for name in ("physical", "tags"))
    return Units(used + first, physical, sizes[chosen], tags)


@dataclass(frozen=True)
class IndexEntries:
    """An index file. `broken` are the numbers of entries that a search cannot reach as it should."""

    numbers: Array
    hashes: Array
    physical: Array
    seconds: Array
    previous: Array
    begin_physical: int
    end_physical: int
    broken: Array


def slots_of(size: int) -> int | None:
    """How many slots a file of this size has when it holds four entries for each, as RocketMQ's do."""
    slots, rest = divmod(size - INDEX_HEADER_BYTES, 4 + 4 * 20)
    return slots if rest == 0 and slots > 0 else None


def index_entries(data: Array, slots: int) -> IndexEntries:
    """The entries that the header counts. An entry leads to the one before it in its slot, the slot to the
    newest."""
    begin, end = (int(x) for x in np.frombuffer(data[16:32], ">i8"))
    count = max(int(np.frombuffer(data[36:40], ">i4")[0]), 1)
    at = INDEX_HEADER_BYTES + slots * 4
    count = min(count, (len(data) - at) // 20)
    table = np.frombuffer(data[at : at + count * 20], _ENTRY)[1:]
    hashes = table["hash"].astype(np.int64)
    numbers = np.arange(1, len(table) + 1)
    heads = np.frombuffer(data[INDEX_HEADER_BYTES:at], ">i4").astype(np.int64)
    slot = np.abs(hashes) % slots
    order = np.argsort(slot, kind="stable")
    expected = np.zeros(len(table), np.int64)
    if len(order) > 1:
        same = slot[order[1:]] == slot[order[:-1]]
        expected[order[1:]] = np.where(same, numbers[order[:-1]], 0)
    previous = table["previous"].astype(np.int64)
    newest = np.zeros(slots, np.int64)
    newest[slot[order]] = numbers[order]
    lost = np.flatnonzero((newest != heads) & (newest > 0))
    broken = np.union1d(numbers[previous != expected], newest[lost])
    return IndexEntries(
        numbers,
        hashes,
        table["physical"].astype(np.int64),
        table["seconds"].astype(np.int64),
        previous,
        begin,
        end,
        broken,
    )
