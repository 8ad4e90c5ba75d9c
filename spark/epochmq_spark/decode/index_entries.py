# pure: bytes of index files to columns
"""Decodes the header and the entries of an index file (RocketMQ's `IndexFile`).

An index file is a hash table (`epochmq_formats.index_file`). The entries of a slot are a chain, whose head is
the newest entry.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from epochmq_formats.index_file import ENTRY_BYTES, ENTRY_FIELDS, HEADER, HEADER_BYTES, SLOT_BYTES
from epochmq_spark.decode.field_types import dtype_of

Array = Any

INDEX_ENTRY: Final = dtype_of(ENTRY_FIELDS)
FIRST_TIMED: Final = 2
"""The number of the first entry whose seconds count from the beginning of its file. Those of entry 1 count
from the end of the file before it (`IndexFile.putKey`)."""


def slot_count(size: int) -> int | None:
    """The number of slots of a file of this size, if it has four entries for each slot as RocketMQ's files
    do; None for other sizes."""
    slots, rest = divmod(size - HEADER_BYTES, SLOT_BYTES + 4 * ENTRY_BYTES)
    return slots if rest == 0 and slots > 0 else None


def index_header(data: Array) -> tuple[int, int, int]:
    """The physical offsets of the first and the last message in the index file, and the number of entries
    including entry 0, which is unused. All three are as the header says."""
    _, _, begin, end, _, count = HEADER.unpack(bytes(data[:HEADER_BYTES]))
    return begin, end, max(count, 1)


def entry_pairs(data: Array) -> tuple[Array, Array]:
    """The hashes of entries, and their physical offsets."""
    table = np.frombuffer(data, INDEX_ENTRY)
    return table["hash"].astype(np.int64), table["physical"].astype(np.int64)
