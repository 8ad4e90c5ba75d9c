"""Defines the layout of a message record, in the commit log and in the body of a pull response
(MessageDecoder, MessageExtEncoder, CommitLog).

A record has a head, the body, the topic with its length (1 byte; 2 in a record with MAGIC_V2), and the
properties with their length (2 bytes). The fields of the head, with their positions if both hosts are IPv4:

    0 total size | 4 magic | 8 body CRC | 12 queue id | 16 flag | 20 queue offset(8) | 28 physical offset(8) |
    36 sysFlag | 40 born time(8) | 48 born host(8 or 20) | 56 store time(8) | 64 store host(8 or 20) |
    72 reconsume times | 76 prepared transaction offset(8) | 84 body length

A host is the address (4 or 16 bytes) and the port as a 4-byte number; two bits of sysFlag tell the sizes. The
positions and sizes are plain numbers, which compiled code takes, too.
"""

from __future__ import annotations

import struct
from itertools import accumulate
from typing import Final

from epochmq_protocol.message_const import BORNHOST_V6_FLAG, STOREHOSTADDRESS_V6_FLAG

HOST_BYTES: Final = 8
HOST_V6_BYTES: Final = 20
HOST_V6_EXTRA_BYTES: Final = HOST_V6_BYTES - HOST_BYTES
HOSTS_V6: Final = BORNHOST_V6_FLAG | STOREHOSTADDRESS_V6_FLAG


def _codes(born: int, store: int) -> list[str]:
    """The code of each field of a head with hosts of so many bytes."""
    return ["i"] * 5 + ["q", "q", "i", "q", f"{born}s", "q", f"{store}s", "i", "q", "i"]


def _bytes_of(code: str) -> int:
    return struct.calcsize(f">{code}")


(
    SIZE, MAGIC, BODY_CRC, QUEUE_ID, FLAG, QUEUE_OFFSET, PHYSICAL_OFFSET, SYS_FLAG, BORN_TIMESTAMP, BORN_HOST,
    STORE_TIMESTAMP, STORE_HOST, RECONSUME_TIMES, PREPARED_OFFSET, BODY_SIZE,
) = range(15)  # fmt: skip
"""The numbers of the fields."""

HEADS: Final = {
    (born, store): struct.Struct(">" + "".join(_codes(born, store)))
    for born in (HOST_BYTES, HOST_V6_BYTES)
    for store in (HOST_BYTES, HOST_V6_BYTES)
}
"""The struct of the head by the sizes of born host and store host."""
HEAD_V4: Final = HEADS[HOST_BYTES, HOST_BYTES]
HEADS_BY_FLAG: Final = {
    flag: HEADS[
        HOST_V6_BYTES if flag & BORNHOST_V6_FLAG else HOST_BYTES,
        HOST_V6_BYTES if flag & STOREHOSTADDRESS_V6_FLAG else HOST_BYTES,
    ]
    for flag in (0, BORNHOST_V6_FLAG, STOREHOSTADDRESS_V6_FLAG, HOSTS_V6)
}
"""The same by sysFlag & HOSTS_V6."""

(
    _, MAGIC_AT, BODY_CRC_AT, QUEUE_ID_AT, FLAG_AT, QUEUE_OFFSET_AT, PHYSICAL_OFFSET_AT, SYS_FLAG_AT,
    BORN_TIMESTAMP_AT, BORN_HOST_AT, STORE_TIMESTAMP_AT, STORE_HOST_AT, _, _, BODY_SIZE_AT, _,
) = accumulate(map(_bytes_of, _codes(HOST_BYTES, HOST_BYTES)), initial=0)  # fmt: skip
"""The positions of the fields up to the born host, and of the others with IPv4 hosts."""

HEAD_BYTES: Final = HEAD_V4.size
BODY_SIZE_BYTES: Final = HEAD_BYTES - BODY_SIZE_AT
RECORD_OVERHEAD: Final = HEAD_BYTES + 1 + 2
"""The bytes of a V1 record with IPv4 hosts, without body, topic and properties."""

CHECKED_HEAD: Final = struct.Struct(">iii16xqi44xi")
"""The fields of a head with IPv4 hosts that a copy is checked by: total size, magic, body CRC, physical
offset, sysFlag, body length. Half as expensive as all fields."""
assert CHECKED_HEAD.size == HEAD_BYTES

INT: Final = struct.Struct(">i")
"""One number of the head."""
LONG: Final = struct.Struct(">q")
LENGTH: Final = struct.Struct(">h")
"""The length of the properties, and of the topic of a V2 record."""
SIZE_AND_MAGIC: Final = struct.Struct(">" + "".join(_codes(HOST_BYTES, HOST_BYTES)[:2]))
"""The start of a record, and all of a blank record, whose size is the rest of its file."""
BLANK_BYTES: Final = SIZE_AND_MAGIC.size
"""Each file of the log keeps so much space at its end for a blank record."""


def fields_of_head(*chosen: int) -> struct.Struct:
    """The struct that unpacks the chosen fields of a head with IPv4 hosts and skips the others."""
    codes = _codes(HOST_BYTES, HOST_BYTES)
    parts = (code if field in chosen else f"{_bytes_of(code)}x" for field, code in enumerate(codes))
    return struct.Struct(">" + "".join(parts))
