"""Generates requests of every header and body of transactions, timer messages, POP, recall, users and ACLs,
static topics, request modes, filters and cold data: valid ones, and ones with wrong parts, from a seed."""

from __future__ import annotations

import functools
import json
import random
import time
from dataclasses import dataclass
from typing import Any, Final, get_type_hints

import msgspec

from epochmq_protocol import message as records
from epochmq_protocol.codes import RequestCode as Code
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.fastjson import parse_int
from epochmq_protocol.frame import Command
from epochmq_protocol.headers_base import Header
from epochmq_protocol.integers import INT_MAX, INT_MIN
from tests.support.header_classes import request_header

TOPICS: Final = ("T", "ordered", "static", "later")
GROUPS: Final = ("g", "h", "readers")
_NUMBERS: Final = ("0", "1", "2", "7", "-1", "-2", "32", "33", "1000", "60000")
_WRONG_NUMBERS: Final = (
    "", "-", "1e3", "0x10", " 1", "１", "2147483647", "2147483648", "-2147483649", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "NaN", "null",
)  # fmt: skip
_TEXTS: Final = (
    "", " ", "*", "||", "a||b", "a > 1", "a >", "SQL92", "TAG", "%RETRY%g", "%RETRY%g_T", "%DLQ%g", "%LMQ%x",
    "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX",
    "rmq_sys_REVIVE_LOG_TestCluster",
    "TBW102", "unknown", "null", "User:alice", "User:", "Topic:*", "Group:g*", "\u0001", "\u0002", "ü" * 300,
    "x" * 300, "0 1 2 3 0 broker-a 0 0", "0 1 2 3 1 broker-a 0", "a b c", "0 1 2 999 0 broker-b 9 9",
)  # fmt: skip
_NAMES: Final = (
    "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_DEL_UNIQKEY", "TIMER_OUT_MS",
    "REAL_TOPIC",
    "REAL_QID", "TRAN_MSG", "PGROUP", "CHECK_IMMUNITY_TIME_IN_SECONDS", "TRAN_PREPARED_QUEUE_OFFSET", "DELAY",
    "INNER_MULTI_DISPATCH", "INNER_NUM", "TAGS", "KEYS", "UNIQ_KEY", "WAIT", "POP_CK", "__SHARDINGKEY", "a",
    "TRANSACTION_CHECK_TIMES", "__crc32#",
)  # fmt: skip

BODIES: Final[dict[int, Any]] = {
    Code.BATCH_ACK_MESSAGE: {
        "brokerName": "broker-a",
        "acks": [
            {"b": "BQ==", "c": "g", "it": 1000, "pt": 1, "q": 0, "r": "0", "rq": 1, "so": 0, "t": "T"}
        ],
    },
    Code.QUERY_ASSIGNMENT: {
        "clientId": "c", "consumerGroup": "g", "messageModel": "CLUSTERING", "strategyName": "AVG",
        "topic": "T",
    },
    Code.SET_MESSAGE_REQUEST_MODE: {
        "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 1, "topic": "T",
    },
    Code.UPDATE_AND_CREATE_STATIC_TOPIC: {
        "topic": "static", "scope": "__global__", "totalQueues": 1, "bname": "broker-a", "epoch": 1,
        "hostedQueues": {
            "0": [
                {
                    "gen": 0, "queueId": 0, "bname": "broker-a", "logicOffset": 0, "startOffset": 0,
                    "endOffset": -1,
                }
            ]
        },
    },
    Code.HEART_BEAT: {
        "clientID": "client",
        "consumerDataSet": [
            {
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "consumeType": "CONSUME_PASSIVELY",
                "groupName": "readers", "messageModel": "CLUSTERING", "unitMode": False,
                "subscriptionDataSet": [
                    {
                        "topic": "T", "subString": "a > 1", "expressionType": "SQL92", "subVersion": 1,
                        "codeSet": [], "tagsSet": [], "classFilterMode": False,
                    }
                ],
            }
        ],
        "producerDataSet": [{"groupName": "producers"}],
    },
    Code.CHECK_CLIENT_CONFIG: {
        "clientId": "c", "group": "readers",
        "subscriptionData": {"topic": "T", "subString": "a > 1", "expressionType": "SQL92"},
    },
    Code.AUTH_CREATE_USER: {"password": "secret", "userType": "Normal", "userStatus": "enable"},
    Code.AUTH_UPDATE_USER: {"password": "other", "userType": "Super", "userStatus": "disable"},
    Code.AUTH_CREATE_ACL: {
        "subject": "User:alice",
        "policies": [
            {
                "policyType": "Custom",
                "entries": [
                    {
                        "resource": "Topic:T", "actions": ["Pub"], "sourceIps": ["127.0.0.0/8"],
                        "decision": "Allow",
                    }
                ],
            }
        ],
    },
}  # fmt: skip
"""A valid body of each request that has one."""
BODIES[Code.AUTH_UPDATE_ACL] = BODIES[Code.AUTH_CREATE_ACL]
PROPERTIES_BODIES: Final = {
    Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: b"g=1000\nh=-1\n",
    Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: b"g",
}

SENDS: Final = (Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE)
CODES: Final = (
    *SENDS,
    Code.PULL_MESSAGE,
    Code.LITE_PULL_MESSAGE,
    Code.HEART_BEAT,
    Code.CHECK_CLIENT_CONFIG,
    Code.END_TRANSACTION,
    Code.RESUME_CHECK_HALF_MESSAGE,
    Code.RECALL_MESSAGE,
    Code.GET_TIMER_CHECK_POINT,
    Code.GET_TIMER_METRICS,
    Code.QUERY_ASSIGNMENT,
    Code.SET_MESSAGE_REQUEST_MODE,
    Code.GET_ALL_MESSAGE_REQUEST_MODE,
    Code.UPDATE_AND_CREATE_STATIC_TOPIC,
    Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
    Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
    Code.GET_COLD_DATA_FLOW_CTR_INFO,
    Code.SET_COMMITLOG_READ_MODE,
    *(Code(number) for number in range(Code.AUTH_CREATE_USER, Code.AUTH_LIST_ACL + 1)),
    Code.POP_MESSAGE,
    Code.ACK_MESSAGE,
    Code.PEEK_MESSAGE,
    Code.CHANGE_MESSAGE_INVISIBLETIME,
    Code.NOTIFICATION,
    Code.POLLING_INFO,
    Code.POP_ROLLBACK,
    Code.BATCH_ACK_MESSAGE,
)

KEPT: Final = ("pollTime", "suspendTimeoutMillis", "bname")
"""Fields that stay valid: a request that waits, or is for another broker, tests nothing else."""
LENIENT: Final = frozenset({*SENDS, Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE})
"""Requests whose processors read some wrong fields as their default, as Java's decoder does."""
ALWAYS: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR})
_POP_CODES: Final = frozenset(
    {
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.NO_MESSAGE,
        ResponseCode.POLLING_FULL,
        ResponseCode.POLLING_TIMEOUT,
        ResponseCode.NOT_LEADER_FOR_QUEUE,
    }
)
_SEND_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.NOT_LEADER_FOR_QUEUE,
    }
)
_PULL_CODES: Final = frozenset(
    {
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.NOT_LEADER_FOR_QUEUE,
    }
)
_AUTH_CODES: Final = frozenset({ResponseCode.NO_PERMISSION, ResponseCode.INVALID_PARAMETER})
EXPECTED: Final[dict[int, frozenset[int]]] = {
    **dict.fromkeys(CODES, frozenset()),
    **dict.fromkeys(SENDS, _SEND_CODES),
    Code.PULL_MESSAGE: _PULL_CODES,
    Code.LITE_PULL_MESSAGE: _PULL_CODES,
    Code.CHECK_CLIENT_CONFIG: frozenset({ResponseCode.SUBSCRIPTION_PARSE_FAILED}),
    Code.END_TRANSACTION: frozenset({ResponseCode.MESSAGE_ILLEGAL, ResponseCode.ILLEGAL_OPERATION}),
    Code.RECALL_MESSAGE: _SEND_CODES | {ResponseCode.ILLEGAL_OPERATION},
    Code.UPDATE_AND_CREATE_STATIC_TOPIC: frozenset({ResponseCode.INVALID_PARAMETER}),
    **dict.fromkeys(range(Code.AUTH_CREATE_USER, Code.AUTH_LIST_ACL + 1), _AUTH_CODES),
    **{code: _POP_CODES for code in CODES if code >= Code.POP_MESSAGE and code is not Code.POP_ROLLBACK},
    Code.POP_ROLLBACK: frozenset({ResponseCode.REQUEST_CODE_NOT_SUPPORTED}),
    Code.QUERY_ASSIGNMENT: frozenset({ResponseCode.INVALID_PARAMETER}),  # a field is missing
    Code.SET_MESSAGE_REQUEST_MODE: frozenset(
        {
            ResponseCode.INVALID_PARAMETER,
            ResponseCode.NO_PERMISSION,
            ResponseCode.TOPIC_NOT_EXIST,
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        }
    ),
}
"""The codes besides `ALWAYS` that RocketMQ's processors give to these requests."""


@dataclass(frozen=True)
class FuzzedRequest:
    """A request; `expected` are the codes that a response may have. Empty: it gets no response."""

    command: Command
    expected: frozenset[int]


class RequestFuzzer:
    """Draws requests from a seed. About one in three is valid."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._now_ms = int(time.time() * 1000)

    def draw(self) -> FuzzedRequest:
        """The next request."""
        code = self._random.choice(CODES)
        ext = self._fields(code)
        command = Command(int(code), ext=ext, body=self._body(code, ext))
        return FuzzedRequest(command, self._expected(code, ext))

    def _expected(self, code: Code, ext: dict[str, str]) -> frozenset[int]:
        """SYSTEM_ERROR alone if the header cannot be decoded: Java's decoder throws."""
        header = request_header(code)
        if code is Code.SET_COMMITLOG_READ_MODE:
            mode = parse_int(ext.get("READ_AHEAD_MODE", ""))
            if mode is None or not INT_MIN <= mode <= INT_MAX:
                return frozenset({ResponseCode.SYSTEM_ERROR})
            return frozenset({ResponseCode.SUCCESS if mode in (0, 1) else ResponseCode.INVALID_PARAMETER})
        if header is not None and code not in LENIENT:
            try:
                # The broker adds its own time where a POP has none.
                decoded, faults = header.decode_as_java({"bornTime": "0"} | ext)
            except RequestError:
                return EXPECTED[code] | {ResponseCode.SYSTEM_ERROR}
            # The producer does not know the state yet: it is asked later.
            if not faults and getattr(decoded, "commit_or_rollback", None) == 0:
                return frozenset()
        return EXPECTED[code] | ALWAYS

    # Headers

    def _fields(self, code: Code) -> dict[str, str]:
        header = request_header(code)
        ext: dict[str, str] = {}
        if header is not None:
            for name, is_number, required in fields_of(header):
                if required or self._random.random() < 0.4:
                    ext[name] = self._valid(name, is_number=is_number)
        if code is Code.SET_COMMITLOG_READ_MODE:
            ext["READ_AHEAD_MODE"] = self._random.choice(("0", "1", "2"))
        if code in SENDS:
            ext["i" if code is not Code.SEND_MESSAGE else "properties"] = self._properties()
        for _ in range(self._random.choice((0, 0, 1, 1, 2, 3))):
            self._spoil(ext)
        return ext

    def _valid(self, name: str, *, is_number: bool) -> str:
        chance = self._random
        if name in ("topic", "b"):
            return chance.choice(TOPICS)
        if name in ("consumerGroup", "producerGroup", "group", "a"):
            return chance.choice(GROUPS)
        if name in ("pollTime", "suspendTimeoutMillis"):
            return "0"
        if name in ("bornTimestamp", "g"):
            return str(self._now_ms)
        if name in ("bname", "brokerName"):
            return "broker-a"
        if name == "bornTime":
            return "0"  # the broker takes its own time
        if name in ("queueId", "e", "offset", "queueOffset", "tranStateTableOffset", "commitLogOffset"):
            return chance.choice(("0", "0", "1", "2"))
        if name == "commitOrRollback":
            return chance.choice(("0", "8", "12"))
        if name in ("expType", "expressionType"):
            return chance.choice(("TAG", "SQL92"))
        if name == "extraInfo":
            return f"0 {self._now_ms} 60000 {chance.randrange(8)} 0 broker-a 0 {chance.randrange(4)}"
        if name in ("username", "subject"):
            return "alice" if name == "username" else "User:alice"
        return chance.choice(_NUMBERS) if is_number else chance.choice(("true", "false", "*", "T"))

    def _spoil(self, ext: dict[str, str]) -> None:
        """Removes, replaces or adds one field."""
        chance = self._random
        names = [name for name in ext if name not in KEPT]
        kind = chance.randrange(4)
        if kind == 0 and names:
            del ext[chance.choice(names)]
        elif kind == 1 and names:
            ext[chance.choice(names)] = chance.choice(_WRONG_NUMBERS)
        elif kind == 2 and names:
            ext[chance.choice(names)] = chance.choice(_TEXTS)
        else:
            name = "".join(chance.choice("abcT_") for _ in range(3))
            ext[name] = chance.choice(_TEXTS)

    def _properties(self) -> str:
        chance = self._random
        found = {"UNIQ_KEY": f"7F0000016B5C18B4AAC2{chance.getrandbits(32):08X}0000"}
        for _ in range(chance.randrange(4)):
            value = chance.choice((*_NUMBERS, *_WRONG_NUMBERS, *_TEXTS, "true", str(self._now_ms + 5000)))
            found[chance.choice(_NAMES)] = value.replace("\u0001", "").replace("\u0002", "")
        text = records.format_properties(found).decode("utf-8", "replace")
        if chance.random() < 0.05:
            text = text[: chance.randrange(len(text))]
        return text

    # Bodies

    def _body(self, code: Code, ext: dict[str, str]) -> bytes:
        chance = self._random
        if code in SENDS:
            return self._message_body(code)
        if code in PROPERTIES_BODIES:
            return self._cut(PROPERTIES_BODIES[code]) if chance.random() < 0.5 else PROPERTIES_BODIES[code]
        template = BODIES.get(code)
        if template is None:
            return b"" if chance.random() < 0.8 else chance.randbytes(chance.randrange(20))
        document = json.loads(json.dumps(template))
        for _ in range(chance.choice((0, 0, 1, 1, 2))):
            document = self._changed(document)
        data = json.dumps(document).encode()
        return self._cut(data) if chance.random() < 0.1 else data

    def _message_body(self, code: Code) -> bytes:
        chance = self._random
        if code is not Code.SEND_BATCH_MESSAGE or chance.random() < 0.3:
            return chance.randbytes(chance.randrange(40))
        parts = []
        for _ in range(chance.randrange(1, 4)):
            body, properties = chance.randbytes(5), self._properties().encode("utf-8", "replace")
            size = 4 + 4 + 4 + 4 + 4 + len(body) + 2 + len(properties)
            wrong = chance.choice((0, 0, 0, 0, 1, -1, 1 << 20))
            parts.append(
                (size + wrong).to_bytes(4, "big")
                + bytes(12)
                + len(body).to_bytes(4, "big")
                + body
                + len(properties).to_bytes(2, "big")
                + properties
            )
        return b"".join(parts)

    def _cut(self, data: bytes) -> bytes:
        """The data with a part removed or changed."""
        chance = self._random
        at = chance.randrange(len(data))
        return chance.choice((data[:at], data[:at] + chance.randbytes(2) + data[at + 1 :], data[at:]))

    def _changed(self, value: Any) -> Any:
        """The document with one value replaced, removed or nested."""
        chance = self._random
        if isinstance(value, dict) and value and chance.random() < 0.85:
            name = chance.choice(sorted(value))
            if chance.random() < 0.2:
                return {key: one for key, one in value.items() if key != name}
            return value | {name: self._changed(value[name])}
        if isinstance(value, list) and value and chance.random() < 0.85:
            at = chance.randrange(len(value))
            return [*value[:at], self._changed(value[at]), *value[at + 1 :]]
        return chance.choice(
            (None, True, 0, -1, 2**31, 2**63, 1.5, "", "x" * 300, [], {}, [None], {"a": 1}, *_TEXTS[:12])
        )


@functools.cache
def fields_of(header: type[Header]) -> tuple[tuple[str, bool, bool], ...]:
    """(name on the wire, whether it is a number, whether it is required) of every field."""
    hints = get_type_hints(header)
    return tuple(
        (field.encode_name, "int" in str(hints[field.name]), field.required)
        for field in msgspec.structs.fields(header)
    )
