# pure: the format of the units of a consume queue
"""The units of a consume queue (`ConsumeQueue`)."""

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
