"""Bad frames for a nameserver or a broker, as many as wanted, the same ones for the same seed.

Every generated item says what a sound peer does with it (`Fate`). Names are drawn from small pools, so that
what a request may rightfully create (topics, groups, brokers) is bounded and memory can be held to a bound
too.
"""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from epochmq_protocol.codes import RequestCode
from tests.support.header_classes import request_header
from tests.support.records import encode_batch

FRAME_BYTES_MAX = 16_777_216
BOMB_BYTES = 64 * 1024 * 1024


class Fate(Enum):
    """What the peer does with the bytes."""

    SERVED = auto()  # answers, or ignores what asks for no answer, and serves what follows
    CLOSED = auto()  # closes the connection
    EITHER = auto()  # one of the two
    WAITED_FOR = auto()  # waits for the rest of the frame, which never comes


@dataclass(frozen=True)
class BadFrame:
    """Bytes to send and what becomes of them."""

    kind: str
    data: bytes
    fate: Fate


NAMES = [
    "bad-a",
    "bad-b",
    "%RETRY%bad-group",
    "TBW102",
    "bad topic!",
    "",
    "x" * 300,
    "ü\U0001f40d",
    "a\x00b",
    "../../bad",
]
NUMBERS = [
    "0",
    "1",
    "3",
    "-1",
    "7.5",
    "",
    "null",
    "1e9",
    "0x10",
    " 4 ",
    "+2",
    "２",
    "2147483647",
    "-2147483648",
]
NUMBERS += [
    "2147483648",
    "9223372036854775807",
    "-9223372036854775808",
    "99999999999999999999",
    "true",
    "NaN",
]
TEXTS = [
    "*",
    "||",
    "TagA || TagB",
    "a > > 1",
    "UNIQ_KEY\x01\x02",
    "\x02\x01\x02",
    "{}",
    "[",
    "'",
    "+message.type=DELAY",
]
LEAVES: list[Any] = [
    None,
    True,
    -1,
    0,
    2**63,
    1e308,
    "",
    "bad",
    [],
    {},
    [[]],
    "\ud83d\ude00",
    {"": None},
    [1, "a", None],
]

# Well-formed bodies, each to be spoilt somewhere.
_VERSION = {"counter": 1, "stateVersion": 0, "timestamp": 1700000000000}
_TOPIC = {
    "topicName": "bad-a",
    "readQueueNums": 4,
    "writeQueueNums": 4,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
    "order": False,
    "attributes": {},
}
_QUEUE = {"topic": "bad-a", "brokerName": "bad-broker", "queueId": 0}
_SUBSCRIPTION = {
    "topic": "bad-a",
    "subString": "*",
    "subVersion": 1700000000000,
    "tagsSet": ["a"],
    "codeSet": [97],
    "expressionType": "TAG",
    "classFilterMode": False,
}
_GROUP = {"groupName": "bad-group", "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 16}
_LOCK = {"clientId": "bad@1", "consumerGroup": "bad-group", "mqSet": [_QUEUE], "onlyThisBroker": False}
BODIES: dict[int, Any] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: {"topicConfigList": [_TOPIC]},
    RequestCode.HEART_BEAT: {
        "clientID": "bad@1",
        "producerDataSet": [{"groupName": "bad-group"}],
        "consumerDataSet": [
            {
                "groupName": "bad-group",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [_SUBSCRIPTION],
                "unitMode": False,
            }
        ],
        "heartbeatFingerprint": 0,
        "withoutSub": False,
    },
    RequestCode.LOCK_BATCH_MQ: _LOCK,
    RequestCode.UNLOCK_BATCH_MQ: _LOCK,
    RequestCode.CHECK_CLIENT_CONFIG: {
        "clientId": "bad@1",
        "group": "bad-group",
        "subscriptionData": _SUBSCRIPTION,
    },
    RequestCode.REGISTER_BROKER: {
        "filterServerList": [],
        "topicConfigSerializeWrapper": {
            "dataVersion": _VERSION,
            "mappingDataVersion": _VERSION,
            "topicConfigTable": {"bad-a": _TOPIC, "bad-b": _TOPIC},
            "topicQueueMappingInfoMap": {},
            "topicQueueMappingDetailMap": {},
        },
    },
    RequestCode.QUERY_DATA_VERSION: _VERSION,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _GROUP,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: {
        "queueDatas": [{"brokerName": "bad-broker", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}],
        "brokerDatas": [{"brokerName": "bad-broker", "cluster": "c", "brokerAddrs": {"0": "1.2.3.4:5"}}],
    },
    RequestCode.QUERY_ASSIGNMENT: {"topic": "bad-a", "consumerGroup": "bad-group", "clientId": "bad@1"},
}
# What may rightfully change the service for everybody is no bad input; its own tests spoil it.
LEFT_OUT = frozenset({RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG})


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split()]


# What each peer serves; most requests are of these, the others of any code.
BROKER_CODES = _numbers(
    "10 310 320 11 361 12 14 15 17 18 21 26 28 29 30 31 32 33 34 35 36 37 38 41 42 43 45 46 200 201 202 203"
    " 204 207 208 215 222 223 225 300 303 305 306 307 308 309 314 315 316 317 321 324 325 328 329 343 345 351"
    " 352 353 400 401"
)
NAMESERVER_CODES = _numbers(
    "100 101 102 103 104 105 106 205 206 216 217 219 224 304 311 312 313 319 322 327 901 904"
)


class BadFrames:
    """A seeded source of bad frames for a peer that serves `codes`. `numbers`: further ext fields with
    numbers, which no header of RocketMQ's has."""

    def __init__(self, seed: int, codes: Sequence[int], numbers: Sequence[str] = ()) -> None:
        self.rng = random.Random(seed)
        self._numbers = numbers
        self._codes = codes
        self._any_code = [int(code) for code in RequestCode if code not in LEFT_OUT]
        self._kinds: list[tuple[int, Callable[[], BadFrame]]] = [
            (50, self.nonsense_request),
            (12, self.spoilt_header),
            (10, self.flipped),
            (5, self.bad_header),
            (4, self.unsolicited_answer),
            (4, self.binary_header),
            (4, self.bad_lengths),
            (3, self.noise),
            (3, self.cut_short),
            (1, self.huge_length),
        ]

    def __iter__(self) -> Iterator[BadFrame]:
        weights = [weight for weight, _ in self._kinds]
        while True:
            for _, kind in self.rng.choices(self._kinds, weights, k=1000):
                yield kind()

    # ---- well framed

    def nonsense_request(self) -> BadFrame:
        """A sound frame of any request code with fields and a body that make no sense, or nearly."""
        rng = self.rng
        code = rng.choice(self._codes if rng.random() < 0.8 else self._any_code)
        if rng.random() < 0.03:
            code = rng.randrange(-5, 2**31)
        header: dict[str, Any] = {
            "code": int(code),
            "flag": rng.choice([0, 0, 0, 2, 4]),
            "opaque": rng.randrange(2**31),
        }
        header |= {
            "language": rng.choice(["JAVA", "CPP", "KLINGON", None]),
            "version": rng.choice([479, 0, -1, 2**31 - 1]),
        }
        if rng.random() < 0.95:
            header["extFields"] = self._fields(int(code))
        return BadFrame(f"request {int(code)}", framed(_json(header), self._body(int(code))), Fate.SERVED)

    def _fields(self, code: int) -> dict[str, str]:
        known = request_header(code)
        names = list(known.__struct_encode_fields__) if known else ["topic", "queueId", "group"]
        rng = self.rng
        fields = {}
        for name in names:
            if rng.random() < 0.9:
                fields[name] = self._value(name)
        for name in self._numbers:
            if rng.random() < 0.3:
                fields[name] = rng.choice(NUMBERS)
        if rng.random() < 0.05:
            fields["x" * rng.randrange(1, 2000)] = "y" * rng.randrange(2000)
        return fields

    def _value(self, name: str) -> str:
        rng, roll = self.rng, self.rng.random()
        if name in ("b", "topic", "a", "producerGroup", "consumerGroup", "group", "c") and roll < 0.8:
            return rng.choice(NAMES)
        if roll < 0.55:
            return rng.choice(NUMBERS[:4])
        if roll < 0.75:
            return rng.choice(NUMBERS)
        return rng.choice(NAMES + TEXTS)

    def _body(self, code: int) -> bytes:
        rng, roll = self.rng, self.rng.random()
        if roll < 0.15:
            return b""
        if roll < 0.3:
            return rng.randbytes(rng.randrange(1, 400))
        if code == RequestCode.SEND_BATCH_MESSAGE and roll < 0.8:
            batch = bytearray(encode_batch([(b"body", b"TAGS\x01a\x02")] * rng.randrange(1, 4)))
            batch[rng.randrange(len(batch))] = rng.randrange(256)
            return bytes(batch)
        if code == RequestCode.REGISTER_BROKER and roll < 0.4:
            return zlib.compress(rng.randbytes(20))
        if code in BODIES:
            return _json(self._spoil(BODIES[code]))
        return _json(rng.choice(LEAVES)) if roll < 0.6 else rng.randbytes(rng.randrange(1, 40))

    def _spoil(self, node: Any) -> Any:
        """A copy of a JSON value with one node, somewhere, replaced or left out."""
        rng = self.rng
        if isinstance(node, dict) and node and rng.random() < 0.85:
            key = rng.choice(list(node))
            rest = {k: v for k, v in node.items() if k != key}
            return rest if rng.random() < 0.1 else {**rest, key: self._spoil(node[key])}
        if isinstance(node, list) and node and rng.random() < 0.8:
            return [self._spoil(node[0]), *node[1:]]
        return rng.choice(LEAVES)

    def spoilt_header(self) -> BadFrame:
        """A JSON header whose fields have the wrong types."""
        rng = self.rng
        header: dict[str, Any] = {"code": 105, "flag": 0, "opaque": 1, "language": "JAVA", "version": 479}
        header |= {"extFields": {"topic": "bad-a"}, "remark": "r", "serializeTypeCurrentRPC": "JSON"}
        for _ in range(rng.randint(1, 3)):
            header[rng.choice(list(header))] = rng.choice(LEAVES)
        if rng.random() < 0.3:
            header["extFields"] = {rng.choice(["topic", "", "q"]): rng.choice(LEAVES) for _ in range(3)}
        return BadFrame("spoilt header", framed(_json(header), b""), Fate.EITHER)

    def flipped(self) -> BadFrame:
        """A nonsense request with bytes after the lengths changed, put in or taken out."""
        rng = self.rng
        data = bytearray(self.nonsense_request().data[4:])
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(4, len(data))
            match rng.randrange(3):
                case 0:
                    data[at] = rng.randrange(256)
                case 1:
                    data[at:at] = rng.randbytes(rng.randrange(1, 9))
                case _:
                    del data[at : at + rng.randrange(1, 9)]
            if len(data) < 6:
                data += bytes(6)
        return BadFrame("flipped", struct.pack(">I", len(data)) + data, Fate.EITHER)

    def unsolicited_answer(self) -> BadFrame:
        """A response to no request."""
        header = {
            "code": 0,
            "flag": self.rng.choice([1, 3]),
            "opaque": self.rng.randrange(2**31),
            "language": "JAVA",
        }
        return BadFrame("unsolicited answer", framed(_json(header), self.rng.randbytes(20)), Fate.SERVED)

    def bad_header(self) -> BadFrame:
        """A header that is no JSON object at all."""
        rng = self.rng
        header = rng.choice(
            [
                b"[]",
                b"null",
                b"7",
                b'"text"',
                b"{",
                b'{"code":',
                b"\xff\xfe{}",
                b"[" * 5000,
                b'{"a":' * 3000,
                b'{"code":1' + b"0" * 5000 + b"}",
                rng.randbytes(rng.randrange(1, 200)),
            ]
        )
        return BadFrame("bad header", framed(header, b""), Fate.EITHER)

    def binary_header(self) -> BadFrame:
        """A header in the binary form, its lengths wrong more often than right."""
        rng = self.rng
        remark, fields = rng.randbytes(rng.randrange(10)), rng.randbytes(rng.randrange(40))
        if rng.random() < 0.5:
            fields = (
                struct.pack(">H", 5)
                + b"topic"
                + struct.pack(">i", rng.choice([5, 6, -1, 2**31 - 1]))
                + b"bad-a"
            )
        head = struct.pack(
            ">hBhii", rng.choice([105, 10, -7]), rng.randrange(256), 479, rng.randrange(2**31), 0
        )
        lengths = rng.choice(
            [(len(remark), len(fields)), (-1, len(fields)), (2**31 - 1, 4), (len(remark), -5)]
        )
        data = head + struct.pack(">i", lengths[0]) + remark + struct.pack(">i", lengths[1]) + fields
        return BadFrame("binary header", framed(data, b"body", kind=1), Fate.EITHER)

    # ---- badly framed

    def bad_lengths(self) -> BadFrame:
        """A frame too short for itself, a header longer than its frame, or an unknown serialisation."""
        rng = self.rng
        match rng.randrange(3):
            case 0:
                data = struct.pack(">I", rng.randrange(4)) + bytes(8)
            case 1:
                data = struct.pack(">II", 10, rng.randrange(7, 2**24)) + bytes(6)
            case _:
                data = framed(b"{}", b"", kind=rng.randrange(2, 256))
        return BadFrame("bad lengths", data, Fate.CLOSED)

    def huge_length(self) -> BadFrame:
        """More than a frame may have, or a negative number."""
        length = self.rng.choice([FRAME_BYTES_MAX - 3, FRAME_BYTES_MAX + 1, 2**31 - 1, 2**31, 2**32 - 1])
        return BadFrame("huge length", struct.pack(">I", length) + b"{" * 100, Fate.CLOSED)

    def noise(self) -> BadFrame:
        """Bytes of no meaning, as a port scanner or a client of something else sends them."""
        rng = self.rng
        data = rng.choice(
            [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x05\x01\x00", rng.randbytes(rng.randrange(4, 300))]
        )
        return BadFrame("noise", b"\x7f" + data, Fate.CLOSED)  # as a length: two billion

    def cut_short(self) -> BadFrame:
        """The beginning of a sound frame."""
        data = self.nonsense_request().data
        return BadFrame("cut short", data[: self.rng.randrange(1, len(data))], Fate.WAITED_FOR)


def framed(header: bytes, body: bytes, *, kind: int = 0) -> bytes:
    """A frame around a header of any bytes."""
    return struct.pack(">II", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def bomb() -> bytes:
    """A REGISTER_BROKER whose compressed body unfolds a thousandfold."""
    names = {
        "brokerName": "bomb",
        "brokerAddr": "1.2.3.4:5",
        "clusterName": "c",
        "brokerId": "0",
        "haServerAddr": "1.2.3.4:6",
    }
    header = {"code": 103, "flag": 0, "opaque": 1, "language": "JAVA", "version": 479}
    body = zlib.compress(struct.pack(">i", BOMB_BYTES) + bytes(BOMB_BYTES), 9)
    return framed(_json({**header, "extFields": {**names, "compressed": "true"}}), body)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
