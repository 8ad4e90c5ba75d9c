"""Encodes the records that a leader appends for the group: the one with which its term begins, and those that
name the voters.

A leader commits only entries of its own term, so each term begins with an entry. RocketMQ's parser stops at
an empty entry, so this one is a record: of a transaction that was rolled back, which neither consume queues
nor the index take. A membership entry is such a record, too; the entry's channel marks it.
"""

from __future__ import annotations

from epochmq_protocol.checksum import CRC_MASK, crc32
from epochmq_protocol.dledger import decode_members_body, encode_members
from epochmq_protocol.errors import RemoteProtocolError
from epochmq_protocol.topics import RMQ_SYS_SELF_TEST_TOPIC
from epochmq_store import record

_TOPIC = RMQ_SYS_SELF_TEST_TOPIC.encode()
_PROPERTIES = b"WAIT\x01true\x02"


def encode_first_record(term: int, store_host: bytes, now_ms: int) -> bytes:
    """The first record of a term, with 0 in place of its physical offset."""
    return _encode(f"term {term}".encode(), store_host, now_ms)


def encode_members_record(peers: dict[str, str], store_host: bytes, now_ms: int) -> bytes:
    """The record that names the voters, address by id, with 0 in place of its physical offset."""
    return _encode(encode_members(peers), store_host, now_ms)


def decode_members_record(data: bytes) -> dict[str, str]:
    """The voters that a record names. RemoteProtocolError: malformed."""
    position = int.from_bytes(data[record.POSITION_AT : record.POSITION_AT + 8], "big")
    found = record.parse(data, 0, len(data), position, (), check_crc=True)
    if not isinstance(found, record.DispatchRequest):
        raise RemoteProtocolError(f"{len(data)} bytes, expected a record that names the voters")
    return decode_members_body(record.body_at(data, 0))


def _encode(body: bytes, store_host: bytes, now_ms: int) -> bytes:
    head = record.HEADS[len(store_host), len(store_host)]
    flags = record.TRANSACTION_ROLLBACK
    if len(store_host) == 20:
        flags |= record.BORN_HOST_V6 | record.STORE_HOST_V6
    size = head.size + len(body) + 1 + len(_TOPIC) + 2 + len(_PROPERTIES)
    packed = head.pack(
        size, record.MAGIC_V1, crc32(body) & CRC_MASK, 0, 0, 0, 0, flags, now_ms, store_host, now_ms,
        store_host, 0, 0, len(body),
    )  # fmt: skip
    lengths = bytes((len(_TOPIC),)), len(_PROPERTIES).to_bytes(2, "big")
    return b"".join((packed, body, lengths[0], _TOPIC, lengths[1], _PROPERTIES))
