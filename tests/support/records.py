"""Messages as RocketMQ stores and sends them, read and written apart from the product's own protocol code."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MAGIC_V1, MAGIC_V2 = 0xDAA320A7, 0xDAA320AB
# size magic crc queue flag queueOffset physicalOffset sysFlag born bornHost stored storeHost reconsumed
# preparedOffset bodyLength
_HEAD = struct.Struct(">IIIIIqqIq8sq8sIqI")


@dataclass(frozen=True)
class Record:
    """One stored message."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_timestamp: int
    body: bytes
    properties: dict[str, str]


def parse_properties(text: str) -> dict[str, str]:
    """`name 0x01 value 0x02` pairs; the last of a name wins."""
    pairs = (item.partition("\x01") for item in text.split("\x02") if item)
    return {name: value for name, _, value in pairs}


def parse_records(data: bytes) -> Iterator[Record]:
    """Every record of a pull answer; fails on anything that is none, a wrong CRC included."""
    at = 0
    while at < len(data):
        fields = _HEAD.unpack_from(data, at)
        size, magic, crc, queue_id, _, queue_offset, physical_offset, _, _, _, stored, _, _, _, length = (
            fields
        )
        assert magic in (MAGIC_V1, MAGIC_V2), f"no record at {at} of {len(data)}: magic {magic:#x}"
        body_at = at + _HEAD.size
        body = data[body_at : body_at + length]
        assert zlib.crc32(body) & 0x7FFFFFFF == crc, f"CRC of the record at {at} is wrong"
        topic_at = body_at + length
        width = 1 if magic == MAGIC_V1 else 2
        topic_end = topic_at + width + int.from_bytes(data[topic_at : topic_at + width])
        end = topic_end + 2 + int.from_bytes(data[topic_end : topic_end + 2])
        assert end == at + size, f"the record at {at} states {size} bytes and has {end - at}"
        yield Record(
            data[topic_at + width : topic_end].decode(),
            queue_id,
            queue_offset,
            physical_offset,
            stored,
            body,
            parse_properties(data[topic_end + 2 : end].decode()),
        )
        at = end


def encode_batch(messages: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Body of SEND_BATCH_MESSAGE from (body, properties) of every message."""
    parts = []
    for body, properties in messages:
        size = 4 * 5 + len(body) + 2 + len(properties)
        parts += [struct.pack(">IIIII", size, 0, 0, 0, len(body)), body]
        parts += [struct.pack(">H", len(properties)), properties]
    return b"".join(parts)
