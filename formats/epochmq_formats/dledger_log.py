"""The formats of the data files and index files of a DLedger log (DLedgerEntryCoder, DLedgerEntry,
DLedgerMmapFileStore). Peers also exchange blocks of a data file.

A data file holds entries: a header of 48 bytes, and the body. A filler closes it where the next entry does
not fit. An index file holds a unit of 32 bytes for each entry."""

from __future__ import annotations

from typing import Final

from epochmq_formats.fields import positions_of, struct_of
from epochmq_protocol.dledger import ENTRY_MAGIC, DLedgerEntry
from epochmq_protocol.errors import RemoteProtocolError

ENTRY_FIELDS: Final = (
    ("magic", "i"), ("size", "i"), ("index", "q"), ("term", "q"), ("position", "q"), ("channel", "i"),
    ("chain checksum", "i"), ("body checksum", "i"), ("body size", "i"),
)  # fmt: skip
ENTRY_HEADER: Final = struct_of(ENTRY_FIELDS)
ENTRY_HEADER_UNSIGNED: Final = struct_of(
    [(name, code.upper() if "checksum" in name else code) for name, code in ENTRY_FIELDS]
)
"""The same, with the checksums as numbers from 0 on."""
ENTRY_HEADER_START: Final = struct_of(ENTRY_FIELDS[:5])
"""Magic, size, index, term and position."""
ENTRY_HEADER_SIZE: Final = 48
"""Bytes before an entry's body: the 44-byte header and the 4-byte body length
(`DLedgerEntry.BODY_OFFSET`)."""
(
    _, ENTRY_SIZE_AT, ENTRY_INDEX_AT, ENTRY_TERM_AT, ENTRY_POSITION_AT, _, CHAIN_CRC_AT, _, BODY_SIZE_AT,
) = positions_of(ENTRY_FIELDS)  # fmt: skip
CHAIN_CHECK: Final = struct_of((("check", "H"),))
"""The high half of the chain checksum."""

FILLER: Final = struct_of(ENTRY_FIELDS[:2])
FILLER_MAGIC: Final = -1
"""Marks the unused rest of a data file; an int with its size in bytes follows."""
FILLER_SIZE_MIN: Final = 8

INDEX_FIELDS: Final = (("magic", "i"), ("position", "q"), ("size", "i"), ("index", "q"), ("term", "q"))
INDEX_UNIT: Final = struct_of(INDEX_FIELDS)
INDEX_UNIT_SIZE: Final = 32
_, INDEX_POSITION_AT, INDEX_SIZE_AT, _, _ = positions_of(INDEX_FIELDS)


def encode_entry(entry: DLedgerEntry) -> bytes:
    """The entry's bytes in a data file (`DLedgerEntryCoder.encode`)."""
    body = entry.body
    return (
        ENTRY_HEADER.pack(
            entry.magic,
            ENTRY_HEADER_SIZE + len(body),
            entry.index,
            entry.term,
            entry.pos,
            entry.channel,
            entry.chain_crc,
            entry.body_crc,
            len(body),
        )
        + body
    )


def decode_entry(data: bytes | memoryview, at: int = 0) -> DLedgerEntry:
    """The entry at byte `at` of `data`. RemoteProtocolError: incomplete or malformed."""
    if len(data) - at < ENTRY_HEADER_SIZE:
        raise RemoteProtocolError(
            f"entry header at {at}: {len(data) - at} bytes, expected {ENTRY_HEADER_SIZE}"
        )
    magic, size, index, term, pos, channel, chain_crc, body_crc, length = ENTRY_HEADER.unpack_from(data, at)
    if magic != ENTRY_MAGIC:
        raise RemoteProtocolError(f"entry magic at {at}: {magic}, expected {ENTRY_MAGIC}")
    if length < 0 or size != ENTRY_HEADER_SIZE + length or len(data) - at < size:
        raise RemoteProtocolError(
            f"entry at {at}: size {size}, body length {length}, but {len(data) - at} bytes"
        )
    body = bytes(data[at + ENTRY_HEADER_SIZE : at + size])
    return DLedgerEntry(index, term, pos, body, size, magic, channel, chain_crc, body_crc)


def encode_index_unit(entry: DLedgerEntry) -> bytes:
    """The entry's 32 bytes in an index file: magic, pos, size, index, term
    (`DLedgerEntryCoder.encodeIndex`)."""
    return INDEX_UNIT.pack(entry.magic, entry.pos, entry.size, entry.index, entry.term)


def decode_index_unit(data: bytes | memoryview, at: int = 0) -> tuple[int, int, int, int, int]:
    """(magic, pos, size, index, term) of the index unit at byte `at`."""
    if len(data) - at < INDEX_UNIT_SIZE:
        raise RemoteProtocolError(f"index unit at {at}: {len(data) - at} bytes, expected {INDEX_UNIT_SIZE}")
    magic, pos, size, index, term = INDEX_UNIT.unpack_from(data, at)
    return magic, pos, size, index, term
