"""Frames round-trip, and any bytes give a frame or a protocol error."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epochmq_protocol.codes import LanguageCode, RequestCode, ResponseCode, SerializeType
from epochmq_protocol.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from epochmq_protocol.frame import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    Command,
    FrameSplitter,
    decode,
    encode,
    request,
    response,
    split,
)
from epochmq_protocol.headers_client import GetMaxOffsetResponseHeader
from tests.unit.protocol.frame_fuzz import GOOD_FRAMES, FrameFuzz

INTS = st.integers(-(2**31), 2**31 - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
COMMANDS = st.builds(
    Command,
    code=INTS,
    opaque=INTS,
    flag=INTS,
    language=st.sampled_from([int(code) for code in LanguageCode]),
    version=st.integers(0, 32767),
    remark=st.none() | TEXTS,
    ext=st.none() | st.dictionaries(TEXTS, TEXTS, max_size=5),
    body=st.binary(max_size=100),
)


@settings(deadline=None)
@given(COMMANDS)
def test_json_frames_round_trip(command: Command) -> None:
    assert decode(encode(command)[4:]) == command


@settings(deadline=None)
@given(COMMANDS, st.integers(-32768, 32767))
def test_rocketmq_frames_round_trip_except_for_empty_texts(command: Command, code: int) -> None:
    command.code, command.serialize = code, SerializeType.ROCKETMQ
    read = decode(encode(command)[4:])
    command.remark = command.remark or None
    command.ext = {key: value for key, value in (command.ext or {}).items() if key and value}
    read.ext = read.ext or {}
    assert read == command


@settings(deadline=None)
@given(st.binary(max_size=300))
@example(b"")
@example(b"\x00\x00\x00\x00")
@example(b"\x00\x00\x00\x02{}")
@example(b"\x01\x00\x00\x00")
@example(b"\x00\x00\x00\x05[[[[[")
def test_any_bytes_give_a_frame_or_a_protocol_error(data: bytes) -> None:
    for frame in (
        data,
        b"\x00" + len(data).to_bytes(3, "big") + data,
        b"\x01" + len(data).to_bytes(3, "big") + data,
    ):
        try:
            command = decode(frame)
        except ProtocolError:
            continue
        encode(Command(command.code, command.opaque, ext=command.ext, remark=command.remark))


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        (b"{}", Command(0, version=0, language=LanguageCode.OTHER)),
        (b'{"code":105}', Command(105, version=0, language=LanguageCode.OTHER)),
        (b"{code:105,'opaque':\"7\",}", Command(105, 7, version=0, language=LanguageCode.OTHER)),
        (b'{"code":1,"language":"JAVA","version":453}', Command(1, language=LanguageCode.JAVA, version=453)),
        (b'{"code":1,"language":"KLINGON"}', Command(1, language=LanguageCode.OTHER, version=0)),
        (
            b'{"extFields":{"a":1,"b":true,"c":null,"d":1.5,"e":{"f":[1]}}}',
            Command(0, version=0, language=7, ext={"a": "1", "b": "true", "d": "1.5", "e": '{"f":[1]}'}),
        ),
        (b'{"remark":5,"code":null}', Command(0, version=0, language=7, remark="5")),
        (b'{"remark":"\\ud800x","code":1}', Command(1, version=0, language=7, remark="?x")),
    ],
)
def test_headers_are_read_as_leniently_as_fastjson_does(header: bytes, wanted: Command) -> None:
    assert decode(b"\x00" + len(header).to_bytes(3, "big") + header) == wanted


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"1",
        b"null",
        b'{"code":"x"}',
        b'{"code":2147483648}',
        b'{"opaque":-2147483649}',
        b'{"extFields":[1]}',
        b'{"code":1}}',
    ],
)
def test_malformed_headers_are_rejected(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(b"\x00" + len(header).to_bytes(3, "big") + header)


@pytest.mark.parametrize(
    "frame", [b"", b"\x00", b"\x00\x00\x00\x01", b"\x02\x00\x00\x00", b"\x01\x00\x00\x03abc"]
)
def test_frames_without_a_header_are_rejected(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(frame)


@pytest.mark.parametrize(
    "command",
    [
        Command(2**31),
        Command(1, opaque=-(2**31) - 1),
        Command(1, language=99),
        Command(200050, serialize=SerializeType.ROCKETMQ),
        Command(1, version=40000, serialize=SerializeType.ROCKETMQ),
        Command(1, remark="\ud800"),
        Command(1, ext={"a": "\ud800"}, serialize=SerializeType.ROCKETMQ),
        Command(1, ext={"k" * 40000: "v"}, serialize=SerializeType.ROCKETMQ),
        Command(1, ext={"a": "x" * (1 << 24)}),
    ],
)
def test_a_command_that_does_not_fit_a_frame_is_a_local_error(command: Command) -> None:
    with pytest.raises(LocalProtocolError):
        encode(command)


def test_a_response_has_the_opaque_of_its_request_and_the_response_flag() -> None:
    asked = request(RequestCode.GET_MAX_OFFSET, ext={"topic": "T"})
    asked.opaque, asked.serialize = 77, SerializeType.ROCKETMQ
    answer = response(
        asked, ResponseCode.SUCCESS, header=GetMaxOffsetResponseHeader(offset=5), ext={"x": "y"}
    )
    assert (answer.opaque, answer.flag, answer.ext) == (77, FLAG_RESPONSE, {"offset": "5", "x": "y"})
    assert answer.is_response
    assert not answer.is_oneway
    assert not asked.is_response
    assert Command(1, flag=FLAG_ONEWAY).is_oneway
    assert encode(answer)[4] == SerializeType.JSON


def test_a_split_frame_gives_type_header_and_body() -> None:
    frame = encode(Command(1, body=b"abc"))[4:]
    serialize, header, body = split(frame)
    assert (serialize, body) == (0, b"abc")
    assert header.startswith(b'{"code":1,')


@settings(deadline=None)
@given(st.lists(st.binary(min_size=4, max_size=50), max_size=10), st.data())
def test_frames_are_split_from_a_stream_in_any_chunks(frames: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
    splitter = FrameSplitter()
    out: list[bytes] = []
    at = 0
    while at < len(stream):
        size = data.draw(st.integers(1, 60))
        out += splitter.feed(stream[at : at + size])
        at += size
    assert out == frames
    assert splitter.pending_bytes == 0


@pytest.mark.parametrize("length", [0, 1, 3, 1021, 2**31 - 1, 2**31, 2**32 - 1])
def test_an_invalid_length_is_rejected_before_its_bytes_arrive(length: int) -> None:
    splitter = FrameSplitter(max_frame_bytes=1024)
    with pytest.raises(RemoteProtocolError):
        splitter.feed(length.to_bytes(4, "big"))


def test_the_largest_frame_counts_its_own_length_word_as_java_does() -> None:
    splitter = FrameSplitter(max_frame_bytes=1024)
    assert splitter.feed((1020).to_bytes(4, "big") + bytes(1020)) == [bytes(1020)]


def test_the_pieces_of_a_large_frame_are_joined_once() -> None:
    splitter = FrameSplitter()
    frame = bytes(8_000_000)
    stream = len(frame).to_bytes(4, "big") + frame
    for at in range(0, len(stream) - 1000, 1000):
        assert splitter.feed(stream[at : at + 1000]) == []
    assert splitter.feed(stream[(len(stream) - 1) // 1000 * 1000 :]) == [frame]


def _decode_fuzzed(count: int, seed: int) -> dict[str, int]:
    """Feeds `count` fuzzed frames to the decoder and the splitter. Counts their results; any exception but a
    protocol error propagates."""
    outcomes: dict[str, int] = {"frames": 0, "errors": 0}
    fuzz = FrameFuzz(seed)
    for _, frame in zip(range(count), fuzz, strict=False):
        try:
            for content in FrameSplitter(1 << 20).feed(frame):
                decode(content)
            decode(frame[4:])
            outcomes["frames"] += 1
        except ProtocolError:
            outcomes["errors"] += 1
    return outcomes


def _assert_no_growth(count: int) -> None:
    _decode_fuzzed(2_000, seed=1)  # caches fill
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        outcomes = _decode_fuzzed(count, seed=2)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert min(outcomes.values()) > count // 20, outcomes
    assert after - before < 200_000
    assert [decode(frame[4:]).code for frame in GOOD_FRAMES]


@pytest.mark.long
def test_thirty_thousand_bad_frames_raise_only_protocol_errors() -> None:
    _assert_no_growth(30_000)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_million_bad_frames_raise_only_protocol_errors() -> None:
    _assert_no_growth(1_000_000)


def test_the_same_seed_gives_the_same_frames() -> None:
    def some(seed: int) -> list[Any]:
        return [frame for _, frame in zip(range(200), FrameFuzz(seed), strict=False)]

    assert some(5) == some(5)
    assert some(5) != some(6)
