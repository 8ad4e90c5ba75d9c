"""Defines the integers of the protocols: Java's `int` and `long`.

Every integer of a header or body is declared as `Int` or `Long`. Their decoders then reject a number that
Java cannot hold, before any code sees it.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

INT_MIN: Final = -(2**31)
INT_MAX: Final = 2**31 - 1
LONG_MIN: Final = -(2**63)
LONG_MAX: Final = 2**63 - 1

Int = Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX)]
"""Java's int: 32 bits, signed."""
Long = Annotated[int, msgspec.Meta(ge=LONG_MIN, le=LONG_MAX)]
"""Java's long: 64 bits, signed."""
