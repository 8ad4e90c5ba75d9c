"""Encodes the records that a leader appends for the group: the one with which its term begins, and those that
name the voters.

A leader commits only entries of its own term, so each term begins with an entry. RocketMQ's parser stops at
an empty entry, so this one is a record: of a transaction that was rolled back, which neither consume queues
nor the index take. A membership entry is such a record, too; the entry's channel marks it.
"""

from __future__ import annotations

from epochmq_protocol.dledger import decode_members_body, encode_members
from epochmq_protocol.errors import RemoteProtocolError
from epochmq_protocol.message import MessageExt, encode_record, format_properties
from epochmq_protocol.message_const import PROPERTY_WAIT_STORE_MSG_OK, TRANSACTION_ROLLBACK_TYPE
from epochmq_protocol.record_layout import PHYSICAL_OFFSET_AT, SYS_FLAG_AT
from epochmq_protocol.topics import RMQ_SYS_SELF_TEST_TOPIC
from epochmq_store import record

_PROPERTIES = format_properties({PROPERTY_WAIT_STORE_MSG_OK: "true"})


def encode_first_record(term: int, store_host: bytes, now_ms: int) -> bytes:
    """The first record of a term, with 0 in place of its physical offset."""
    return _encode(f"term {term}".encode(), store_host, now_ms)


def encode_members_record(peers: dict[str, str], store_host: bytes, now_ms: int) -> bytes:
    """The record that names the voters, address by id, with 0 in place of its physical offset."""
    return _encode(encode_members(peers), store_host, now_ms)


def decode_members_record(data: bytes) -> dict[str, str]:
    """The voters that a record names. RemoteProtocolError: malformed."""
    position = int.from_bytes(data[PHYSICAL_OFFSET_AT:SYS_FLAG_AT], "big")
    found = record.parse(data, 0, len(data), position, (), check_crc=True)
    if not isinstance(found, record.DispatchRequest):
        raise RemoteProtocolError(f"{len(data)} bytes, expected a record that names the voters")
    return decode_members_body(record.body_at(data, 0))


def _encode(body: bytes, store_host: bytes, now_ms: int) -> bytes:
    return encode_record(
        MessageExt(
            RMQ_SYS_SELF_TEST_TOPIC,
            body,
            _PROPERTIES,
            sys_flag=TRANSACTION_ROLLBACK_TYPE,
            born_timestamp=now_ms,
            born_host=store_host,
            store_timestamp=now_ms,
            store_host=store_host,
        )
    )
