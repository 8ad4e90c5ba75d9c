"""Generates malformed frames from a seed: valid frames with bytes changed, removed or repeated, headers with
wrong lengths, random bytes, deep nesting. The same seed gives the same frames."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from epochmq_protocol.codes import RequestCode, SerializeType
from epochmq_protocol.frame import Command, encode, request
from epochmq_protocol.headers_client import PullMessageRequestHeader, SendMessageRequestHeaderV2
from epochmq_protocol.message import MessageExt, encode_record

_SEND = SendMessageRequestHeaderV2(
    producer_group="fuzz",
    topic="FuzzTopic",
    default_topic="TBW102",
    default_topic_queue_nums=4,
    queue_id=1,
    sys_flag=0,
    born_timestamp=1_700_000_000_000,
    flag=0,
    properties="UNIQ_KEY\x017F0000016B5C18B4AAC2000000010000\x02TAGS\x01TagA\x02",
)
_PULL = PullMessageRequestHeader(
    consumer_group="fuzz",
    topic="FuzzTopic",
    queue_id=0,
    queue_offset=0,
    max_msg_nums=32,
    sys_flag=0,
    commit_offset=0,
    suspend_timeout_millis=0,
    sub_version=0,
)


def _valid_frames() -> list[bytes]:
    """Valid frames (with their length prefix) of both header types."""
    commands = [
        request(RequestCode.SEND_MESSAGE_V2, _SEND, b"x" * 200),
        request(RequestCode.PULL_MESSAGE, _PULL),
        request(RequestCode.HEART_BEAT, None, b'{"clientID":"c","producerDataSet":[{"groupName":"g"}]}'),
        request(RequestCode.GET_ROUTEINFO_BY_TOPIC, None, ext={"topic": "FuzzTopic"}),
        request(
            RequestCode.REGISTER_BROKER, None, b'{"filterServerList":[],"topicConfigSerializeWrapper":{}}'
        ),
        Command(0, opaque=1, flag=1, remark="запись", body=encode_record(MessageExt("T", b"body"))),
    ]
    frames = []
    for command in commands:
        for serialize in SerializeType:
            command.serialize = serialize
            frames.append(encode(command))
    return frames


GOOD_FRAMES = _valid_frames()
DEPTH = 20_000


class FrameFuzz:
    """An endless iterator of byte strings; each is one frame with its length prefix."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._makers: list[Callable[[], bytes]] = [
            self._mutated,
            self._mutated,
            self._spliced,
            self._truncated,
            self._wrong_length,
            self._wrong_header_length,
            self._wrong_inner_length,
            self._shuffled_json,
            self._random_bytes,
        ]

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._random.random() < 0.0005:
            return self._deeply_nested()
        return self._random.choice(self._makers)()

    def _valid(self) -> bytearray:
        return bytearray(self._random.choice(GOOD_FRAMES))

    def _mutated(self) -> bytes:
        """Some bytes of the content changed, the lengths still right."""
        frame = self._valid()
        for _ in range(self._random.randint(1, 8)):
            frame[self._random.randrange(8, len(frame))] = self._random.randrange(256)
        return bytes(frame)

    def _spliced(self) -> bytes:
        """Parts of a content removed, repeated or swapped, with the right frame length."""
        frame = self._valid()
        a, b = sorted(self._random.randrange(8, len(frame)) for _ in range(2))
        middle: bytes = self._random.choice([b"", bytes(frame[a:b] * 2), bytes(reversed(frame[a:b]))])
        content = frame[4:a] + middle + frame[b:]
        return len(content).to_bytes(4, "big") + bytes(content)

    def _truncated(self) -> bytes:
        frame = self._valid()
        content = frame[4 : self._random.randrange(4, len(frame))]
        return len(content).to_bytes(4, "big") + bytes(content)

    def _wrong_length(self) -> bytes:
        frame = self._valid()
        frame[0:4] = self._some_int()
        return bytes(frame)

    def _wrong_header_length(self) -> bytes:
        frame = self._valid()
        frame[self._random.choice([4, 5, 6, 7])] = self._random.randrange(256)
        return bytes(frame)

    def _wrong_inner_length(self) -> bytes:
        """A ROCKETMQ header with random inner lengths."""
        frame = bytearray(self._random.choice([good for good in GOOD_FRAMES if good[4] == 1]))
        at = self._random.choice([21, 25, self._random.randrange(21, len(frame))])
        frame[at : at + 4] = self._some_int()
        return len(frame[4:]).to_bytes(4, "big") + bytes(frame[4:])

    def _shuffled_json(self) -> bytes:
        """A JSON header of tokens in random order."""
        tokens = [
            "{",
            "}",
            "[",
            "]",
            ":",
            ",",
            '"code"',
            "code",
            "'opaque'",
            "310",
            "-1",
            "1e999",
            '"\\ud800"',
            "null",
            "true",
        ]
        tokens += [
            '"extFields"',
            '{"$ref":"$"}',
            "/*",
            "*/",
            "//",
            "\\",
            '"',
            "99999999999999999999",
            "{{",
            "NaN",
        ]
        header = "".join(self._random.choices(tokens, k=self._random.randint(1, 40))).encode()
        return self._framed(header)

    def _random_bytes(self) -> bytes:
        return self._framed(self._random.randbytes(self._random.randint(0, 200)), self._random.randrange(3))

    def _deeply_nested(self) -> bytes:
        opening = self._random.choice([b"[", b'{"a":', b"{a:", b"{{", b"[{"])
        return self._framed(b'{"extFields":' + opening * self._random.randint(50, DEPTH))

    def _framed(self, header: bytes, serialize: int = 0) -> bytes:
        return (
            (4 + len(header)).to_bytes(4, "big")
            + bytes([serialize])
            + len(header).to_bytes(3, "big")
            + header
        )

    def _some_int(self) -> bytes:
        choices = [
            0,
            1,
            3,
            4,
            0x7FFF_FFFF,
            0x8000_0000,
            0xFFFF_FFFF,
            0x00FF_FFFF,
            self._random.randrange(2**32),
        ]
        return self._random.choice(choices).to_bytes(4, "big")
