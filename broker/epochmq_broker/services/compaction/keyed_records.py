"""Takes from a record what its place in a compacted queue depends on: key, queue offset, tag code, store
time."""
# pure: bytes in, fields out

from __future__ import annotations

from typing import Final, NamedTuple

from epochmq_protocol.message_const import PROPERTY_KEYS, stored_name
from epochmq_store import record

_KEYS: Final = stored_name(PROPERTY_KEYS)


class KeyedRecord(NamedTuple):
    """A record with a key, as a log has it, and the fields of its unit."""

    data: bytes
    queue_offset: int
    tags_code: int
    store_timestamp: int  # epoch ms


def keyed_record(data: bytes, physical: int) -> KeyedRecord | None:
    """The record with this physical offset. None for bytes that are no whole record with a key; RocketMQ
    does not compact messages whose KEYS are blank."""
    found = record.parse(data, 0, len(data), physical, (), check_crc=False)
    if not isinstance(found, record.DispatchRequest) or found.size != len(data) or not is_key(found.keys):
        return None
    return KeyedRecord(data, found.queue_offset, found.tags_code, found.store_timestamp)


def is_key(keys: str | None) -> bool:
    """Whether a KEYS property is a key."""
    return keys is not None and bool(keys.strip())


def key_of(data: bytes) -> bytes:
    """The KEYS property of a record, empty without."""
    return record.property_value(record.properties_at(data, 0, len(data)), _KEYS) or b""


def has_body(data: bytes) -> bool:
    """Whether the body of a record has bytes. A message without deletes its key."""
    return record.body_size_at(data, 0) > 0
