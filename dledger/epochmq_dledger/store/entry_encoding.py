# pure: bytes of entries
"""Encodes entries as data files hold them, with two checksums, for which DLedger has fields that it leaves 0.

`bodyCrc` is the CRC-32 of the body. `chainCrc` holds two numbers of 16 bits:

- The low half is the entry's lag: how many entries up to and including it were not durable when it was
  written. An entry with lag k at index i says that the entries up to i - k were synced. With it recovery
  tells a write that a power failure has torn from damage to durable entries (`damage_detection`). 65535
  stands for every larger lag.
- The high half is the low half of the CRC-32 of the header with this half zero. It reveals a flipped bit in
  index, term or channel.

DLedger and earlier releases write 0 in both fields; 0 is not checked.
"""

from __future__ import annotations

from collections.abc import Callable

from epochmq_formats.dledger_log import CHAIN_CHECK, CHAIN_CRC_AT, ENTRY_HEADER_SIZE, ENTRY_HEADER_UNSIGNED
from epochmq_protocol.checksum import crc32
from epochmq_protocol.dledger import ENTRY_MAGIC, DLedgerEntry

_pack_header = ENTRY_HEADER_UNSIGNED.pack_into
_pack_check = CHAIN_CHECK.pack_into
LAG_MAX = 0xFFFF

BodyCheck = Callable[[bytes, int, int, int], bool]
"""Called with (data, at, size, position): whether `size` bytes from `at` on are a whole body. `position` is
the position of the body in the log."""


def crc_of(body: bytes) -> int:
    """The CRC-32 as a signed 32-bit number."""
    crc = crc32(body)
    return crc - (1 << 32) if crc >= 1 << 31 else crc


class EntryEncoder:
    """Encodes the entries of one log. It reuses a buffer: use it on one thread at a time."""

    def __init__(self) -> None:
        self._head = bytearray(ENTRY_HEADER_SIZE)

    def encode(self, entry: DLedgerEntry, durable_index: int) -> bytearray:
        """The bytes of an entry that is written while entries up to `durable_index` are durable."""
        head, body, index = self._head, entry.body, entry.index
        lag = index - durable_index
        size = len(body)
        _pack_header(
            head,
            0,
            entry.magic,
            ENTRY_HEADER_SIZE + size,
            index,
            entry.term,
            entry.pos,
            entry.channel,
            lag if lag < LAG_MAX else LAG_MAX,
            crc32(body) if size else 0,
            size,
        )
        _pack_check(head, CHAIN_CRC_AT, crc32(head) & 0xFFFF)
        return head + body


def is_valid_header(head: bytes, pos: int, room: int) -> bool:
    """Whether these 48 bytes are the header of an entry that was written at byte `pos` and fits into `room`
    bytes."""
    if len(head) < ENTRY_HEADER_SIZE:
        return False
    magic, size, index, _, own_pos, _, chain, _, length = ENTRY_HEADER_UNSIGNED.unpack_from(head)
    if magic != ENTRY_MAGIC or own_pos != pos or length < 0 or index < 0:
        return False
    if size != ENTRY_HEADER_SIZE + length or size > room:
        return False
    if chain == 0:
        return True
    bare = head[:CHAIN_CRC_AT] + b"\0\0" + head[CHAIN_CRC_AT + CHAIN_CHECK.size : ENTRY_HEADER_SIZE]
    return bool(crc32(bare) & 0xFFFF == chain >> 16)


def durable_index_at_write(entry: DLedgerEntry) -> int | None:
    """The durable index of the log when this entry was written, None if the entry does not hold it."""
    lag = entry.chain_crc & LAG_MAX
    return None if lag in (0, LAG_MAX) else entry.index - lag
