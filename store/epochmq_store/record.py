"""Parses records of the commit log for dispatch and recovery (CommitLog.checkMessageAndReturnSize).

The append path and the parser derive the fields of consume queue and index by the same functions
(`delay_tags_code`, `keys_of`), so both write the same bytes.
"""
# pure: bytes in, fields out

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from epochmq_protocol import javahash
from epochmq_protocol.checksum import CRC_MASK, crc32
from epochmq_protocol.message import crc_property
from epochmq_protocol.message_const import (
    BLANK_MAGIC,
    BORNHOST_V6_FLAG,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTY_CRC32,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    TOPIC_BYTES_MAX_V1,
    TRANSACTION_PREPARED_TYPE,
    stored_name,
)
from epochmq_protocol.record_layout import (
    BODY_SIZE_BYTES,
    HEAD_V4,
    HEADS_BY_FLAG,
    HOST_V6_EXTRA_BYTES,
    HOSTS_V6,
    INT,
    LENGTH,
    LONG,
    MAGIC_AT,
    SIZE_AND_MAGIC,
    STORE_TIMESTAMP_AT,
    SYS_FLAG,
    SYS_FLAG_AT,
)
from epochmq_protocol.topics import RMQ_SYS_SCHEDULE_TOPIC

CRC_PROPERTY_BYTES: Final = 20
CRC_PROPERTY_SPACE: Final = bytes(CRC_PROPERTY_BYTES)
_CRC_PROPERTY_NAME: Final = stored_name(PROPERTY_CRC32)
_TAGS: Final = stored_name(PROPERTY_TAGS)
_UNIQ_KEY: Final = stored_name(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
_KEYS: Final = stored_name(PROPERTY_KEYS)
_DELAY: Final = stored_name(PROPERTY_DELAY_TIME_LEVEL)

if TYPE_CHECKING:
    from mmap import mmap

BLANK: Final = "blank"  # the result of `parse` at a blank record, the unused end of a file


class _TopicNames(dict[bytes, str]):
    """Caches decoded topic names; most records of a log share a few."""

    def __missing__(self, name: bytes) -> str:
        if len(self) >= _TOPICS_MAX:
            self.clear()
        topic = self[name] = name.decode("utf-8", "replace")
        return topic


_TOPICS_MAX = 4096
_topics = _TopicNames()


class DispatchRequest(NamedTuple):
    """The fields of a record that consume queue and index need (RocketMQ's DispatchRequest)."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int
    store_timestamp: int
    sys_flag: int
    uniq_key: str | None
    keys: str | None

    @property
    def in_consume_queue(self) -> bool:
        """Whether the message gets a unit. Messages of the transaction types PREPARED and ROLLBACK do not."""
        return not self.sys_flag & TRANSACTION_PREPARED_TYPE  # ROLLBACK contains this bit, COMMIT does not


def property_value(properties: bytes, name: bytes) -> bytes | None:
    """The last value of a property in the stored string, None when it is absent or empty. `name` includes the
    separator 0x01 at its end."""
    at = properties.rfind(name)
    while at >= 0:
        if at == 0 or properties[at - 1] == 2:
            start = at + len(name)
            end = properties.find(b"\x02", start)
            value = properties[start:] if end < 0 else properties[start:end]
            if value:
                return value
        at = properties.rfind(name, 0, at)
    return None


def tags_code_of(properties: bytes) -> int:
    """Tag code of a stored properties string, 0 without TAGS."""
    return javahash.tags_code(property_value(properties, _TAGS))


def keys_of(properties: bytes) -> tuple[str | None, str | None]:
    """(UNIQ_KEY, KEYS) of a stored properties string, for the index."""
    uniq_key = property_value(properties, _UNIQ_KEY)
    keys = property_value(properties, _KEYS)
    return (
        uniq_key.decode("utf-8", "replace") if uniq_key else None,
        keys.decode("utf-8", "replace") if keys else None,
    )


def delay_tags_code(properties: bytes, store_timestamp: int, delays_ms: tuple[int, ...]) -> int | None:
    """The tag code of a message in the schedule topic: its delivery time in epoch ms. None without a delay
    level."""
    text = property_value(properties, _DELAY)
    if text is None or not text.lstrip(b"+-").isdigit():
        return None
    try:
        level = min(int(text), len(delays_ms))
    except ValueError:
        return None
    return store_timestamp + delays_ms[level - 1] if level > 0 else None


def with_crc_space(properties: bytes) -> bytes:
    """The stored properties with space for the property `__CRC32#` at their end (enabledAppendPropCRC)."""
    if properties and properties[-1] != 2:
        return properties + b"\x02" + CRC_PROPERTY_SPACE
    return properties + CRC_PROPERTY_SPACE


def crc_property_of(record: bytes) -> bytes:
    """The property `__CRC32#` of a record, which is given up to this property."""
    return crc_property(crc32(record))


def is_intact(log: mmap | bytes, at: int, size: int) -> bool | None:
    """Whether a record matches its property `__CRC32#`, which covers everything before it. None for a record
    without the property, such as one from before enabledAppendPropCRC; False if only zeros are in its
    place, as a power loss leaves them."""
    end = at + size
    found = log[end - CRC_PROPERTY_BYTES : end]
    if found.startswith(_CRC_PROPERTY_NAME):
        return found == crc_property_of(log[at : end - CRC_PROPERTY_BYTES])
    return None if any(found) else False


def parse(
    log: mmap | bytes,
    at: int,
    end: int,
    offset: int,
    delays_ms: tuple[int, ...],
    *,
    check_crc: bool,
    property_crc: bool = False,
) -> DispatchRequest | str | None:
    """Parses the record at position `at` of a log file whose bytes before `end` are written. `offset` is the
    physical offset that the record must carry. Returns `BLANK` at a blank record, and None where no whole,
    valid record starts. `check_crc` compares the body with its checksum; with `property_crc`
    (forceVerifyPropCRC) the whole record with its property, if it has one."""
    if end - at < SIZE_AND_MAGIC.size:
        return None
    size, magic = SIZE_AND_MAGIC.unpack_from(log, at)
    if magic == BLANK_MAGIC:
        return BLANK
    if (magic != MAGIC_V1 and magic != MAGIC_V2) or size < HEAD_V4.size + 3 or size > end - at:
        return None
    head, fields = HEAD_V4, HEAD_V4.unpack_from(log, at)
    flags = fields[SYS_FLAG]
    if flags & HOSTS_V6:
        head = HEADS_BY_FLAG[flags & HOSTS_V6]
        if size < head.size + 3:
            return None
        fields = head.unpack_from(log, at)
    (_, _, crc, queue_id, _, queue_offset, physical, sys_flag, _, _, store_timestamp, _, _, _, body) = fields
    position = at + head.size
    limit = at + size
    if physical != offset or not 0 <= body <= limit - position - 3:
        return None
    if check_crc:
        intact = is_intact(log, at, size) if property_crc else None
        if intact is None:
            intact = not body or crc32(log[position : position + body]) & CRC_MASK == crc
        if not intact:
            return None
    position += body
    if magic == MAGIC_V1:
        topic_size = log[position]
        position += 1
    else:
        topic_size = LENGTH.unpack_from(log, position)[0]
        position += 2
    if not 0 <= topic_size <= min(limit - position - 2, TOPIC_BYTES_MAX_V1 if magic == MAGIC_V1 else limit):
        return None
    topic = _topics[log[position : position + topic_size]]
    position += topic_size
    properties_size = LENGTH.unpack_from(log, position)[0]
    position += 2
    if position + max(properties_size, 0) != limit:
        return None
    tags_code = 0
    uniq_key = keys = None
    if properties_size > 0:
        properties = log[position:limit]
        tags_code = tags_code_of(properties)
        uniq_key, keys = keys_of(properties)
        if topic == RMQ_SYS_SCHEDULE_TOPIC:
            delivery = delay_tags_code(properties, store_timestamp, delays_ms)
            tags_code = tags_code if delivery is None else delivery
    return DispatchRequest(
        topic,
        queue_id,
        queue_offset,
        physical,
        size,
        tags_code,
        store_timestamp,
        sys_flag,
        uniq_key,
        keys,
    )


def properties_at(log: mmap | bytes, at: int, size: int) -> bytes:
    """The stored properties of the record of `size` bytes at this position; empty if no whole record starts
    here."""
    if size < HEAD_V4.size + 3 or at + size > len(log):
        return b""
    magic = INT.unpack_from(log, at + MAGIC_AT)[0]
    flags = INT.unpack_from(log, at + SYS_FLAG_AT)[0]
    limit = at + size
    position = at + HEADS_BY_FLAG[flags & HOSTS_V6].size
    position += max(INT.unpack_from(log, position - BODY_SIZE_BYTES)[0], 0)  # the body
    if magic not in (MAGIC_V1, MAGIC_V2) or position + 4 > limit:
        return b""
    if magic == MAGIC_V1:
        position += 1 + log[position]
    else:
        position += 2 + max(LENGTH.unpack_from(log, position)[0], 0)
    return log[position + 2 : limit]


def body_at(log: mmap | bytes, at: int) -> bytes:
    """The body of the record at this position. The caller knows that a whole record starts here."""
    start = at + _head_bytes(log, at)
    return log[start : start + body_size_at(log, at)]


def body_size_at(log: mmap | bytes, at: int) -> int:
    """The size of the body of the record at this position. The caller knows that a record starts here."""
    size: int = INT.unpack_from(log, at + _head_bytes(log, at) - BODY_SIZE_BYTES)[0]
    return size


def _head_bytes(log: mmap | bytes, at: int) -> int:
    return HEADS_BY_FLAG[INT.unpack_from(log, at + SYS_FLAG_AT)[0] & HOSTS_V6].size


def store_timestamp_at(log: mmap | bytes, at: int) -> int:
    """Store time, epoch ms, of the record at this position. The caller knows that a record starts here."""
    flags = INT.unpack_from(log, at + SYS_FLAG_AT)[0]
    shift = HOST_V6_EXTRA_BYTES if flags & BORNHOST_V6_FLAG else 0
    value: int = LONG.unpack_from(log, at + STORE_TIMESTAMP_AT + shift)[0]
    return value
