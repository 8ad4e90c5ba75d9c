# pure: bytes of index files to columns
"""Decodes the header and the entries of an index file (RocketMQ's `IndexFile`).

An index file is a hash table. Each entry belongs to a slot, by its hash. A slot points to its newest entry,
and each entry to the previous entry of its slot: these entries are a chain. The newest entry is the chain's
head.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

Array = Any

INDEX_ENTRY: Final = np.dtype([("hash", ">i4"), ("physical", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
INDEX_HEADER_BYTES: Final = 40
INDEX_ENTRY_BYTES: Final = INDEX_ENTRY.itemsize


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
