"""The format of the timer log (TimerLog): a unit of 52 bytes for each message in the wheel, in files of one
size.

A unit names the previous unit of its slot. A unit never spans two files: if a unit and 16 more bytes do not
fit, the rest of the file is blank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from epochmq_formats.fields import struct_of
from epochmq_protocol.message_const import BLANK_MAGIC

FIELDS: Final = (
    ("bytes", "i"), ("previous", "q"), ("magic", "i"), ("write_time", "q"), ("delay", "i"),
    ("physical", "q"), ("size", "i"), ("topic_hash", "i"), ("reserved", "q"),
)  # fmt: skip
"""Size, position of the slot's previous unit, magic, write time, delay in ms, physical offset and size of the
record, hash code of the real topic, reserved."""
UNIT: Final = struct_of(FIELDS)
UNIT_BYTES: Final = 52
NO_UNIT: Final = -1
"""The position that stands for no unit."""

_BLANK: Final = struct_of(FIELDS[:3])
BLANK_BYTES: Final = _BLANK.size

MAGIC_DEFAULT: Final = 1
MAGIC_ROLL: Final = 2
"""The message is not due at this time; it is stored again with a new unit."""
MAGIC_DELETE: Final = 4
"""The message deletes another one."""
MAGIC_MAX: Final = 0xF


def encode_blank(rest: int) -> bytes:
    """What stands behind the last unit of a file, of which `rest` bytes are left."""
    return _BLANK.pack(rest, 0, BLANK_MAGIC)


def is_unit(fields: Sequence[int]) -> bool:
    """Whether the fields are those of a unit. A record has a size; a unit whose end was not written lacks
    it."""
    return fields[0] == UNIT_BYTES and not fields[2] & ~MAGIC_MAX and fields[6] > 0


def is_blank(fields: Sequence[int]) -> bool:
    """Whether the fields are those of the blank rest of a file."""
    return fields[2] == BLANK_MAGIC


def units_end(file_bytes: int) -> int:
    """The end of the last unit that fits into a file of this size."""
    return max(file_bytes - BLANK_BYTES, 0) // UNIT_BYTES * UNIT_BYTES
