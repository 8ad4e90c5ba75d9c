"""The format of `NAME.pending`, the newest content of a state file that is not synced yet; our own.

The file has two slots, which are written alternately. A slot starts with a header:

    magic       8 bytes, b"epmqpend"
    boot        36 bytes, the id of the boot in which the slot was written
    generation  8 bytes, big endian; the slot with the greater one is the newer
    size        4 bytes, big endian; 0: nothing is pending
    CRC-32      4 bytes, big endian, of boot, generation, size and content
"""

from __future__ import annotations

from typing import Final

from epochmq_formats.fields import struct_of
from epochmq_protocol.checksum import crc32

PENDING_SUFFIX: Final = ".pending"
SLOT_BYTES: Final = 64 << 20
"""The position of the second slot in the sparse file. Larger content is rejected."""

_MAGIC: Final = b"epmqpend"
_BOOT_BYTES: Final = 36
_COVERED_FIELDS: Final = (("boot", f"{_BOOT_BYTES}s"), ("generation", "q"), ("size", "i"))
_COVERED: Final = struct_of(_COVERED_FIELDS)
_HEADER: Final = struct_of((("magic", f"{len(_MAGIC)}s"), *_COVERED_FIELDS, ("crc", "I")))
HEADER_BYTES: Final = _HEADER.size


def boot_field(boot_id: str) -> bytes:
    """The id of a boot as slots have it."""
    return boot_id.encode()[:_BOOT_BYTES].ljust(_BOOT_BYTES)


def encode_slot(boot: bytes, generation: int, data: bytes) -> bytes:
    """The slot with this content; `boot` is a `boot_field`."""
    crc = crc32(data, crc32(_COVERED.pack(boot, generation, len(data))))
    return _HEADER.pack(_MAGIC, boot, generation, len(data), crc) + data


def decode_header(head: bytes, boot: bytes) -> tuple[int, int, int] | None:
    """(generation, size, CRC-32) in the header of a slot; None if no slot of this boot starts with it."""
    if len(head) < HEADER_BYTES:
        return None
    magic, written_in, generation, size, crc = _HEADER.unpack_from(head)
    if magic != _MAGIC or written_in != boot or not 0 <= size <= SLOT_BYTES - HEADER_BYTES:
        return None
    return generation, size, crc


def is_content(data: bytes, boot: bytes, generation: int, size: int, crc: int) -> bool:
    """Whether the data is the whole content of the slot with this header."""
    return len(data) == size and crc32(data, crc32(_COVERED.pack(boot, generation, size))) == crc
