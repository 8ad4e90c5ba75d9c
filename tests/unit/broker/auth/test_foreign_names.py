"""Requests that name a foreign topic or group in a second place, or leave a name out, are denied by
`aclStrict`. With `aclStrict=false` they get through, as in RocketMQ."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import combinations
from pathlib import Path

import msgspec
import pytest

from epochmq_broker.auth.access_rules import ACCESS_RULES
from epochmq_broker.auth.acls import ResourceType
from epochmq_broker.config.clock import now_ms
from epochmq_broker.requests.fast_handler import Port
from epochmq_protocol.bodies import BatchAck, BatchAckMessageRequestBody, to_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.headers_admin import CreateTopicRequestHeader
from epochmq_protocol.message import BatchElement, encode_batch, format_properties
from epochmq_protocol.signatures import SessionCredentials
from epochmq_protocol.topics import TopicConfig, TopicQueueMappingDetail
from tests.support.header_classes import request_header
from tests.unit.broker.auth.kit import ROOT, allow
from tests.unit.broker.auth.test_ways_round import DENIED, EVE_MAY, answer_to, opened, prepared, put
from tests.unit.broker.kit import UNIQ_KEY, Bench, Peer, command, send_command, until
from tests.unit.broker.steady_clock import use_steady_clock

OTHER_KEY, LAST_KEY = "7F000001000018B4AAC2000000000000", "7F000001000018B4AAC2000000000001"
OWN = {ResourceType.TOPIC: "mine", ResourceType.GROUP: "eves", ResourceType.CLUSTER: "TestCluster"}
SCOPES = [True, False]


@pytest.fixture(params=SCOPES, ids=["strict", "as RocketMQ"])
def strict(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
async def bench(tmp_path: Path, strict: bool) -> AsyncIterator[Bench]:
    async with opened(tmp_path, strict) as found:
        yield found


@pytest.fixture
async def peer(bench: Bench) -> Peer:
    return prepared(bench)


@pytest.fixture
async def eve(peer: Peer) -> SessionCredentials:
    """A user with her own topic and group, and nothing else."""
    return allow(peer, "eve", EVE_MAY)


async def test_the_mapping_of_a_static_topic_names_no_other_topic(
    bench: Bench, peer: Peer, eve: SessionCredentials, strict: bool
) -> None:
    """The header names a topic of one's own, and the mapping in the body, which is stored, another one."""
    header = CreateTopicRequestHeader(
        topic="mine",
        default_topic="TBW102",
        read_queue_nums=1,
        write_queue_nums=1,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        order=False,
    )
    mapping = TopicQueueMappingDetail(topic="orders", bname="broker-a", total_queues=1, epoch=1)
    request = command(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, header, to_json(mapping))
    answer = await answer_to(peer, request, eve)
    assert (answer.code == DENIED) == strict, answer.remark
    assert ("orders" in bench.broker.tables.static_topics.table) == (not strict)


@pytest.mark.parametrize("batch", [False, True], ids=["one message", "a batch"])
async def test_a_timer_message_of_another_topic_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strict: bool, batch: bool
) -> None:
    """A recall is a timer message that deletes another one when both are due. Producers can send it, too."""
    use_steady_clock(monkeypatch)
    settings = {"timerPrecisionMs": "100", "timerFlushIntervalMs": "20"}
    async with opened(tmp_path, strict, settings) as bench:
        peer = prepared(bench)
        eve = allow(peer, "eve", EVE_MAY)
        due = now_ms() // 100 * 100 + 1500
        timed = {"TIMER_DELIVER_MS": str(due)}
        held = send_command("orders", b"secret", {"UNIQ_KEY": UNIQ_KEY, **timed})
        assert (await answer_to(peer, held, ROOT)).code == 0
        last = send_command(
            "mine", b"x", {"UNIQ_KEY": LAST_KEY, "TIMER_DELIVER_MS": str(due + 300)}, queue_id=1
        )
        assert (await answer_to(peer, last, ROOT)).code == 0
        deletes = {"TIMER_DEL_UNIQKEY": f"orders+{UNIQ_KEY}"}
        named = {"UNIQ_KEY": OTHER_KEY, **timed}
        if batch:
            body = encode_batch([BatchElement(b"x"), BatchElement(b"x", format_properties(deletes))])
            sent = send_command("mine", body, named, code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
        else:
            sent = send_command("mine", b"x", named | deletes)
        answer = await answer_to(peer, sent, eve)
        assert (answer.code == DENIED) == strict, answer.remark
        await until(lambda: bench.count("mine", 1) == 1)
        assert bench.count("orders") == (1 if strict else 0)


async def test_deletions_of_more_topics_than_any_producer_has_need_the_right_for_the_cluster(
    peer: Peer, eve: SessionCredentials, strict: bool
) -> None:
    elements = [
        BatchElement(b"x", format_properties({"TIMER_DEL_UNIQKEY": f"mine{number}+K"}))
        for number in range(100)
    ]
    sent = send_command("mine", encode_batch(elements), code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
    answer = await answer_to(peer, sent, eve)
    assert (answer.code == DENIED) == strict, answer.remark
    if strict:
        assert "Cluster:TestCluster" in (answer.remark or "")


RETRIES = "%RETRY%readers"
OF_A_RETRY_TOPIC = [
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
    RequestCode.QUERY_MESSAGE,
    RequestCode.QUERY_CONSUME_QUEUE,
    RequestCode.GET_TOPIC_STATS_INFO,
    RequestCode.GET_TOPIC_CONFIG,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.CLONE_GROUP_OFFSET,
    RequestCode.POP_MESSAGE,
    RequestCode.PEEK_MESSAGE,
    RequestCode.NOTIFICATION,
    RequestCode.POLLING_INFO,
    RequestCode.ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode.RECALL_MESSAGE,
]


@pytest.mark.parametrize("topic", [RETRIES, "%RETRY%readers+orders", "%DLQ%readers"])
@pytest.mark.parametrize("code", OF_A_RETRY_TOPIC, ids=lambda code: code.name)
async def test_no_request_reaches_retries_or_dead_letters_of_another_group(
    tmp_path: Path, code: RequestCode, topic: str
) -> None:
    async with opened(tmp_path, strict=True) as bench:
        peer = prepared(bench)
        eve = allow(peer, "eve", EVE_MAY)
        bench.broker.topics.put(TopicConfig(topic_name=topic))
        put(bench, topic) if "+" not in topic else None
        names = OWN | {ResourceType.TOPIC: topic}
        answer = await answer_to(peer, command(code, None, b"", **(filled(code) | named(code, names))), eve)
        assert answer.code == DENIED, answer.remark
        assert b"secret" not in answer.body


@pytest.mark.parametrize("topic", [RETRIES, "%DLQ%readers", "orders"])
async def test_a_batch_of_acknowledgements_names_no_foreign_topic(tmp_path: Path, topic: str) -> None:
    async with opened(tmp_path, strict=True) as bench:
        eve = allow(prepared(bench), "eve", EVE_MAY)
        acks = [
            BatchAck(consumer_group="eves", topic=name, queue_id=0, bit_set=b"\1") for name in ("mine", topic)
        ]
        body = to_json(BatchAckMessageRequestBody(broker_name="broker-a", acks=acks))
        answer = await answer_to(bench.peer(), command(RequestCode.BATCH_ACK_MESSAGE, None, body), eve)
        assert answer.code == DENIED


def filled(code: int) -> dict[str, str]:
    """Ext fields of a request, each with a value of its type."""
    header = request_header(code)
    if header is None:
        return {}
    found = {}
    for field in msgspec.structs.fields(header):
        kind = str(field.type)
        found[field.encode_name] = "false" if "bool" in kind else "1" if "int" in kind else "x"
    return found


def named(code: int, names: dict[ResourceType, str]) -> dict[str, str]:
    """The ext fields of a request that name resources."""
    fields = {field.name: field.type for field in ACCESS_RULES[code].fields} if code in ACCESS_RULES else {}
    if not fields:
        fields = {
            name: kind
            for name, kind in (("topic", ResourceType.TOPIC), ("consumerGroup", ResourceType.GROUP))
            if name in filled(code)
        }
    if code == RequestCode.CLONE_GROUP_OFFSET:
        fields["srcGroup"] = ResourceType.GROUP
    return {name: names[kind] for name, kind in fields.items()}


def test_the_names_of_the_requests_above_are_found() -> None:
    for code in OF_A_RETRY_TOPIC:
        assert "topic" in named(code, OWN), code


async def test_a_name_that_is_left_out_gives_no_more_than_the_other_names_allow(tmp_path: Path) -> None:
    """Each request with two names or more, without each of them: what is served is about the named one."""
    served: list[tuple[str, list[str]]] = []
    async with opened(tmp_path, strict=True) as bench:
        peer = prepared(bench)
        eve = allow(peer, "eve", EVE_MAY)
        put(bench)
        for code in sorted(bench.broker.pipeline.served[Port.MAIN]):
            names = named(code, OWN) if code in set(RequestCode) else {}
            for count in range(1, len(names)):
                for left_out in combinations(names, count):
                    ext = {k: v for k, v in (filled(code) | names).items() if k not in left_out}
                    answer = await answer_to(peer, command(code, None, b"", **ext), eve)
                    assert b"secret" not in answer.body
                    if answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND):
                        served.append((RequestCode(code).name, sorted(left_out)))
    assert served == SERVED_WITHOUT


SERVED_WITHOUT: list[tuple[str, list[str]]] = [
    ("GET_CONSUME_STATS", ["topic"]),
    ("GET_CONSUME_STATS", ["topicList"]),
    ("GET_CONSUME_STATS", ["topic", "topicList"]),
    ("QUERY_CORRECTION_OFFSET", ["filterGroups"]),
    ("CLONE_GROUP_OFFSET", ["topic"]),
    ("QUERY_SUBSCRIPTION_BY_CONSUMER", ["topic"]),
]
"""Requests that are served without a name: what they return or change belongs to the group or topic that they
name."""
