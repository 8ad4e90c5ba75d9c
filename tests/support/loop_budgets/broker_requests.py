"""The largest legal request of each code that a broker serves."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from epochmq_broker.requests.fast_handler import Port
from epochmq_broker.services.cold_control.flow_control import GROUPS_MAX
from epochmq_broker.services.timer.recall_handle import RecallHandle
from epochmq_protocol.bodies import (
    BatchAck,
    BatchAckMessageRequestBody,
    CheckClientRequestBody,
    CreateTopicListRequestBody,
    HeartbeatData,
    LockBatchRequestBody,
    MessageModel,
    ProducerData,
    QueryAssignmentRequestBody,
    SetMessageRequestModeRequestBody,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    UserInfo,
    to_json,
)
from epochmq_protocol.bodies_base import MessageQueue
from epochmq_protocol.codes import RequestCode as Code
from epochmq_protocol.codes import ResponseCode, SerializeType
from epochmq_protocol.frame import FIELDS_MAX, LENIENT_HEADER_BYTES_MAX, Command, encode, request
from epochmq_protocol.headers_client import SendMessageRequestHeader, SendMessageRequestHeaderV2
from epochmq_protocol.properties import REQUEST_LINES_MAX
from epochmq_protocol.replica_control import ReplicaControlCode
from epochmq_protocol.topics import TopicConfig
from tests.support.header_classes import request_header
from tests.support.loop_budgets.large_broker import BUSY_GROUP, WIDE_TOPIC, LargeBroker, acl_of, consumer_of
from tests.support.loop_budgets.measuring import LargestRequest
from tests.unit.broker.auth.kit import signed
from tests.unit.broker.kit import Peer, command, pull_command, send_command

HEADER_CHARS: Final = 200_000
"""Of the longest field in a header."""


VALUES: Final[dict[str, str]] = {
    "topic": "t0", "b": "t0", "group": BUSY_GROUP, "consumerGroup": BUSY_GROUP, "groupName": "new",
    "producerGroup": "crowd", "queueId": "0", "e": "0", "queueOffset": "0", "offset": "0", "maxNum": "64",
    "key": "k", "beginTimestamp": "0", "maxMsgNums": "32", "endTimestamp": str(2**60), "srcGroup": BUSY_GROUP,
    "destGroup": "g1", "topicFilterType": "SINGLE_TAG", "perm": "6", "readQueueNums": "8",
    "writeQueueNums": "8", "defaultTopic": "TBW102", "topicSysFlag": "0", "order": "false", "timestamp": "1",
    "count": "10000", "index": "0", "isForce": "true", "clientID": "c", "commitOffset": "7",
    "invisibleTime": "60000", "pollTime": "0", "compareGroup": BUSY_GROUP, "statsName": "TOPIC_PUT_NUMS",
    "statsKey": "t0", "isOrder": "false", "username": "user1", "filter": "", "subject": "User:user1",
    "subjectFilter": "", "resourceFilter": "", "configType": "topics", "checkStoreTime": "0",
    "minBrokerId": "0", "brokerName": "broker-a", "clientId": "member-1", "offline": "true",
    "cleanOffset": "true", "expType": "TAG", "exp": "*", "initMode": "0", "delayLevel": "3",
    "policyType": "CUSTOM",
}  # fmt: skip
"""Wire name of a header's field → its value, unless a request has another."""


def header_of(code: int, **others: str) -> dict[str, str]:
    """Ext fields with every field of the code's header that has a value."""
    header = request_header(code)
    names = () if header is None else header.__struct_encode_fields__
    return {name: VALUES[name] for name in names if name in VALUES} | others


def largest_requests(large: LargeBroker) -> list[LargestRequest]:
    """The largest request of each code that the main port serves, and of headers that any code may have."""
    made = [
        *_headers(),
        *_clients(large),
        *_messages(large),
        *_tables(large),
        *_administration(large),
        *map(_signed, _users(large)),
    ]
    known = {one.code for one in made}
    served = sorted(map(int, large.bench.broker.pipeline.served[Port.MAIN]))
    return sorted(
        [*made, *(_small(code) for code in served if code in SMALL_REQUESTS and code not in known)],
        key=lambda one: one.code,
    )


def _one(
    code: int,
    what: str,
    body: bytes | Callable[[], bytes] = b"",
    ext: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
    **how: Any,
) -> LargestRequest:
    """`ext`: fields instead of, or beside, those of the header."""

    def make() -> Command:
        others = ext() if callable(ext) else ext or {}
        return command(code, None, body() if callable(body) else body, **header_of(code, **others))

    return LargestRequest(code, what, make, **how)


def _signed(wanted: LargestRequest) -> LargestRequest:
    """The request, made by a super user."""
    return dataclasses.replace(wanted, make=lambda: signed(wanted.make()))


def _small(code: int) -> LargestRequest:
    answer, what = SMALL_REQUESTS[code]
    return _one(code, what, answer=answer)


NOT_HERE: Final = "rejected: needs another role"
SMALL_REQUESTS: Final[dict[int, tuple[int, str]]] = {
    Code.QUERY_CONSUMER_OFFSET: (0, "header only"),
    Code.UPDATE_CONSUMER_OFFSET: (0, "header only"),
    Code.GET_BROKER_CONFIG: (0, "all settings"),
    Code.GET_BROKER_RUNTIME_INFO: (0, "header only"),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: (0, "header only"),
    Code.GET_MAX_OFFSET: (0, "header only"),
    Code.GET_MIN_OFFSET: (0, "header only"),
    Code.GET_EARLIEST_MSG_STORETIME: (0, "header only"),
    Code.GET_ALL_DELAY_OFFSET: (0, "18 delay levels"),
    Code.GET_TIMER_CHECK_POINT: (0, "header only"),
    Code.GET_TIMER_METRICS: (0, "header only"),
    Code.VIEW_BROKER_STATS_DATA: (0, "header only"),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: (0, "header only"),
    Code.GET_TOPIC_CONFIG: (0, "header only"),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: (0, "header only"),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: (0, "header only"),
    Code.DELETE_EXPIRED_COMMITLOG: (0, "header only"),
    Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: (0, "header only"),
    Code.EXPORT_ROCKSDB_CONFIG_TO_JSON: (0, "header only"),
    Code.POP_ROLLBACK: (0, "header only"),
    Code.NOTIFY_MIN_BROKER_ID_CHANGE: (0, "header only"),
    Code.EXCHANGE_BROKER_HA_INFO: (0, "header only"),
    Code.GET_BROKER_HA_STATUS: (0, "header only"),
    Code.RESET_MASTER_FLUSH_OFFSET: (0, "header only"),
    Code.GET_BROKER_EPOCH_CACHE: (ResponseCode.SYSTEM_ERROR, NOT_HERE),
    Code.NOTIFY_BROKER_ROLE_CHANGED: (0, "header only"),
    Code.POLLING_INFO: (0, "header only"),
    ReplicaControlCode.SWITCHOVER: (ResponseCode.SYSTEM_ERROR, NOT_HERE),
    ReplicaControlCode.SET_CONTROL_STATE: (0, "header only"),
    ReplicaControlCode.COPY_TABLES: (ResponseCode.SYSTEM_ERROR, NOT_HERE),
    ReplicaControlCode.GET_MASTER_LOG_STATE: (ResponseCode.SYSTEM_ERROR, NOT_HERE),
    ReplicaControlCode.LOG_CHECKSUMS: (ResponseCode.SYSTEM_ERROR, NOT_HERE),
    ReplicaControlCode.SETTLE_STORE: (ResponseCode.SYSTEM_ERROR, NOT_HERE),
    ReplicaControlCode.WRITE_PROMISE: (ResponseCode.SYSTEM_ERROR, NOT_HERE),
}
"""Requests of one size only: the expected response, and a word about the request."""


def _headers() -> Iterator[LargestRequest]:
    """Headers of the longest kinds, which any code of any port may have. The request itself is small."""
    small = header_of(Code.GET_MAX_OFFSET)
    fields = small | {f"f{number}": "v" * 200 for number in range(FIELDS_MAX - 20)}
    yield _one(Code.GET_MAX_OFFSET, "a header with as many fields as it may have", ext=fields)
    short = LENIENT_HEADER_BYTES_MAX - 400
    lenient = ",".join(f"f{number}:'v'" for number in range(short // 11))
    yield _with_header("a lenient header of the longest kind", f"{{extFields:{{{_plain(small)},{lenient}}}")
    references = ",".join(['{"$ref":"$.a.a.a"}'] * (short // 20))
    begin = f'{{"extFields":{{{_plain(small)},"n":1}},"a":{{"a":{{"a":[]}}}},"x":[{references}]'
    yield _with_header("a header with references", begin)

    def binary() -> Command:
        made = command(Code.GET_MAX_OFFSET, None, b"", **small)
        made.ext = {**(made.ext or {}), **{f"f{number}": "v" for number in range(FIELDS_MAX - 10)}}
        made.serialize = SerializeType.ROCKETMQ
        return made

    yield LargestRequest(Code.GET_MAX_OFFSET, "a binary header with as many fields as it may have", binary)


def _plain(fields: Mapping[str, str]) -> str:
    return ",".join(f'"{name}":"{value}"' for name, value in fields.items())


def _with_header(what: str, begin: str) -> LargestRequest:
    """A request with the header that begins so."""

    def frame(opaque: int) -> bytes:
        header = f'{begin},"code":{Code.GET_MAX_OFFSET:d},"flag":0,"opaque":{opaque},"version":475}}'.encode()
        assert len(header) <= LENIENT_HEADER_BYTES_MAX
        return (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header

    return LargestRequest(Code.GET_MAX_OFFSET, what, lambda: command(Code.GET_MAX_OFFSET), frame=frame)


def _clients(large: LargeBroker) -> Iterator[LargestRequest]:
    sizes = large.sizes
    consumers = sizes.heartbeat_groups // 2
    each = sizes.heartbeat_subscriptions // consumers

    def heartbeat() -> bytes:
        number = large.next_number()
        return to_json(
            HeartbeatData(
                client_id=f"c{number}",
                consumer_data_set=[consumer_of(f"new{number}-{n}", each, n) for n in range(consumers)],
                producer_data_set=[ProducerData(f"p{n}") for n in range(sizes.heartbeat_groups - consumers)],
            )
        )

    yield _one(
        Code.HEART_BEAT,
        f"{consumers} new consumer groups with {each} subscriptions each, {consumers} producer groups",
        heartbeat,
    )

    def joins() -> bytes:
        return to_json(
            HeartbeatData(
                client_id=f"c{large.next_number()}", consumer_data_set=[consumer_of(BUSY_GROUP, 1, 0)]
            )
        )

    yield _one(Code.HEART_BEAT, f"joins a group of {sizes.members} members", joins)
    beat = to_json(
        HeartbeatData(
            client_id="c", consumer_data_set=[consumer_of(BUSY_GROUP, each, n) for n in range(consumers)]
        )
    )
    yield _one(Code.HEART_BEAT, "the same group many times", beat)
    yield _one(Code.UNREGISTER_CLIENT, f"leaves a group of {sizes.members} members")
    yield _one(Code.GET_CONSUMER_LIST_BY_GROUP, f"{sizes.members} members")
    yield _one(Code.GET_CONSUMER_CONNECTION_LIST, f"{sizes.members} members")
    yield _one(Code.GET_PRODUCER_CONNECTION_LIST, f"{sizes.members} producers")
    yield _one(Code.GET_ALL_PRODUCER_INFO, f"{sizes.members} producers")
    queues = {
        MessageQueue(f"t{n % sizes.topics}", "broker-a", n // sizes.topics)
        for n in range(sizes.locked_queues)
    }
    lock = to_json(LockBatchRequestBody(consumer_group=BUSY_GROUP, client_id="c", mq_set=queues))
    yield _one(Code.LOCK_BATCH_MQ, f"{len(queues)} queues", lock)
    yield _one(Code.UNLOCK_BATCH_MQ, f"{len(queues)} queues", lock)
    expression = " OR ".join(f"a = {n}" for n in range(1000))
    check = CheckClientRequestBody(
        client_id="c",
        group="g1",
        subscription_data=SubscriptionData(topic="t0", sub_string=expression, expression_type="SQL92"),
    )
    yield _one(Code.CHECK_CLIENT_CONFIG, "an SQL92 expression of 1,000 terms", to_json(check))
    lenient = b"{subscriptionData:{topic:'t0',tagsSet:[%b]}}" % b",".join(b"'t%d'" % n for n in range(300))
    yield _one(Code.CHECK_CLIENT_CONFIG, "lenient JSON of 2 kB", lenient)
    tags = b",".join(b'"%d"' % n for n in range(8_000))
    plain = b'{"subscriptionData":{"topic":"t0","tagsSet":[%b]}}' % tags
    yield _one(Code.CHECK_CLIENT_CONFIG, "a body of 64 kB", plain)
    yield _one(
        Code.QUERY_ASSIGNMENT,
        "a topic of 1,024 queues",
        to_json(
            QueryAssignmentRequestBody(
                topic=WIDE_TOPIC,
                consumer_group=BUSY_GROUP,
                client_id="member-1",
                strategy_name="AVG",
                message_model=MessageModel.CLUSTERING,
            )
        ),
        answer=ResponseCode.SUCCESS,
    )

    def mode() -> bytes:
        return to_json(
            SetMessageRequestModeRequestBody(
                topic="t0", consumer_group="g1", pop_share_queue_num=large.next_number()
            )
        )

    yield _one(Code.SET_MESSAGE_REQUEST_MODE, f"a table of {sizes.groups} modes", mode)
    yield _one(
        Code.GET_CONSUMER_RUNNING_INFO,
        "a consumer's report of 1 MB",
        before=lambda: _answer_later(large.members[1], bytes(1 << 20)),
    )
    yield _one(
        Code.CONSUME_MESSAGE_DIRECTLY,
        "a message of 200 KiB",
        ext=lambda: {"msgId": _message_id(large.record_offset())},
        before=lambda: _answer_later(large.members[1], b"{}"),
    )
    yield _one(
        Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        "one member's report of 1,024 queues",
        ext={"clientAddr": "member-1"},
        before=lambda: _answer_later(large.members[1], _status(1024)),
    )


def _status(queues: int) -> bytes:
    rows = ",".join(f'{{"brokerName":"broker-a","queueId":{n},"topic":"t0"}}:{n}' for n in range(queues))
    return b'{"messageQueueTable":{%b}}' % rows.encode()


def _message_id(offset: int) -> str:
    return (bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big") + offset.to_bytes(8, "big")).hex().upper()


def _answer_later(member: Peer, body: bytes) -> None:
    """Has a client respond to the next request that it gets."""
    wire = member.wire
    wire.written.clear()
    member.requests.clear()
    former = wire.write

    def write(data: bytes) -> None:
        wire.write = former  # type: ignore[method-assign]
        former(data)
        member.collect()
        asked = member.requests.pop()
        answer = Command(code=0, opaque=asked.opaque, flag=1, body=body)
        asyncio.get_running_loop().call_soon(member.connection.data_received, encode(answer))

    wire.write = write  # type: ignore[method-assign]


def _messages(large: LargeBroker) -> Iterator[LargestRequest]:
    body = bytes((4 << 20) - 1000)
    properties = {"UNIQ_KEY": "k" * 32, "WAIT": "true", "KEYS": "k", "a": "v" * 30_000}
    for code in (Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2):
        yield LargestRequest(code, "a body of 4 MiB", lambda code=code: _send(code, body))  # type: ignore[misc]
    yield LargestRequest(
        Code.SEND_MESSAGE_V2, "properties of 30,000 characters", lambda: send_command("t0", b"x", properties)
    )
    yield LargestRequest(Code.SEND_BATCH_MESSAGE, "20,000 messages", lambda: _batch(20_000))
    reply = {"REPLY_TO_CLIENT": "member-1", "CORRELATION_ID": "i"}
    for code in (Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2):
        yield LargestRequest(
            code,
            "a body of 4 MiB",
            lambda code=code: _send(code, body, reply),  # type: ignore[misc]
            before=lambda: _answer_later(large.members[1], b""),
        )
    for code in (Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE):
        yield LargestRequest(
            code,
            "as many messages as fit",
            lambda code=code: pull_command("t0", group=BUSY_GROUP, max_msg_nums=1024, code=code),  # type: ignore[misc]
        )
    yield LargestRequest(
        Code.PULL_MESSAGE,
        "an SQL92 expression of 200 terms",
        lambda: pull_command(
            "t0",
            group=BUSY_GROUP,
            max_msg_nums=1024,
            expression_type="SQL92",
            subscription=" OR ".join(f"a = {large.next_number()}" for _ in range(200)),
        ),
        answer=ResponseCode.PULL_RETRY_IMMEDIATELY,
    )
    yield _one(Code.QUERY_MESSAGE, "64 messages", ext={"topic": "t1"})
    yield _one(Code.QUERY_MESSAGE, "64 messages of 200 KiB", ext={"topic": "big"})
    yield _one(
        Code.QUERY_MESSAGE, "a long key", ext={"key": "k" * HEADER_CHARS}, answer=ResponseCode.QUERY_NOT_FOUND
    )
    yield _one(
        Code.VIEW_MESSAGE_BY_ID, "a message of 200 KiB", ext=lambda: {"offset": str(large.record_offset())}
    )
    yield _one(
        Code.CONSUMER_SEND_MSG_BACK,
        "a message of 200 KiB",
        ext=lambda: {"offset": str(large.record_offset()), "group": "g1"},
    )
    yield _one(Code.QUERY_CONSUME_QUEUE, "10,000 units", ext={"count": "10000"})
    yield from _pops(large)
    yield _one(
        Code.END_TRANSACTION,
        "header only",
        ext={"commitOrRollback": "8", "commitLogOffset": "0", "tranStateTableOffset": "0"},
        answer=ResponseCode.SYSTEM_ERROR,
    )
    yield _one(
        Code.RESUME_CHECK_HALF_MESSAGE,
        "header only",
        ext=lambda: {"msgId": _message_id(large.record_offset())},
    )
    yield _one(
        Code.RECALL_MESSAGE,
        "header only",
        ext=lambda: {
            "recallHandle": RecallHandle(
                "t0", "broker-a", str(int(time.time() * 1000) + 60_000), "k"
            ).encode()
        },
    )


def _pops(large: LargeBroker) -> Iterator[LargestRequest]:
    def pop(topic: str) -> Callable[[], Mapping[str, str]]:
        return lambda: {
            "topic": topic,
            "queueId": "-1",
            "bornTime": str(int(time.time() * 1000)),
            "consumerGroup": f"pop{large.next_number()}",
        }

    def info() -> str:
        return f"0 {int(time.time() * 1000)} 60000 0 0 broker-a 0 0"

    yield _one(Code.POP_MESSAGE, "32 messages", ext=pop("t1"))
    yield _one(
        Code.POP_MESSAGE,
        "a topic of 1,024 empty queues",
        ext=pop(WIDE_TOPIC),
        answer=ResponseCode.POLLING_TIMEOUT,
    )
    yield _one(Code.PEEK_MESSAGE, "32 messages", ext={"queueId": "0", "topic": "t1"}, answer=None)
    yield _one(
        Code.NOTIFICATION,
        "a topic of 1,024 queues",
        ext={"topic": WIDE_TOPIC, "queueId": "-1", "bornTime": "0"},
    )
    yield _one(Code.ACK_MESSAGE, "header only", ext=lambda: {"extraInfo": info()})
    yield _one(Code.CHANGE_MESSAGE_INVISIBLETIME, "header only", ext=lambda: {"extraInfo": info()})
    acks = BatchAckMessageRequestBody(
        broker_name="broker-a",
        acks=[
            BatchAck(
                consumer_group=BUSY_GROUP, topic="t0", queue_id=0, bit_set=b"\xff" * 2, revive_queue_id=0,
                pop_time=int(time.time() * 1000) + n, invisible_time=60_000, start_offset=0, retry="0",
            )
            for n in range(4096)
        ],
    )  # fmt: skip
    yield _one(Code.BATCH_ACK_MESSAGE, "4,096 entries", to_json(acks))


def _send(code: int, body: bytes, properties: Mapping[str, str] | None = None) -> Command:
    if code in (Code.SEND_MESSAGE_V2, Code.SEND_REPLY_MESSAGE_V2):
        return send_command("t0", body, properties, code=code)
    short = SendMessageRequestHeaderV2.decode(send_command("t0", body, properties).ext)
    names = {field.name for field in msgspec.structs.fields(SendMessageRequestHeader)}
    fields = {name: value for name, value in msgspec.structs.asdict(short).items() if name in names}
    return request(code, SendMessageRequestHeader(**fields), body)


def _batch(count: int) -> Command:
    one = b"\0\0\0\x1a" + bytes(12) + b"\0\0\0\x01x" + b"\0\x03" + b"a\x01b"
    one = len(one).to_bytes(4, "big") + one[4:]
    return send_command("t0", one * count, {"WAIT": "true"}, code=Code.SEND_BATCH_MESSAGE, batch=True)


def _tables(large: LargeBroker) -> Iterator[LargestRequest]:
    sizes = large.sizes
    topics, groups = f"{sizes.topics} topics", f"{sizes.groups} groups"
    offsets = f"{2 * sizes.topics} groups of topics, {sizes.queues} queues each"
    yield _one(Code.GET_ALL_TOPIC_CONFIG, f"{topics}, after a change", before=large.change_topics)
    yield _one(Code.GET_ALL_TOPIC_CONFIG, f"{topics}, unchanged")
    yield _one(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, f"{groups}, after a change", before=large.change_groups)
    yield _one(Code.GET_ALL_CONSUMER_OFFSET, f"{offsets}, after a change", before=large.change_offsets)
    yield _one(
        Code.GET_ALL_MESSAGE_REQUEST_MODE, f"{sizes.groups} modes, after a change", before=large.change_modes
    )
    yield _one(Code.GET_TOPIC_STATS_INFO, "a topic of 1,024 queues", ext={"topic": WIDE_TOPIC})
    yield _one(Code.GET_CONSUME_STATS, f"a group of {topics}", ext={"topic": "", "topicList": ""})
    listed = ";".join(f"t{n}" for n in range(sizes.topics))
    yield _one(Code.GET_CONSUME_STATS, f"a list of {topics}", ext={"topic": "", "topicList": listed})
    yield _one(Code.GET_BROKER_CONSUME_STATS, offsets)
    yield _one(
        Code.QUERY_CONSUME_TIME_SPAN,
        "a topic of 1,024 queues",
        ext={"topic": WIDE_TOPIC, "group": BUSY_GROUP},
    )
    yield _one(
        Code.INVOKE_BROKER_TO_RESET_OFFSET,
        "a topic of 1,024 queues",
        ext={"topic": WIDE_TOPIC, "queueId": "-1", "timestamp": "1"},
    )
    yield _one(Code.CLONE_GROUP_OFFSET, f"a group of {topics}", ext={"topic": ""})
    filters = ",".join(f"x{n}" for n in range(HEADER_CHARS // 7))
    yield _one(Code.QUERY_CORRECTION_OFFSET, "a list of 28,000 groups", ext={"filterGroups": filters})
    yield _one(Code.QUERY_TOPIC_CONSUME_BY_WHO, offsets)
    yield _one(Code.QUERY_TOPICS_BY_CONSUMER, f"a group of {topics}")


def _administration(large: LargeBroker) -> Iterator[LargestRequest]:
    sizes = large.sizes
    topics, groups = f"a table of {sizes.topics} topics", f"a table of {sizes.groups} groups"
    yield _one(Code.UPDATE_AND_CREATE_TOPIC, topics, ext=lambda: {"topic": f"made{large.next_number()}"})

    def topic_list() -> bytes:
        number = large.next_number()
        configs = [TopicConfig(f"l{n}", topic_sys_flag=number % 1000) for n in range(sizes.topics)]
        return to_json(CreateTopicListRequestBody(topic_config_list=configs))

    yield _one(Code.UPDATE_AND_CREATE_TOPIC_LIST, f"{sizes.topics} topics", topic_list)
    yield _one(
        Code.DELETE_TOPIC_IN_BROKER,
        topics,
        ext=lambda: {"topic": f"l{large.next_number()}"},
    )
    yield _one(Code.CLEAN_UNUSED_TOPIC, topics)
    yield _one(
        Code.UPDATE_AND_CREATE_STATIC_TOPIC,
        topics,
        b'{"bname":"broker-a","epoch":1,"scope":"__global__","topic":"static","totalQueues":1024,"hostedQueues":{%b}}'
        % b",".join(
            b'"%d":[{"gen":0,"queueId":%d,"bname":"broker-a","logicOffset":0,"startOffset":0,"endOffset":-1}]'
            % (n, n)
            for n in range(1024)
        ),
        ext={"topic": "static", "readQueueNums": "1024", "writeQueueNums": "1024"},
    )
    yield _one(
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        groups,
        lambda: to_json(SubscriptionGroupConfig(group_name=f"made{large.next_number()}")),
    )

    def group_list() -> bytes:
        number = large.next_number()
        configs = [
            SubscriptionGroupConfig(group_name=f"l{n}", retry_queue_nums=1 + number % 1000)
            for n in range(sizes.groups)
        ]
        return to_json(SubscriptionGroupList(group_config_list=configs))

    yield _one(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, f"{sizes.groups} groups", group_list)
    yield _one(
        Code.DELETE_SUBSCRIPTIONGROUP,
        groups,
        ext=lambda: {"groupName": f"l{large.next_number() % sizes.groups}"},
    )
    yield _one(
        Code.UPDATE_AND_GET_GROUP_FORBIDDEN,
        groups,
        ext=lambda: {"readable": "true" if large.next_number() % 2 else "false"},
    )
    settings = "".join(f"unknown{n}=value\n" for n in range(REQUEST_LINES_MAX - 1))

    def changed_setting() -> bytes:
        known = "true" if large.next_number() % 2 else "false"
        return f"{settings}traceTopicEnable={known}\n".encode()

    yield _one(
        Code.UPDATE_BROKER_CONFIG,
        f"{REQUEST_LINES_MAX} settings, one of them known",
        changed_setting,
    )
    yield _one(
        Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        f"{REQUEST_LINES_MAX} groups",
        lambda: "".join(f"cold{large.next_number()}=1000\n" for _ in range(REQUEST_LINES_MAX)).encode(),
    )
    yield _one(Code.GET_COLD_DATA_FLOW_CTR_INFO, f"{GROUPS_MAX} groups", before=large.fill_thresholds)
    yield _one(Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, "one group", b"cold1")
    yield _one(Code.SET_COMMITLOG_READ_MODE, "header only", ext={"READ_AHEAD_MODE": "0"})
    yield _one(Code.CLEAN_EXPIRED_CONSUMEQUEUE, "all queues")
    parts = b"".join(n.to_bytes(8, "big") + (n + 100).to_bytes(8, "big") for n in range(0, 20_000, 100))
    yield _one(
        ReplicaControlCode.SCRUB_CHECKSUMS, "200 parts", parts, ext={"brokerName": "broker-a"}, answer=None
    )
    yield _one(
        ReplicaControlCode.SCRUB_BYTES,
        "64 KiB",
        (0).to_bytes(8, "big") + (65_536).to_bytes(8, "big"),
        ext={"brokerName": "broker-a"},
    )


def _users(large: LargeBroker) -> Iterator[LargestRequest]:
    users = f"{large.sizes.users} users with 10 entries each"
    user = to_json(UserInfo(password="new-secret", user_type="Normal"))
    yield _one(Code.AUTH_CREATE_USER, users, user, ext=lambda: {"username": f"made{large.next_number()}"})
    yield _one(Code.AUTH_UPDATE_USER, users, user)
    yield _one(Code.AUTH_DELETE_USER, users, ext=lambda: {"username": f"user{2 + large.next_number() % 3}"})
    yield _one(Code.AUTH_GET_USER, "header only")
    yield _one(Code.AUTH_GET_ACL, "header only")
    yield _one(Code.AUTH_LIST_USER, users)
    yield _one(Code.AUTH_LIST_ACL, users)
    for code in (Code.AUTH_CREATE_ACL, Code.AUTH_UPDATE_ACL):
        yield _one(
            code,
            "1,000 entries for a user with 2,000",
            lambda: to_json(acl_of(1000, f"n{large.next_number() % 2}-")),
            ext={"subject": "User:user1"},
        )
    yield _one(
        Code.AUTH_DELETE_ACL,
        users,
        ext={"subject": "User:user0", "policyType": "CUSTOM", "resource": "Topic:t0-1"},
    )
    yield _one(ReplicaControlCode.GET_ALL_USERS_AND_ACLS, users)
