# pure: columns of the units of a consume queue
"""The units of a consume queue (`ConsumeQueue`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from epochmq_formats import queue_unit
from epochmq_spark.decode.field_types import dtype_of

Array = Any

UNIT: Final = dtype_of(queue_unit.FIELDS)


@dataclass(frozen=True)
class QueueUnits:
    """Units that point to a message, as columns of equal length."""

    offsets: Array
    physical: Array
    sizes: Array
    tags: Array
