# pure: bytes of entries
"""Encodes entries as they stand in data files, with the two checksums that DLedger has fields for and
leaves 0.

`bodyCrc` is the CRC-32 of the body. `chainCrc` holds two numbers of 16 bits:

- the low half is the entry's lag: how many entries before it, itself included, were not durable yet when it
  was written. So an entry with lag k at index i says that the entries up to i - k had been synced. Recovery
  needs that to tell a write that a power failure has torn from damage to what was durable before
  (`recovery`). 65535 stands for every lag that is not smaller.
- the high half is the low half of the CRC-32 of the header with the high half zero: a flipped bit in index,
  term or channel is noticed.

0 in either field, as DLedger and earlier releases write it, says nothing and is not checked.
"""

from __future__ import annotations

import struct
import zlib

from epochmq_protocol.dledger import ENTRY_HEADER_SIZE, ENTRY_MAGIC, DLedgerEntry

_HEADER = struct.Struct(">iiqqqiIii")
_CHECK_AT = 36
LAG_MAX = 0xFFFF


def crc_of(body: bytes) -> int:
    """CRC-32 as a signed 32-bit number."""
    crc = zlib.crc32(body)
    return crc - (1 << 32) if crc >= 1 << 31 else crc


def encode_marked(entry: DLedgerEntry, durable_index: int) -> bytes:
    """The entry's bytes in a data file whose entries up to `durable_index` are durable."""
    body = entry.body
    lag = min(max(entry.index - durable_index, 1), LAG_MAX)
    head = _HEADER.pack(
        entry.magic,
        ENTRY_HEADER_SIZE + len(body),
        entry.index,
        entry.term,
        entry.pos,
        entry.channel,
        lag,
        crc_of(body) if body else 0,
        len(body),
    )
    check = zlib.crc32(head) & 0xFFFF
    return b"".join((head[:_CHECK_AT], check.to_bytes(2, "big"), head[_CHECK_AT + 2 :], body))


def is_header(head: bytes, pos: int, room: int) -> bool:
    """Whether these 48 bytes are the header of a whole entry that was written at byte `pos` and fits into
    `room` bytes."""
    if len(head) < ENTRY_HEADER_SIZE:
        return False
    magic, size, index, _, own_pos, _, chain, _, length = _HEADER.unpack_from(head)
    if magic != ENTRY_MAGIC or own_pos != pos or length < 0 or index < 0:
        return False
    if size != ENTRY_HEADER_SIZE + length or size > room:
        return False
    if chain == 0:
        return True
    bare = head[:_CHECK_AT] + b"\0\0" + head[_CHECK_AT + 2 : ENTRY_HEADER_SIZE]
    return bool(zlib.crc32(bare) & 0xFFFF == chain >> 16)


def durable_before(entry: DLedgerEntry) -> int | None:
    """Up to which entry the log was durable when this one was written; None if it does not say."""
    lag = entry.chain_crc & LAG_MAX
    return None if lag in (0, LAG_MAX) else entry.index - lag
