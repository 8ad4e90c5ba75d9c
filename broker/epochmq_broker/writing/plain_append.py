"""Copies plain records into other queues, and holds what the fast paths of writing have in common.

A record is plain if it has IPv4 hosts and is not an inner batch. Its body and properties are copied as bytes,
without a message in between. What makes a copy equal to the one that `MessageWriter` stores is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from mmap import mmap
from typing import Any, Final

from epochmq_protocol import message_const as const
from epochmq_protocol.checksum import CRC_MASK, crc32
from epochmq_protocol.javahash import tags_code
from epochmq_protocol.record_layout import (
    BODY_CRC,
    BODY_SIZE,
    BORN_HOST,
    BORN_TIMESTAMP,
    FLAG,
    HEAD_V4,
    MAGIC,
    PHYSICAL_OFFSET,
    RECONSUME_TIMES,
    SIZE,
    STORE_HOST,
    SYS_FLAG,
)
from epochmq_store.appending.appender import AppendResult
from epochmq_store.queues.consume_queue import ConsumeQueue

CODES_MAX: Final = 4096
NOT_PLAIN_FLAGS: Final = const.BORNHOST_V6_FLAG | const.STOREHOSTADDRESS_V6_FLAG | const.INNER_BATCH_FLAG
"""Bits of sysFlag of records that are not plain."""

PlainRecord = tuple[tuple[Any, ...], bytes, bytes]
"""Head (`HEAD_V4`), body and properties of a record."""


class TagsCodes(dict[str, int]):
    """Tags → tags code. A cache, because most messages have one of a few tags."""

    def __missing__(self, tags: str) -> int:
        if len(self) >= CODES_MAX:
            self.clear()
        code = self[tags] = tags_code(tags) if tags else 0
        return code


def real_place(topic: str, queue_id: int) -> str:
    """The properties of a message in a system topic that name its own queue."""
    return f"{const.PROPERTY_REAL_TOPIC}\x01{topic}\x02{const.PROPERTY_REAL_QUEUE_ID}\x01{queue_id}\x02"


def plain_record_reader(
    topic: str, not_plain_flags: int = NOT_PLAIN_FLAGS
) -> Callable[[bytes | mmap, int, int, int], PlainRecord | None]:
    """Returns a function that reads plain records of one topic. Its arguments: data, where the record begins
    in it, its size, and its physical offset. It returns None for a record that is not plain, that is damaged,
    or that has another topic or offset."""
    topic_field = bytes([len(topic)]) + topic.encode()
    properties_at = len(topic_field) + 2
    head_size, unpack = HEAD_V4.size, HEAD_V4.unpack_from
    size_min, magic = head_size + properties_at, const.MAGIC_V1

    def read(data: bytes | mmap, at: int, size: int, offset: int) -> PlainRecord | None:
        if size < size_min:
            return None
        head = unpack(data, at)
        if head[SIZE] != size or head[MAGIC] != magic or head[PHYSICAL_OFFSET] != offset:
            return None
        body_size = head[BODY_SIZE]
        if head[SYS_FLAG] & not_plain_flags or body_size < 0:
            return None
        body_at = at + head_size
        topic_at = body_at + body_size
        tail = data[topic_at : at + size]
        properties = tail[properties_at:]
        if tail[:properties_at] != topic_field + len(properties).to_bytes(2, "big"):
            return None
        body = data[body_at:topic_at]
        if crc32(body) & CRC_MASK != head[BODY_CRC]:
            return None
        return head, body, properties

    return read


def append_copy(
    append: Callable[..., AppendResult],
    queue: ConsumeQueue,
    record: PlainRecord,
    values: Mapping[str, str],
    *,
    properties: bytes,
    sys_flag: int,
    codes: TagsCodes,
    prepared_offset: int = 0,
) -> AppendResult:
    """Stores a copy of a record in a queue, with its body, flag, hosts and times. `values`: the values of its
    properties. `properties`: the bytes to be stored, which may have more at the end."""
    head, body, _ = record
    get = values.get
    return append(
        queue,
        body=body,
        properties=properties,
        born_timestamp=head[BORN_TIMESTAMP],
        born_host=head[BORN_HOST],
        flag=head[FLAG],
        sys_flag=sys_flag,
        reconsume_times=head[RECONSUME_TIMES],
        prepared_offset=prepared_offset,
        tags_code=codes[get(const.PROPERTY_TAGS, "")],
        uniq_key=get(const.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX),
        keys=get(const.PROPERTY_KEYS),
        store_host=head[STORE_HOST],
    )
