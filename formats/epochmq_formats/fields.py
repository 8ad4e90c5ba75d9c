"""Makes a struct and the positions of its fields from one table of names and codes, all big endian as Java
writes them. NumPy takes the same codes, so a table is also what a structured array is made from."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate

Fields = Sequence[tuple[str, str]]
"""Name and code of each field, as the module `struct` has codes: q 8 bytes, i 4, h 2, b 1."""


def struct_of(fields: Fields) -> struct.Struct:
    """The struct that packs and unpacks these fields."""
    return struct.Struct(">" + "".join(code for _, code in fields))


def positions_of(fields: Fields) -> Iterator[int]:
    """The position of each field in bytes. Compiled code takes these plain numbers."""
    return accumulate((struct.calcsize(f">{code}") for _, code in fields[:-1]), initial=0)
