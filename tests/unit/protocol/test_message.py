"""Message records, properties, ids and batches round-trip, and malformed ones raise the right error."""

from __future__ import annotations

import contextlib
import zlib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epochmq_protocol import message_const as const
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import LocalProtocolError, ProtocolError, RemoteProtocolError, RequestError
from epochmq_protocol.message import (
    BLANK_MAGIC,
    MAGIC_V1,
    MAGIC_V2,
    BatchElement,
    MessageExt,
    append_property,
    body_crc,
    decode_batch,
    decode_host,
    decode_record,
    decode_records,
    delete_property,
    encode_batch,
    encode_host,
    encode_record,
    format_properties,
    message_id,
    messages_of,
    parse_message_id,
    parse_properties,
    record_size,
    uncompressed_body,
)

INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)
HOSTS = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
TOPICS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=200)
MESSAGES = st.builds(
    MessageExt,
    topic=TOPICS,
    body=st.binary(max_size=200),
    properties=st.binary(max_size=100),
    queue_id=INTS,
    flag=INTS,
    queue_offset=LONGS,
    physical_offset=LONGS,
    sys_flag=st.integers(0, 0x7FF).map(lambda flag: flag & ~0x30),
    born_timestamp=LONGS,
    born_host=HOSTS,
    store_timestamp=LONGS,
    store_host=HOSTS,
    reconsume_times=INTS,
    prepared_transaction_offset=LONGS,
)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=10)


def _with_computed_fields(made: MessageExt, record: bytes) -> MessageExt:
    """The message with the fields that encoding computes."""
    made.body_crc = body_crc(made.body)
    made.store_size = len(record)
    made.magic = MAGIC_V2 if len(made.topic) > 127 else MAGIC_V1
    made.sys_flag |= 0x10 * (len(made.born_host) == 20) | 0x20 * (len(made.store_host) == 20)
    return made


@settings(deadline=None)
@given(MESSAGES)
def test_records_round_trip(made: MessageExt) -> None:
    record = encode_record(made)
    assert decode_record(record) == _with_computed_fields(made, record)
    assert decode_record(bytearray(record)) == made
    assert decode_record(b"xyz" + record, 3) == made
    assert record_size(len(made.body), len(made.topic), len(made.properties), made.sys_flag) == len(record)


@settings(deadline=None)
@given(st.lists(MESSAGES, max_size=4))
def test_consecutive_records_are_decoded(made: list[MessageExt]) -> None:
    records = [encode_record(message) for message in made]
    read = decode_records(b"".join(records))
    assert read == [
        _with_computed_fields(message, record) for message, record in zip(made, records, strict=True)
    ]


@settings(deadline=None)
@given(MESSAGES, st.data())
def test_a_damaged_record_gives_a_record_or_a_protocol_error(made: MessageExt, data: st.DataObject) -> None:
    record = bytearray(encode_record(made))
    for _ in range(data.draw(st.integers(1, 3))):
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(record)))
    for damaged in (bytes(record), bytes(record[:cut])):
        for check_crc in (True, False):
            try:
                decode_record(damaged, 0, check_crc)
                decode_records(damaged, check_crc)
            except ProtocolError:
                pass


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(-5, 205))
def test_any_bytes_give_a_record_or_a_protocol_error(data: bytes, pos: int) -> None:
    with contextlib.suppress(RemoteProtocolError):
        decode_record(data, pos)


def test_a_changed_body_fails_its_crc() -> None:
    record = bytearray(encode_record(MessageExt("T", b"body")))
    record[88] ^= 1
    with pytest.raises(RemoteProtocolError, match="CRC"):
        decode_record(record)
    assert decode_record(record, check_crc=False).body == b"cody"


@pytest.mark.parametrize("size", [4, 8, 50, 91])
def test_an_incomplete_record_is_a_protocol_error(size: int) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_record(encode_record(MessageExt("T", b"body"))[:size])
    with pytest.raises(RemoteProtocolError):
        decode_record(bytes(size))


def test_a_blank_is_not_a_record() -> None:
    blank = (200).to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big", signed=True) + bytes(192)
    with pytest.raises(RemoteProtocolError, match="a blank of 200 bytes"):
        decode_record(blank)


def test_a_long_topic_makes_a_record_of_version_2() -> None:
    assert decode_record(encode_record(MessageExt("t" * 127))).magic == MAGIC_V1
    assert decode_record(encode_record(MessageExt("t" * 128))).magic == MAGIC_V2
    assert decode_record(encode_record(MessageExt("t", magic=MAGIC_V2))).magic == MAGIC_V2


@pytest.mark.parametrize(
    "message",
    [
        MessageExt("T", properties=bytes(32768)),
        MessageExt("t" * 32768),
        MessageExt("T", queue_id=2**31),
        MessageExt("T", queue_offset=2**63),
        MessageExt("T", born_host=b"short"),
    ],
)
def test_a_value_that_does_not_fit_a_record_is_a_local_error(message: MessageExt) -> None:
    with pytest.raises(LocalProtocolError):
        encode_record(message)


@settings(deadline=None)
@given(st.dictionaries(NAMES, NAMES, max_size=6))
def test_properties_round_trip(properties: dict[str, str]) -> None:
    text = format_properties(properties)
    assert parse_properties(text) == properties
    assert parse_properties(text.decode()) == properties
    if text:
        assert parse_properties(text[:-1]) == properties


@settings(deadline=None)
@given(st.binary(max_size=60))
@example(b"\x01\x01\x02\x02a\x01\x02")
def test_any_bytes_parse_as_properties(data: bytes) -> None:
    found = parse_properties(data)
    assert parse_properties(format_properties(found)) == found


@pytest.mark.parametrize("properties", [{"a\x01": "b"}, {"a\x02": "b"}, {"a": "b\x02"}])
def test_separators_cannot_be_part_of_a_property(properties: dict[str, str]) -> None:
    with pytest.raises(LocalProtocolError):
        format_properties(properties)


@settings(deadline=None)
@given(st.dictionaries(NAMES, NAMES, max_size=4), NAMES, NAMES, st.booleans())
def test_a_property_is_appended_and_deleted_again(
    properties: dict[str, str], name: str, value: str, is_closed: bool
) -> None:
    text = format_properties(properties)
    text = text if is_closed else text.rstrip(b"\x02")
    added = append_property(text, name, value)
    assert parse_properties(added) == {**properties, name: value}
    removed = parse_properties(delete_property(added, name))
    assert removed == {key: item for key, item in properties.items() if key != name}


def test_only_the_property_of_exactly_that_name_is_deleted() -> None:
    text = b"XTAGS\x01a\x02TAGS\x01b\x02KEYS\x01TAGS\x02"
    assert delete_property(text, "TAGS") == b"XTAGS\x01a\x02KEYS\x01TAGS\x02"
    assert delete_property(text, "NONE") is text


@pytest.mark.parametrize(("ip", "size"), [("127.0.0.1", 8), ("2001:db8::1", 20), ("fe80::1%eth0", 20)])
def test_hosts_round_trip(ip: str, size: int) -> None:
    host = encode_host(ip, 10911)
    assert len(host) == size
    assert decode_host(host) == (ip.partition("%")[0], 10911)


@pytest.mark.parametrize(
    ("ip", "port"), [("localhost", 1), ("", 1), ("1.2.3", 1), ("1.2.3.4", -1), ("1.2.3.4", 2**32)]
)
def test_an_invalid_address_is_a_local_error(ip: str, port: int) -> None:
    with pytest.raises(LocalProtocolError):
        encode_host(ip, port)


@settings(deadline=None)
@given(HOSTS, st.integers(0, 2**63 - 1))
def test_message_ids_round_trip(host: bytes, offset: int) -> None:
    text = message_id(host, offset)
    assert text == text.upper()
    assert parse_message_id(text) == (host, offset)
    assert parse_message_id(text.lower()) == (host, offset)


@settings(deadline=None)
@given(st.text(max_size=60) | st.text("0123456789ABCDEF ", min_size=32, max_size=32))
def test_any_text_gives_a_message_id_or_a_request_error(text: str) -> None:
    try:
        host, offset = parse_message_id(text)
    except RequestError:
        return
    assert message_id(host, offset) == text.upper()


ELEMENTS = st.lists(
    st.builds(BatchElement, body=st.binary(max_size=50), properties=st.binary(max_size=50), flag=INTS),
    max_size=5,
)


@settings(deadline=None)
@given(ELEMENTS)
def test_batches_round_trip(elements: list[BatchElement]) -> None:
    assert decode_batch(encode_batch(elements)) == elements


@settings(deadline=None)
@given(ELEMENTS, st.data())
def test_any_bytes_give_a_batch_or_message_illegal(elements: list[BatchElement], data: st.DataObject) -> None:
    body = bytearray(encode_batch(elements)) + data.draw(st.binary(max_size=30))
    if body:
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_batch(bytes(body))
    except RequestError as error:
        rejection = error
    else:
        return
    assert rejection.code == ResponseCode.MESSAGE_ILLEGAL


def test_a_batch_of_too_many_messages_is_rejected() -> None:
    body = encode_batch([BatchElement(b"")] * 4)
    assert len(decode_batch(body, elements_max=4)) == 4
    with pytest.raises(RequestError):
        decode_batch(body, elements_max=3)


def test_the_messages_of_an_inner_batch_have_offsets_of_their_own() -> None:
    elements = [BatchElement(b"a", b"TAGS\x01x\x02", 1), BatchElement(b"b", b"", 2)]
    flags = const.INNER_BATCH_FLAG | const.NEED_UNWRAP_FLAG
    record = MessageExt("t", encode_batch(elements), queue_offset=7, physical_offset=100, sys_flag=flags)
    found = messages_of(record)
    assert [(one.body, one.properties, one.flag, one.queue_offset) for one in found] == [
        (b"a", b"TAGS\x01x\x02", 1, 7),
        (b"b", b"", 2, 8),
    ]
    assert {one.physical_offset for one in found} == {100}
    record.sys_flag = const.INNER_BATCH_FLAG
    assert messages_of(record) == [record]


def test_a_compressed_body_is_decompressed() -> None:
    body = b"hello " * 1000
    for kind in (0, const.COMPRESSION_ZLIB_TYPE):
        flag = const.COMPRESSED_FLAG | kind
        assert uncompressed_body(MessageExt("T", zlib.compress(body), sys_flag=flag)) == body
    assert uncompressed_body(MessageExt("T", body)) == body


@pytest.mark.parametrize(
    ("body", "flag"),
    [
        (b"no zlib", 1),
        (zlib.compress(b"hello" * 100)[:-5], 1),
        (zlib.compress(bytes(2_000_000)), 1),
        (b"x", 1 | const.COMPRESSION_LZ4_TYPE),
    ],
)
def test_a_malformed_compressed_body_is_a_protocol_error(body: bytes, flag: int) -> None:
    with pytest.raises(RemoteProtocolError):
        uncompressed_body(MessageExt("T", body, sys_flag=flag), bytes_max=1_000_000)
