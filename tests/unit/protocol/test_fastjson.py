"""JSON is read and written as by fastjson."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epochmq_protocol import fastjson
from epochmq_protocol.bodies import MessageQueue
from epochmq_protocol.errors import OversizedError, RemoteProtocolError
from epochmq_protocol.fastjson import DEPTH_MAX, EXPANDED_MIN, NODES_MAX, STEPS_MAX, _LenientParser
from tests.unit.protocol.json_values import VALUES

TOKENS = st.sampled_from(
    [
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        '"a"',
        "b",
        "'c'",
        "1",
        "-",
        "1.5",
        "0x",
        "null",
        "true",
        "/*",
        "*/",
        "//\n",
        "\\",
        '"',
        "{$ref:'$'}",
        '"$ref"',
        "$",
        "..",
        "@",
        "�",
        "\x00",
        " ",
    ]
)
QUEUE = (("brokerName", "b"), ("queueId", 0), ("topic", "T"))


def _no_nulls_in_maps(value: Any) -> Any:
    """The value without null values of maps, which fastjson does not write."""
    if isinstance(value, dict):
        return {key: _no_nulls_in_maps(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_no_nulls_in_maps(item) for item in value]
    return value


@settings(deadline=None)
@given(VALUES)
def test_values_round_trip_in_both_forms(value: Any) -> None:
    if "$ref" in str(value):
        return
    wanted = _no_nulls_in_maps(value)
    assert fastjson.loads(fastjson.dumps(value)) == wanted
    assert json.loads(fastjson.dumps_standard(value)) == wanted
    assert fastjson.loads(fastjson.dumps(value, pretty=True)) == wanted


@settings(deadline=None)
@given(VALUES)
def test_the_lenient_parser_reads_strict_json(value: Any) -> None:
    text = json.dumps(value)
    assert _LenientParser(text).document() == json.loads(text)


@settings(deadline=None)
@given(
    st.binary(max_size=60)
    | st.lists(TOKENS, max_size=20).map(lambda tokens: "".join(tokens).encode("utf-8", "replace"))
)
@example(b"")
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(b"{{" * 100_000)
@example(b"1e999999999")
@example(b"9" * 5000)
@example(b"[-" + b"9" * 5000 + b"]")
@example(b'"\\u12')
@example(b"{'a':'")
@example(b"/*")
def test_any_bytes_give_a_value_or_a_protocol_error(data: bytes) -> None:
    for given_data in (data, data.decode("utf-8", "replace")):
        with contextlib.suppress(RemoteProtocolError):
            fastjson.loads(given_data)


def test_nesting_is_bounded() -> None:
    deep = b"{a:" * DEPTH_MAX + b"1" + b"}" * DEPTH_MAX
    assert fastjson.loads(deep)
    with pytest.raises(RemoteProtocolError, match="nesting"):
        fastjson.loads(b"{a:" + deep + b"}")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{{"topic":"T","queueId":0,"brokerName":"b"}:1}', {QUEUE: 1}),
        ("{{topic:'T',queueId:0,brokerName:'b'}:{0:1}}", {QUEUE: {"0": 1}}),
        ("{[1,{a:2}]:3}", {(1, (("a", 2),)): 3}),
        ("{-5:1,1.5:2}", {"-5": 1, "1.5": 2}),
        ("{a:.5,b:+1,c:1.}", {"a": 0.5, "b": 1, "c": 1.0}),
        ("[,,1,,]", [1]),
        ("{null:1,true:2}", {"null": 1, "true": 2}),
        ("\ufeff{a:1}", {"a": 1}),
        ("'\\ud83d\\ude00 \\ud83d'", "😀 ?"),
        (
            "{a:9223372036854775807,b:123456789012345678901234567890}",
            {"a": 2**63 - 1, "b": 123456789012345678901234567890},
        ),
    ],
)
def test_lenient_json_is_read(text: str, value: Any) -> None:
    assert fastjson.loads(text) == value


def test_integer_keys_are_written_with_quotes_on_request() -> None:
    assert fastjson.dumps({"b": {0: {1: "a"}}}) == b'{"b":{0:{1:"a"}}}'
    assert fastjson.dumps({"b": {0: {1: "a"}}}, quotes_keys=True) == b'{"b":{"0":{"1":"a"}}}'


def test_quoted_and_unquoted_integer_keys_are_the_same() -> None:
    assert fastjson.loads('{0:"a"}') == fastjson.loads('{"0":"a"}') == {"0": "a"}


@pytest.mark.parametrize(
    "text", ["{a:b}", "{a 1}", "{a:1 b:2}", "[1 2]", "{:1}", "{", "[", "'a", "{a:1}x", "nul", "/", "{a:}"]
)
def test_malformed_json_is_rejected(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="JSON at"):
        fastjson.loads(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":{"$ref":"$"}}', {"a": None}),
        ('{"a":{"$ref":"@"}}', {"a": None}),
        ('{"a":{"b":{"$ref":".."}}}', {"a": {"b": None}}),
        ('{"a":{"$ref":"$.b"},"b":[1]}', {"a": None, "b": [1]}),
        ('{"b":[1],"a":{"$ref":"$.b"}}', {"b": [1], "a": [1]}),
        ('{"b":[1],"a":{"$ref":"$.nothing.here[3]"}}', {"b": [1], "a": None}),
        ('{"b":{"x.y":[7]},"a":{"$ref":"$.b.x\\\\.y"}}', {"b": {"x.y": [7]}, "a": [7]}),
        ('{"b":{"x-y":[7]},"a":{"$ref":"$.b.x\\\\-y"}}', {"b": {"x-y": [7]}, "a": [7]}),
        ('{"b":{"x":[7]},"a":{"$ref":"$[\'b\'][\\"x\\"]"}}', {"b": {"x": [7]}, "a": [7]}),
        ('{"b":{0:{"c":1}},"a":{"$ref":"$.b[0]"}}', {"b": {"0": {"c": 1}}, "a": {"c": 1}}),
        ('{"$ref":"$"}', None),
        ('{"a":{"$ref":5}}', {"a": {"$ref": 5}}),
        ('{"a":{"$ref":"$.a","b":1}}', {"a": {"$ref": "$.a", "b": 1}}),
        ('{"a":[[1],{"$ref":"$.a[00]"},{"$ref":"$.a[99999999999999999999]"}]}', {"a": [[1], [1], None]}),
    ],
)
def test_references_point_backwards_or_give_none(text: str, value: Any) -> None:
    assert fastjson.loads(text) == value


def test_the_size_that_references_expand_to_is_bounded() -> None:
    doubling = ['"a0":[1,1]'] + [
        f'"a{n}":[{{"$ref":"$.a{n - 1}"}},{{"$ref":"$.a{n - 1}"}}]' for n in range(1, 60)
    ]
    short = "{" + ",".join(doubling) + "}"
    with pytest.raises(RemoteProtocolError, match=str(EXPANDED_MIN + len(short))):
        fastjson.loads(short)
    with pytest.raises(RemoteProtocolError, match=str(NODES_MAX)):
        fastjson.loads(short[:-1] + " " * NODES_MAX + "}")
    growing = ['"a0":[1]'] + [f'"a{n}":[{{"$ref":"$.a{n - 1}"}}]' for n in range(1, DEPTH_MAX + 5)]
    with pytest.raises(RemoteProtocolError, match="levels"):
        fastjson.loads("{" + ",".join(growing) + "}")


@pytest.mark.long
def test_the_steps_of_references_are_bounded() -> None:
    assert fastjson.loads('{"a":{"$ref":"$' + ".b" * 4_000_000 + '"}}') == {"a": None}
    deepest = "{" + '"b":{' * (DEPTH_MAX - 2) + "}" * (DEPTH_MAX - 1)
    path = "$[0]" + ".b" * (DEPTH_MAX - 2)
    assert fastjson.loads(f'[{deepest},{{"$ref":"{path}"}}]')[1] == {}
    many = ",".join(['{"$ref":"$.a.a.a"}'] * (STEPS_MAX // 3 + 1))
    with pytest.raises(RemoteProtocolError, match=f"{STEPS_MAX} steps"):
        fastjson.loads(f"[{many}]")


def test_the_lenient_reader_takes_no_more_bytes_than_the_caller_allows() -> None:
    assert fastjson.loads("{a:1}", lenient_bytes_max=5) == {"a": 1}
    with pytest.raises(OversizedError, match="JSON of 6 bytes that is not standard"):
        fastjson.loads("{a:12}", lenient_bytes_max=5)
    assert fastjson.loads('{"a":12}', lenient_bytes_max=5) == {"a": 12}


def test_maps_keyed_by_queues_are_written_with_the_queue_as_key_and_read_back() -> None:
    queue = MessageQueue("T", "b", 0)
    written = fastjson.dumps({queue: 5})
    assert written == b'{{"brokerName":"b","queueId":0,"topic":"T"}:5}'
    assert fastjson.loads(written) == {QUEUE: 5}
    assert fastjson.dumps(fastjson.loads(written)) == written


def test_keys_are_written_in_order_whatever_their_kind() -> None:
    assert fastjson.dumps({"b": 1, "a": 2}) == b'{"a":2,"b":1}'
    assert fastjson.dumps({10: 1, 9: 2}) == b"{9:2,10:1}"
    assert fastjson.dumps_standard({10: 1, 9: 2}) == b'{"9":2,"10":1}'
    assert fastjson.loads(fastjson.dumps({"a": 1, 2: 3})) == {"a": 1, "2": 3}


@pytest.mark.parametrize("name", ["plain", "control \x01", "消息", "half \ud83d", "\x7f", "\u2028", 'qu"ote'])
def test_both_encoders_write_structs_with_the_same_bytes(name: str) -> None:
    queue = MessageQueue(name, "b", 3)
    by_fields = fastjson.dumps({"brokerName": "b", "queueId": 3, "topic": name})
    assert fastjson.dumps(queue) == by_fields
    assert fastjson.loads(by_fields)["topic"] == name.encode("utf-8", "replace").decode()


def test_a_value_that_json_cannot_hold_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        fastjson.dumps({"a": object()})


def test_numbers_texts_and_bytes_have_their_java_form() -> None:
    assert (
        fastjson.dumps([float("nan"), float("inf"), 1e7, b"\x00\xff", True, None])
        == b'[null,null,1.0E7,"AP8=",true,null]'
    )
    assert [fastjson.as_text(value) for value in ("a", 1, True, False, 1.5, {"a": 1}, [1])] == [
        "a",
        "1",
        "true",
        "false",
        "1.5",
        '{"a":1}',
        "[1]",
    ]
    assert fastjson.parse_int(" -12 ") == -12
    assert fastjson.parse_int("1_000") is None
    assert fastjson.parse_int("٣") is None
    assert fastjson.parse_int("9" * 41) is None
