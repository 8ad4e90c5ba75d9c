"""Encodes and decodes message records, properties, ids and batches (MessageDecoder, MessageExtEncoder,
CommitLog).

`epochmq_protocol.record_layout` defines the layout of a record. Properties remain the stored bytes.
"""

from __future__ import annotations

import ipaddress
import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from struct import Struct
from typing import Final

import msgspec

from epochmq_protocol import message_const as const
from epochmq_protocol.checksum import CRC_MASK, crc32
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import LocalProtocolError, RemoteProtocolError, RequestError
from epochmq_protocol.message_const import *  # noqa: F403 (this module exports the constants)
from epochmq_protocol.message_const import BLANK_MAGIC, MAGIC_V1, MAGIC_V2
from epochmq_protocol.record_layout import (
    HEADS_BY_FLAG,
    HOST_BYTES,
    HOST_V6_BYTES,
    HOST_V6_EXTRA_BYTES,
    HOSTS_V6,
    RECORD_OVERHEAD,
    SYS_FLAG_AT,
)

_NO_HOST: Final = bytes(HOST_BYTES)
_BATCH: Final = Struct(">iiiii")
_BATCH_OVERHEAD: Final = _BATCH.size + 2

_Buffer = bytes | bytearray | memoryview


class MessageExt(msgspec.Struct, gc=False):
    """One stored message. Times in epoch milliseconds; hosts and properties as stored. `store_size` and
    `body_crc` come from a decoded record; encoding computes them."""

    topic: str
    body: bytes = b""
    properties: bytes = b""
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = _NO_HOST
    store_timestamp: int = 0
    store_host: bytes = _NO_HOST
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body_crc: int = 0
    store_size: int = 0
    magic: int = MAGIC_V1

    @property
    def msg_id(self) -> str:
        """The offset message id, by which clients find this record."""
        return message_id(self.store_host, self.physical_offset)


def body_crc(body: _Buffer) -> int:
    """UtilAll.crc32: CRC-32 without its top bit."""
    return crc32(body) & CRC_MASK


def record_size(body: int, topic: int, properties: int, sys_flag: int = 0) -> int:
    """The size of a record from the byte lengths of its parts; V2 for topics of more than 127 bytes."""
    size = RECORD_OVERHEAD + body + topic + properties + (topic > const.TOPIC_BYTES_MAX_V1)
    if sys_flag & const.BORNHOST_V6_FLAG:
        size += HOST_V6_EXTRA_BYTES
    if sys_flag & const.STOREHOSTADDRESS_V6_FLAG:
        size += HOST_V6_EXTRA_BYTES
    return size


def encode_record(message: MessageExt) -> bytes:
    """Encodes a record. Computes the size, the CRC and the host bits of sysFlag; a topic of more than 127
    bytes makes it a V2 record. LocalProtocolError: a value does not fit."""
    topic, body, properties = message.topic.encode("utf-8", "replace"), message.body, message.properties
    topic_size, body_size, properties_size = len(topic), len(body), len(properties)
    if properties_size > const.PROPERTIES_BYTES_MAX or topic_size > 32767:
        raise LocalProtocolError(
            f"{topic_size} bytes of topic, {properties_size} of properties: expected at most 32767 each"
        )
    born_host, store_host = message.born_host, message.store_host
    hosts = _host_flag(born_host, const.BORNHOST_V6_FLAG) | _host_flag(
        store_host, const.STOREHOSTADDRESS_V6_FLAG
    )
    sys_flag = message.sys_flag & ~HOSTS_V6 | hosts
    is_v2 = message.magic == MAGIC_V2 or topic_size > const.TOPIC_BYTES_MAX_V1
    fixed = HEADS_BY_FLAG[hosts]
    total = fixed.size + body_size + (2 if is_v2 else 1) + topic_size + 2 + properties_size
    try:
        head = fixed.pack(
            total,
            MAGIC_V2 if is_v2 else MAGIC_V1,
            crc32(body) & CRC_MASK,
            message.queue_id,
            message.flag,
            message.queue_offset,
            message.physical_offset,
            sys_flag,
            message.born_timestamp,
            born_host,
            message.store_timestamp,
            store_host,
            message.reconsume_times,
            message.prepared_transaction_offset,
            body_size,
        )
    except Exception as error:  # struct.error says which format, not which field
        raise LocalProtocolError(f"record of topic {message.topic!r:.200}: {error}") from None
    return b"".join(
        (
            head,
            body,
            topic_size.to_bytes(2 if is_v2 else 1, "big"),
            topic,
            properties_size.to_bytes(2, "big"),
            properties,
        )
    )


def _host_flag(host: bytes, v6_flag: int) -> int:
    if len(host) == HOST_BYTES:
        return 0
    if len(host) == HOST_V6_BYTES:
        return v6_flag
    raise LocalProtocolError(f"host of {len(host)} bytes: expected 8 (IPv4) or 20 (IPv6)")


def decode_record(buffer: _Buffer, pos: int = 0, check_crc: bool = True) -> MessageExt:
    """Decodes the record at `pos`. RemoteProtocolError: a blank, an incomplete record, inconsistent sizes,
    or (with `check_crc`) a body that does not match its CRC."""
    if len(buffer) - pos < RECORD_OVERHEAD or pos < 0:
        raise _no_record(pos, f"{max(len(buffer) - pos, 0)} bytes left, expected at least {RECORD_OVERHEAD}")
    sys_flag = int.from_bytes(buffer[pos + SYS_FLAG_AT : pos + SYS_FLAG_AT + 4], "big")
    fixed = HEADS_BY_FLAG[sys_flag & HOSTS_V6]
    body_at = pos + fixed.size
    if body_at > len(buffer):
        raise _no_record(pos, "it ends inside its hosts")
    (
        total,
        magic,
        crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_offset,
        body_size,
    ) = fixed.unpack_from(buffer, pos)
    if magic == MAGIC_V1:
        topic_at = body_at + body_size + 1
    elif magic == MAGIC_V2:
        topic_at = body_at + body_size + 2
    elif magic == BLANK_MAGIC:
        raise _no_record(pos, f"a blank of {total} bytes")
    else:
        raise _no_record(pos, f"magic {magic & 0xFFFFFFFF:#010x}")
    end = pos + total
    if body_size < 0 or not topic_at + 2 <= end <= len(buffer):
        left = len(buffer) - pos
        raise _no_record(pos, f"total size {total} with a body of {body_size} and {left} bytes left")
    topic_size = int.from_bytes(buffer[body_at + body_size : topic_at], "big")
    properties_at = topic_at + topic_size + 2
    if properties_at > end:
        raise _no_record(pos, f"topic of {topic_size} bytes does not fit into {total}")
    properties_size = int.from_bytes(buffer[properties_at - 2 : properties_at], "big")
    if properties_at + properties_size != end:
        raise _no_record(
            pos, f"its parts end at {properties_at + properties_size - pos}, but its total size is {total}"
        )
    body = bytes(buffer[body_at : body_at + body_size])
    if check_crc and crc32(body) & CRC_MASK != crc:
        raise _no_record(pos, "body CRC differs")
    return MessageExt(
        bytes(buffer[topic_at : properties_at - 2]).decode("utf-8", "replace"),
        body,
        bytes(buffer[properties_at:end]),
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_offset,
        crc,
        total,
        magic,
    )


def _no_record(pos: int, reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"no message record at {pos}: {reason}")


def decode_records(buffer: _Buffer, check_crc: bool = True) -> list[MessageExt]:
    """Decodes the consecutive records of a pull response; every byte must belong to one."""
    records: list[MessageExt] = []
    pos, size = 0, len(buffer)
    while pos < size:
        record = decode_record(buffer, pos, check_crc)
        records.append(record)
        pos += record.store_size
    return records


def uncompressed_body(message: MessageExt, bytes_max: int = 64 * 1024 * 1024) -> bytes:
    """The body as the producer sent it. Supports zlib only, the clients' default. RemoteProtocolError:
    another compression, malformed data, or more than `bytes_max`."""
    if not message.sys_flag & const.COMPRESSED_FLAG:
        return message.body
    kind = message.sys_flag & const.COMPRESSION_TYPE_COMPARATOR
    if kind not in (0, const.COMPRESSION_ZLIB_TYPE):
        raise RemoteProtocolError(f"body compression {kind >> 8}: expected 0 or 3 (zlib)")
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(message.body, bytes_max)
    except zlib.error as error:
        raise RemoteProtocolError(f"compressed body: {error}") from None
    if not inflater.eof:
        raise RemoteProtocolError(f"compressed body: incomplete, or more than {bytes_max} bytes")
    return body


# ---------------------------------------------------------------------------------------------- hosts and ids


@lru_cache(maxsize=4096)
def encode_host(ip: str, port: int) -> bytes:
    """Address bytes and 4-byte port: 8 bytes for IPv4, 20 for IPv6. LocalProtocolError: not an IP address."""
    try:
        return ipaddress.ip_address(ip.partition("%")[0]).packed + port.to_bytes(4, "big")
    except (ValueError, OverflowError):
        raise LocalProtocolError(f"host {ip}:{port}: expected an IP address and a port") from None


def decode_host(host: bytes) -> tuple[str, int]:
    """(ip, port) of a stored host."""
    if len(host) not in (8, 20):
        raise RemoteProtocolError(f"host of {len(host)} bytes: expected 8 or 20")
    return str(ipaddress.ip_address(host[:-4])), int.from_bytes(host[-4:], "big")


def message_id(host: bytes, physical_offset: int) -> str:
    """The offset message id (MessageDecoder.createMessageId): host and offset in upper-case hex, 32 or 56
    characters."""
    return f"{host.hex()}{physical_offset & 0xFFFF_FFFF_FFFF_FFFF:016x}".upper()


def parse_message_id(text: str) -> tuple[bytes, int]:
    """(host, physical offset) of an offset message id. RequestError: malformed."""
    try:
        raw = bytes.fromhex(text) if len(text) in (32, 56) and text.isalnum() else b""
    except ValueError:
        raw = b""
    if len(raw) not in (16, 28):
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"message id {text[:100]!r}: expected 32 or 56 hexadecimal digits"
        )
    return raw[:-8], int.from_bytes(raw[-8:], "big", signed=True)


# ------------------------------------------------------------------------------------------------- properties


def parse_properties(properties: bytes | str) -> dict[str, str]:
    """Names and values of a properties string. As in Java, entries without a name or a value are dropped,
    the last of equal names counts, and the final separator may be missing."""
    text = properties.decode("utf-8", "replace") if isinstance(properties, bytes) else properties
    found: dict[str, str] = {}
    for entry in text.split("\x02"):
        name, _, value = entry.partition("\x01")
        if name and value:
            found[name] = value
    return found


def format_properties(properties: Mapping[str, str]) -> bytes:
    """`name 0x01 value 0x02` for each property. LocalProtocolError: a name or value contains a separator
    that a reader would split at."""
    pieces: list[str] = []
    for name, value in properties.items():
        if "\x01" in name or "\x02" in name or "\x02" in value:
            raise LocalProtocolError(f"property {name!r:.100}: it contains a separator (0x01 or 0x02)")
        pieces += (name, "\x01", value, "\x02")
    return "".join(pieces).encode("utf-8", "replace")


def append_property(properties: bytes, name: str, value: str) -> bytes:
    """The properties with one more at the end, where it overrides an earlier one of the same name."""
    separator = b"" if not properties or properties.endswith(b"\x02") else b"\x02"
    return properties + separator + format_properties({name: value})


def delete_property(properties: bytes, name: str) -> bytes:
    """The properties without those of this name; the others keep their bytes and order."""
    wanted = name.encode() + b"\x01"
    if wanted not in properties:
        return properties
    kept = [entry for entry in properties.split(b"\x02") if not entry.startswith(wanted)]
    return b"\x02".join(kept)


def crc_property(crc: int) -> bytes:
    """The 20 bytes of the `__CRC32#` property: ten decimal digits, least significant first."""
    digits = f"{crc & CRC_MASK:010d}"[::-1]
    return f"{const.PROPERTY_CRC32}\x01{digits}\x02".encode()


# ------------------------------------------------------------------------------------------------------ batch


class BatchElement(msgspec.Struct, frozen=True, gc=False):
    """One message of a batch in the body of SEND_BATCH_MESSAGE. The header has everything else."""

    body: bytes
    properties: bytes = b""
    flag: int = 0


def encode_batch(elements: Iterable[BatchElement]) -> bytes:
    """Encodes a batch (MessageDecoder.encodeMessages): for each element total size, magic 0, CRC 0, flag,
    body, properties."""
    pieces: list[bytes] = []
    for element in elements:
        body, properties = element.body, element.properties
        if len(properties) > const.PROPERTIES_BYTES_MAX:
            raise LocalProtocolError(f"{len(properties)} property bytes: expected at most 32767")
        total = _BATCH_OVERHEAD + len(body) + len(properties)
        pieces += (
            _BATCH.pack(total, 0, 0, element.flag, len(body)),
            body,
            len(properties).to_bytes(2, "big"),
            properties,
        )
    return b"".join(pieces)


def decode_batch(body: _Buffer, elements_max: int = 1_000_000) -> list[BatchElement]:
    """Decodes a batch. Like Java it uses the inner lengths only. RequestError(MESSAGE_ILLEGAL): they lead
    beyond the end."""
    elements, at = decode_batch_part(body, 0, elements_max)
    if at < len(body):
        raise _bad_batch(len(elements), at, len(body))
    return elements


def decode_batch_part(
    body: _Buffer, at: int, elements_max: int, number: int = 0
) -> tuple[list[BatchElement], int]:
    """Decodes up to `elements_max` messages of a batch, the first of which begins at byte `at` and has this
    number. Returns them, and where the next one begins. RequestError(MESSAGE_ILLEGAL) as `decode_batch`."""
    elements: list[BatchElement] = []
    size = len(body)
    while at < size and len(elements) < elements_max:
        if at + _BATCH_OVERHEAD > size:
            raise _bad_batch(number + len(elements), at, size)
        _, _, _, flag, body_size = _BATCH.unpack_from(body, at)
        body_at = at + _BATCH.size
        properties_at = body_at + body_size + 2
        if body_size < 0 or properties_at > size:
            raise _bad_batch(number + len(elements), at, size)
        at = properties_at + int.from_bytes(body[properties_at - 2 : properties_at], "big")
        if at > size or at - properties_at > const.PROPERTIES_BYTES_MAX:
            raise _bad_batch(number + len(elements), properties_at, size)
        elements.append(
            BatchElement(bytes(body[body_at : properties_at - 2]), bytes(body[properties_at:at]), flag)
        )
    return elements, at


def messages_of(record: MessageExt) -> list[MessageExt]:
    """The messages of a record as clients see them: those of an inner batch, otherwise the record itself
    (MessageDecoder.decodeMessage). RequestError(MESSAGE_ILLEGAL): the batch is malformed."""
    flags = const.INNER_BATCH_FLAG | const.NEED_UNWRAP_FLAG
    if record.sys_flag & flags != flags:
        return [record]
    return [
        msgspec.structs.replace(
            record,
            body=element.body,
            properties=element.properties,
            flag=element.flag,
            queue_offset=record.queue_offset + number,
        )
        for number, element in enumerate(decode_batch(record.body))
    ]


def _bad_batch(index: int, at: int, size: int) -> RequestError:
    return RequestError(
        ResponseCode.MESSAGE_ILLEGAL, f"message {index} of the batch: malformed at byte {at} of {size}"
    )
