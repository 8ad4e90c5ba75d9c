"""The formats of the files beside a DLedger log: the truncation mark `cut` and `snapshot`, both our own, and
the checksum of `currterm` and `checkpoint`, a further property, which DLedger ignores and does not write.
Another one of `checkpoint` says that the peer has stopped in order, so that its log ended with `endIndex`.

The mark is the end of the log, and the CRC-32 of these eight bytes; zeros stand for no mark. A disk writes
their sector as a whole or not at all. A snapshot is:

    magic          19 bytes, b"epochmq snapshot 1\\n"
    header size    4, big-endian
    header CRC-32  4, big-endian
    header         JSON of `Snapshot`: the last entry that it covers, size and CRC-32 of the data, voters
    data           the state that the state machine saved
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from epochmq_formats.fields import struct_of
from epochmq_protocol import properties
from epochmq_protocol.checksum import crc32

_END: Final = (("end", "q"),)
_END_POSITION: Final = struct_of(_END)
_MARK: Final = struct_of((*_END, ("crc", "I")))
MARK_BYTES: Final = _MARK.size
NO_MARK: Final = bytes(MARK_BYTES)

SNAPSHOT_MAGIC: Final = b"epochmq snapshot 1\n"
_SIZE_AND_CRC: Final = struct_of((("size", "I"), ("crc", "I")))
SNAPSHOT_START_BYTES: Final = len(SNAPSHOT_MAGIC) + _SIZE_AND_CRC.size
SNAPSHOT_HEADER_BYTES_MAX: Final = 1 << 24

CHECKSUM_KEY: Final = "epochmqCrc32"
STOPPED_KEY: Final = "epochmqStopped"


def encode_properties(values: Mapping[str, str]) -> bytes:
    """The text of a properties file, and as its last property the CRC-32 of the bytes before that."""
    text = properties.format(values).encode()
    return text + b"%s=%08x\n" % (CHECKSUM_KEY.encode(), crc32(text))


def decode_properties(data: bytes) -> dict[str, str]:
    """The properties in a file, without their checksum. ValueError: no text, or of another checksum."""
    before, key, checksum = data.rpartition(CHECKSUM_KEY.encode())
    expected = b"=%08x\n" % crc32(before)
    if key and checksum != expected:
        raise ValueError(f"{CHECKSUM_KEY}{checksum.decode()!r}, expected {expected.decode()!r}")
    return properties.parse((before if key else data).decode())


def encode_mark(end_pos: int) -> bytes:
    """The mark of a log that ends at this position."""
    return _MARK.pack(end_pos, crc32(_END_POSITION.pack(end_pos)))


def decode_mark(data: bytes) -> int | None:
    """The end of the log in a mark; None if there is none, or a torn one."""
    end_pos, crc = _MARK.unpack(data)
    return end_pos if crc and crc == crc32(_END_POSITION.pack(end_pos)) else None


def encode_snapshot_header(header: bytes) -> bytes:
    """What stands before the data of a snapshot."""
    return SNAPSHOT_MAGIC + _SIZE_AND_CRC.pack(len(header), crc32(header)) + header


def decode_snapshot_start(start: bytes) -> tuple[int, int] | None:
    """Size and CRC-32 of the header, from the first bytes of a snapshot; None if they are no snapshot's."""
    if len(start) < SNAPSHOT_START_BYTES or not start.startswith(SNAPSHOT_MAGIC):
        return None
    size, crc = _SIZE_AND_CRC.unpack_from(start, len(SNAPSHOT_MAGIC))
    return size, crc
