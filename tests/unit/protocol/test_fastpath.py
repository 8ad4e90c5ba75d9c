"""The fast path gives exactly the result of the ordinary path, or raises FastPathMiss."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epochmq_protocol.codes import RequestCode, SerializeType
from epochmq_protocol.errors import FastPathMiss, ProtocolError, RemoteProtocolError, RequestError
from epochmq_protocol.fastpath import (
    FastPullRequest,
    FastSendRequest,
    decode_pull,
    decode_send,
    decode_send_v1,
    find_property,
    find_property_bytes,
    json_text,
    property_finder,
    pull_response_head,
    pull_response_template,
    send_response,
    send_response_template,
)
from epochmq_protocol.frame import (
    Command,
    decode,
    decode_json_header,
    encode_binary_header,
    encode_json_header,
    request,
)
from epochmq_protocol.headers_client import (
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from epochmq_protocol.message import encode_host, message_id, parse_properties

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)
SENDS: dict[str, Any] = {
    "producer_group": TEXTS,
    "topic": TEXTS,
    "default_topic": TEXTS,
    "default_topic_queue_nums": INTS,
    "queue_id": INTS,
    "sys_flag": INTS,
    "born_timestamp": LONGS,
    "flag": INTS,
    "properties": st.none() | TEXTS,
    "reconsume_times": st.none() | INTS,
    "unit_mode": st.none() | st.booleans(),
    "batch": st.none() | st.booleans(),
    "max_reconsume_times": st.none() | INTS,
}
NAMES = st.none() | TEXTS
PULLS = st.builds(
    PullMessageRequestHeader,
    consumer_group=TEXTS,
    topic=TEXTS,
    queue_id=INTS,
    queue_offset=LONGS,
    max_msg_nums=INTS,
    sys_flag=INTS,
    commit_offset=LONGS,
    suspend_timeout_millis=LONGS,
    subscription=st.none() | TEXTS,
    sub_version=LONGS,
    expression_type=st.none() | TEXTS,
    max_msg_bytes=st.none() | st.integers(0, 2**31 - 1),
    request_source=st.none() | st.integers(0, 100),
    bname=NAMES,
)
HOST = encode_host("127.0.0.1", 10911)


def _shuffled(header: bytes, random: Any) -> bytes:
    """The same header with its keys in another order."""

    def turned(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        items = [(key, turned(item)) for key, item in value.items()]
        random.shuffle(items)
        return dict(items)

    return json.dumps(turned(json.loads(header)), ensure_ascii=False).encode()


def _same_send(fast: FastSendRequest, command: Command, header: Any) -> None:
    fields = fast.fields
    assert (fast.code, fast.opaque, fast.flag, fast.version) == (
        command.code,
        command.opaque,
        command.flag,
        command.version,
    )
    assert (fields.topic, fields.queue_id, fields.sys_flag) == (
        header.topic,
        header.queue_id,
        header.sys_flag,
    )
    assert (fields.born_timestamp, fields.flag) == (header.born_timestamp, header.flag)
    assert fields.properties == (header.properties or "")
    assert fields.reconsume_times == (header.reconsume_times or 0)
    named = header.broker_name if isinstance(header, SendMessageRequestHeaderV2) else header.bname
    assert fields.broker_name == (named or "")
    assert (fields.batch.lower() == "true") == bool(header.batch)


@settings(deadline=None)
@given(st.builds(SendMessageRequestHeaderV2, broker_name=NAMES, **SENDS), INTS, st.randoms())
def test_the_fast_path_decodes_sends_like_the_ordinary_path(
    header: SendMessageRequestHeaderV2, opaque: int, random: Any
) -> None:
    command = request(RequestCode.SEND_MESSAGE_V2, header)
    command.opaque = opaque
    raw = encode_json_header(command)
    _same_send(decode_send(raw), command, header)
    _same_send(decode_send(_shuffled(raw, random)), command, header)


@settings(deadline=None)
@given(st.builds(SendMessageRequestHeader, bname=NAMES, **SENDS), st.randoms())
def test_the_fast_path_decodes_sends_with_long_names_like_the_ordinary_path(
    header: SendMessageRequestHeader, random: Any
) -> None:
    command = request(RequestCode.SEND_MESSAGE, header)
    _same_send(decode_send_v1(_shuffled(encode_json_header(command), random)), command, header)


@settings(deadline=None)
@given(PULLS, st.randoms())
def test_the_fast_path_decodes_pulls_like_the_ordinary_path(
    header: PullMessageRequestHeader, random: Any
) -> None:
    command = request(RequestCode.PULL_MESSAGE, header)
    fast = decode_pull(_shuffled(encode_json_header(command), random))
    assert fast == FastPullRequest(
        11,
        0,
        0,
        header.consumer_group,
        header.topic,
        header.queue_id,
        header.queue_offset,
        header.max_msg_nums,
        header.sys_flag,
        header.commit_offset,
        header.suspend_timeout_millis,
        header.sub_version,
        header.subscription,
        header.expression_type,
        header.max_msg_bytes,
        header.request_source,
        None,
        command.version,
        header.bname or "",
    )


_GOOD = encode_json_header(
    request(
        RequestCode.SEND_MESSAGE_V2,
        SendMessageRequestHeaderV2(
            producer_group="g",
            topic="T",
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=1,
            sys_flag=0,
            born_timestamp=1,
            flag=0,
        ),
    )
)


@settings(deadline=None)
@given(st.data())
@example(None)
def test_a_damaged_header_is_a_miss_or_means_the_same_on_the_ordinary_path(
    data: st.DataObject | None,
) -> None:
    raw = bytearray(_GOOD)
    if data is not None:
        for _ in range(data.draw(st.integers(1, 3))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(
                st.sampled_from(list(b'{}":,019aetrue\\\x00\xff'))
            )
    try:
        fast = decode_send(bytes(raw))
    except FastPathMiss:
        return
    try:
        command = decode_json_header(bytes(raw))
        general = SendMessageRequestHeaderV2.decode(command.ext)
    except RequestError:
        return  # a field that the fast path does not look at
    except RemoteProtocolError as error:
        if "header field version=" not in str(error):
            raise
        return  # nor does it look at this one
    _same_send(fast, command, general)


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_are_a_fast_path_miss(data: bytes) -> None:
    for read in (decode_send, decode_send_v1, decode_pull):
        with pytest.raises(FastPathMiss):
            read(data)


@pytest.mark.parametrize(
    "command",
    [
        Command(RequestCode.SEND_MESSAGE_V2),
        Command(RequestCode.PULL_MESSAGE),
        Command(3101, ext=json.loads(_GOOD)["extFields"]),
        Command(310, flag=1, ext=json.loads(_GOOD)["extFields"]),
        Command(310, ext={**json.loads(_GOOD)["extFields"], "e": "2147483648"}),
        Command(310, ext={**json.loads(_GOOD)["extFields"], "e": "x"}),
        Command(310, ext={**json.loads(_GOOD)["extFields"], "e": ""}),
    ],
)
def test_any_other_command_is_a_fast_path_miss(command: Command) -> None:
    for read in (decode_send, decode_send_v1, decode_pull):
        with pytest.raises(FastPathMiss):
            read(encode_json_header(command))


def test_a_rocketmq_header_is_a_fast_path_miss() -> None:
    command = request(RequestCode.SEND_MESSAGE_V2, ext=json.loads(_GOOD)["extFields"])
    command.serialize = SerializeType.ROCKETMQ
    with pytest.raises(FastPathMiss):
        decode_send(encode_binary_header(command))


@settings(deadline=None)
@given(INTS, INTS, LONGS, st.integers(0, 2**62), st.binary(max_size=40) | TEXTS.map(str.encode), TEXTS)
def test_send_responses_equal_those_of_the_ordinary_path(
    opaque: int, queue_id: int, queue_offset: int, physical_offset: int, key: bytes, region: str
) -> None:
    frame = send_response_template(HOST, region, is_traced=False)(
        opaque, queue_id, queue_offset, physical_offset, key
    )
    assert frame == send_response(
        opaque,
        store_host=HOST,
        physical_offset=physical_offset,
        queue_id=queue_id,
        queue_offset=queue_offset,
        transaction_id=key,
        region_id=region,
        is_traced=False,
    )
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    command = decode(frame[4:])
    assert (command.code, command.flag, command.opaque, command.body) == (0, 1, opaque, b"")
    assert command.ext is not None
    assert (command.ext["MSG_REGION"], command.ext["TRACE_ON"]) == (region, "false")
    header = SendMessageResponseHeader.decode(command.ext)
    assert header == SendMessageResponseHeader(
        msg_id=message_id(HOST, physical_offset),
        queue_id=queue_id,
        queue_offset=queue_offset,
        transaction_id=key.decode("utf-8", "replace") if key else None,
    )


def test_the_response_to_a_timer_message_has_its_recall_handle() -> None:
    frame = send_response_template(HOST)(1, 2, 3, 4, b'a "quoted" key', b"djEgVCA=")
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header = SendMessageResponseHeader.decode(decode(frame[4:]).ext)
    assert (header.transaction_id, header.recall_handle) == ('a "quoted" key', "djEgVCA=")


def test_a_very_long_transaction_id_is_encoded() -> None:
    frame = send_response_template(HOST)(1, 2, 3, 4, b"a" * 5000)
    assert SendMessageResponseHeader.decode(decode(frame[4:]).ext).transaction_id == "a" * 5000


@settings(deadline=None)
@given(INTS, st.integers(0, 100), st.none() | TEXTS, LONGS, LONGS, LONGS, st.binary(max_size=50))
def test_pull_responses_equal_those_of_the_ordinary_path(
    opaque: int, code: int, remark: str | None, next_offset: int, low: int, high: int, body: bytes
) -> None:
    fields: dict[str, Any] = {"next_begin_offset": next_offset, "min_offset": low, "max_offset": high}
    fields |= {"suggest_which_broker_id": 1, "topic_sys_flag": 2, "group_sys_flag": 3}
    frame = pull_response_head(opaque, code, remark, body_size=len(body), **fields) + body
    command = decode(frame[4:])
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert (command.code, command.flag, command.opaque, command.remark, command.body) == (
        code,
        1,
        opaque,
        remark,
        body,
    )
    assert PullMessageResponseHeader.decode(command.ext) == PullMessageResponseHeader(**fields)
    template = pull_response_template(
        code, remark, suggest_which_broker_id=1, topic_sys_flag=2, group_sys_flag=3
    )
    assert template(opaque, next_offset, low, high, len(body)) + body == frame


PROPERTIES = st.lists(
    st.sampled_from(["TAGS", "KEYS", "XTAGS", "\x01", "\x02", "a", "消息"]), max_size=14
).map("".join)


@pytest.mark.long
@settings(deadline=None, max_examples=400)
@given(PROPERTIES, st.sampled_from(["TAGS", "KEYS", "a", "AGS"]))
@example("TAGS\x01a\x02TAGS\x01\x02", "TAGS")
@example("KEYS\x01TAGS\x01x\x02", "TAGS")
@example("TAGS\x01a", "TAGS")
def test_a_property_is_found_as_by_parsing_all(properties: str, name: str) -> None:
    wanted = parse_properties(properties).get(name)
    assert find_property(properties, name) == wanted
    assert property_finder(name)(properties) == wanted
    found = find_property_bytes(properties.encode(), name.encode())
    assert (None if found is None else found.decode()) == wanted


@settings(deadline=None)
@given(TEXTS | st.text(max_size=10))
def test_any_text_can_be_written_into_a_json_string(text: str) -> None:
    assert json.loads(b'"' + json_text(text) + b'"') == text.encode("utf-8", "replace").decode()
    try:
        decode_json_header(b'{"code":1,"remark":"' + json_text(text) + b'"}')
    except ProtocolError:
        pytest.fail("not a JSON text")
