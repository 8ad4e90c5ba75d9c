# pure: bytes of DLedger's index files to columns
"""Decodes the units of an index file of DLedger, one for each entry of the log (`DLedgerEntryCoder`)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from epochmq_formats.dledger_log import INDEX_FIELDS, INDEX_UNIT_SIZE
from epochmq_protocol.dledger import ENTRY_MAGIC
from epochmq_spark.decode.field_types import dtype_of
from epochmq_spark.decode.queue_units import QueueUnits

ENTRY_UNIT: Final = dtype_of(INDEX_FIELDS)
NO_UNIT_SIZE: Final = -1
"""The size of a unit whose magic number is wrong, or that has the index of another entry."""


def decode_entry_units(data: Any, first: int) -> QueueUnits:
    """The units in `data`, whose first one belongs to the entry `first`: the index of their entries, and
    position, size and term of an entry as the columns `physical`, `sizes` and `tags`. Empty units are left
    out, as is an incomplete one at the end."""
    table = np.frombuffer(data[: len(data) - len(data) % INDEX_UNIT_SIZE], ENTRY_UNIT)
    used = np.flatnonzero((table["magic"] != 0) | (table["size"] != 0))
    chosen = table[used]
    sizes = chosen["size"].astype(np.int64)
    sizes[(chosen["magic"] != ENTRY_MAGIC) | (chosen["index"] != used + first)] = NO_UNIT_SIZE
    positions, terms = (chosen[name].astype(np.int64) for name in ("position", "term"))
    return QueueUnits(used + first, positions, sizes, terms)
