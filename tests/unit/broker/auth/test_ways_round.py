"""The ways round RocketMQ's access control. With `aclStrict=false` a user without the right gets through, as
in RocketMQ. With `aclStrict`, which is the default, the same request is denied."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from epochmq_protocol import message as records
from epochmq_protocol.bodies import (
    CheckClientRequestBody,
    CreateTopicListRequestBody,
    HeartbeatData,
    LockBatchRequestBody,
    ProducerData,
    QueryAssignmentRequestBody,
    SetMessageRequestModeRequestBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    to_json,
)
from epochmq_protocol.bodies_base import MessageQueue
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import Command
from epochmq_protocol.headers_admin import ResumeCheckHalfMessageRequestHeader
from epochmq_protocol.headers_client import (
    ConsumerSendMsgBackRequestHeader,
    QueryMessageRequestHeader,
    ViewMessageRequestHeader,
)
from epochmq_protocol.message import MessageExt
from epochmq_protocol.signatures import SessionCredentials
from epochmq_protocol.topics import TopicConfig
from tests.unit.broker.auth.kit import ENABLED, ROOT, allow, create_acl, signed
from tests.unit.broker.kit import Bench, Peer, bodies, command, pull_command, running, send_command, until
from tests.unit.broker.services.transactions.support import (
    HALF,
    QUICK,
    QUIET,
    ROLLBACK,
    end_command,
    half_command,
    half_properties,
)

DENIED = ResponseCode.NO_PERMISSION
TIMER = "rmq_sys_wheel_timer"
EVE_MAY = {"Topic:mine": ["All"], "Group:eves": ["All"]}


@pytest.fixture(params=[False, True], ids=["as RocketMQ", "strict"])
def strict(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
async def bench(tmp_path: Path, strict: bool) -> AsyncIterator[Bench]:
    async with opened(tmp_path, strict) as found:
        yield found


def opened(directory: Path, strict: bool, more: Mapping[str, str] | None = None):  # type: ignore[no-untyped-def]
    settings = ENABLED | QUIET | {"aclStrict": str(strict).lower()} | dict(more or {})
    return running(directory, settings)


@pytest.fixture
async def peer(bench: Bench) -> Peer:
    return prepared(bench)


@pytest.fixture
async def eve(peer: Peer) -> SessionCredentials:
    """A user with her own topic and group, and nothing else."""
    return allow(peer, "eve", EVE_MAY)


def prepared(bench: Bench) -> Peer:
    for name in ("orders", "mine"):
        bench.broker.topics.put(TopicConfig(topic_name=name))
    for group in ("eves", "readers"):
        bench.broker.groups.update([SubscriptionGroupConfig(group_name=group)])
    return bench.peer()


async def answer_to(peer: Peer, request: Command, user: SessionCredentials) -> Command:
    return await peer.answer(peer.send(signed(request, user)))


NOW_CLUSTER = [
    (RequestCode.GET_ALL_TOPIC_CONFIG, b""),
    (RequestCode.UPDATE_BROKER_CONFIG, b"longPollingEnable=true\n"),
    (RequestCode.GET_BROKER_CONFIG, b""),
    (RequestCode.GET_BROKER_RUNTIME_INFO, b""),
    (RequestCode.GET_ALL_CONSUMER_OFFSET, b""),
    (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, b""),
    (RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, b""),
    (RequestCode.CLEAN_UNUSED_TOPIC, b""),
    (RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, b""),
    (RequestCode.GET_COLD_DATA_FLOW_CTR_INFO, b""),
]


@pytest.mark.parametrize(("code", "body"), NOW_CLUSTER)
async def test_requests_about_the_whole_broker_need_a_right_for_the_cluster(
    peer: Peer, eve: SessionCredentials, strict: bool, code: int, body: bytes
) -> None:
    answer = await answer_to(peer, command(code, None, body), eve)
    assert (answer.code == DENIED) == strict, answer.remark
    if strict:
        assert "Cluster:TestCluster" in (answer.remark or "")
        reader = allow(peer, "reader", {"Cluster:TestCluster": ["Get", "Update"]})
        assert (await answer_to(peer, command(code, None, body), reader)).code != DENIED


BY_BODY = [
    (
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        CreateTopicListRequestBody(
            topic_config_list=[TopicConfig(topic_name="mine"), TopicConfig(topic_name="orders")]
        ),
        "Topic:orders",
    ),
    (
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        SubscriptionGroupConfig(group_name="readers"),
        "Group:readers",
    ),
    (
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        SubscriptionGroupList(group_config_list=[SubscriptionGroupConfig(group_name="readers")]),
        "Group:readers",
    ),
    (
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        SetMessageRequestModeRequestBody(topic="mine", consumer_group="readers"),
        "Group:readers",
    ),
    (
        RequestCode.QUERY_ASSIGNMENT,
        QueryAssignmentRequestBody(topic="orders", consumer_group="eves"),
        "Topic:orders",
    ),
    (RequestCode.CHECK_CLIENT_CONFIG, CheckClientRequestBody(group="readers"), "Group:readers"),
]


@pytest.mark.parametrize(("code", "body", "resource"), BY_BODY)
async def test_requests_need_a_right_for_the_objects_that_their_body_names(
    peer: Peer, eve: SessionCredentials, strict: bool, code: int, body: object, resource: str
) -> None:
    answer = await answer_to(peer, command(code, None, to_json(body)), eve)
    assert (answer.code == DENIED) == strict, answer.remark
    if strict:
        assert resource in (answer.remark or "")


async def test_a_reply_needs_the_right_to_publish_to_its_topic(
    bench: Bench, peer: Peer, eve: SessionCredentials, strict: bool
) -> None:
    reply = send_command("orders", code=RequestCode.SEND_REPLY_MESSAGE_V2)
    answer = await answer_to(peer, reply, eve)
    assert (answer.code == DENIED) == strict
    assert bench.count("orders") == (0 if strict else 1)
    own = await answer_to(peer, send_command("mine", code=RequestCode.SEND_REPLY_MESSAGE_V2), eve)
    assert own.code != DENIED


def put(bench: Bench, topic: str = "orders", body: bytes = b"secret") -> MessageExt:
    at = bench.count(topic)
    assert bench.peer().call(signed(send_command(topic, body), ROOT)).code == 0
    return bench.record(topic, 0, at)


def view(offset: int, **fields: str) -> Command:
    return command(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=offset), b"", **fields)


@pytest.mark.parametrize("claim", [{}, {"topic": "mine"}])
async def test_a_message_is_read_by_its_place_only_with_a_right_for_its_topic(
    bench: Bench, peer: Peer, eve: SessionCredentials, strict: bool, claim: dict[str, str]
) -> None:
    foreign, own = put(bench), put(bench, "mine")
    answer = await answer_to(peer, view(foreign.physical_offset, **claim), eve)
    assert (b"secret" in answer.body) == (not strict)
    assert (answer.code == DENIED) == strict
    assert b"secret" in (await answer_to(peer, view(own.physical_offset, **claim), eve)).body


def put_with_inner(bench: Bench, topic: str, properties: Mapping[str, str]) -> MessageExt:
    """Sends a message of `mine` whose body holds the bytes of a message. Returns this inner one, as a client
    names it, who has found out from an earlier message where the next one will be."""
    inner = MessageExt(
        topic=topic,
        queue_id=0,
        flag=0,
        queue_offset=0,
        physical_offset=0,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        born_host=records.encode_host("127.0.0.1", 1),
        store_timestamp=1_700_000_000_000,
        store_host=records.encode_host("127.0.0.1", 2),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=b"forged",
        properties=records.format_properties(properties),
    )
    first = put(bench, "mine", b"AAAA" + records.encode_record(inner))
    raw = bench.broker.store.read(first.physical_offset)
    assert raw is not None
    inner.physical_offset = first.physical_offset + len(raw) + raw.index(b"AAAA") + 4
    put(bench, "mine", b"AAAA" + records.encode_record(inner))
    found = bench.broker.store.read(inner.physical_offset)
    assert found is not None, "the log reads whatever looks like a message"
    return inner


async def test_bytes_in_a_body_that_look_like_a_message_are_none(
    bench: Bench, peer: Peer, eve: SessionCredentials, strict: bool
) -> None:
    inside = put_with_inner(bench, "mine", {}).physical_offset
    answer = await answer_to(peer, view(inside, topic="mine"), eve)
    assert (b"forged" in answer.body) == (not strict)
    if strict:
        assert answer.remark == f"no message starts at the offset {inside}"


async def test_a_forged_half_message_in_a_body_is_not_committed(
    bench: Bench, peer: Peer, eve: SessionCredentials, strict: bool
) -> None:
    properties = half_properties(REAL_TOPIC="orders", REAL_QID="0")
    half = put_with_inner(bench, HALF, properties)
    await answer_to(peer, end_command(half, from_transaction_check=True, topic="mine"), eve)
    assert bench.count("orders") == (0 if strict else 1)


async def test_a_foreign_message_is_not_copied_into_ones_own_retry_topic(
    bench: Bench, peer: Peer, eve: SessionCredentials, strict: bool
) -> None:
    foreign, own = put(bench), put(bench, "mine")

    async def send_back(record: MessageExt) -> Command:
        header = ConsumerSendMsgBackRequestHeader(
            group="eves", offset=record.physical_offset, delay_level=0, origin_topic="mine"
        )
        return await answer_to(peer, command(RequestCode.CONSUMER_SEND_MSG_BACK, header), eve)

    assert ((await send_back(foreign)).code == DENIED) == strict
    assert (await send_back(own)).code == ResponseCode.SUCCESS
    copies = bench.broker.store.lookup.topics()
    assert "SCHEDULE_TOPIC_XXXX" in copies


async def test_the_retries_of_another_group_stay_unread(
    bench: Bench, peer: Peer, eve: SessionCredentials, strict: bool
) -> None:
    for group in ("readers", "eves"):
        bench.broker.topics.put(TopicConfig(topic_name=f"%RETRY%{group}"))
    put(bench, "%RETRY%readers")

    async def pull(topic: str) -> Command:
        return await answer_to(peer, pull_command(topic, group="eves"), eve)

    foreign = await pull("%RETRY%readers")
    assert (b"secret" in foreign.body) == (not strict)
    assert (foreign.code == DENIED) == strict
    assert (await pull("%RETRY%eves")).code != DENIED
    lock = LockBatchRequestBody(
        consumer_group="eves", client_id="c", mq_set=[MessageQueue("%RETRY%readers", "broker-a", 0)]
    )
    locked = await answer_to(peer, command(RequestCode.LOCK_BATCH_MQ, None, to_json(lock)), eve)
    assert (locked.code == DENIED) == strict


@pytest.mark.parametrize("claim", [{}, {"topic": "mine"}])
async def test_a_foreign_transaction_is_not_ended(
    bench: Bench, peer: Peer, eve: SessionCredentials, strict: bool, claim: dict[str, str]
) -> None:
    assert (await answer_to(peer, half_command("orders"), ROOT)).code == 0
    half = bench.record(HALF, 0, 0)
    ended = await answer_to(peer, end_command(half, ROLLBACK, **claim), eve)
    assert (ended.code == DENIED) == strict
    assert bench.broker.transactions.rolled_back == (0 if strict else 1)
    writer = allow(peer, "writer", {"Topic:orders": ["Pub"]})
    assert (await answer_to(peer, end_command(half), writer)).code == 0


async def test_the_answer_to_a_check_needs_the_right_to_publish_the_message_only(
    bench: Bench, peer: Peer, eve: SessionCredentials, strict: bool
) -> None:
    """A broker asks a producer in the name of the topic of half messages, and RocketMQ's client answers with
    that topic. In RocketMQ, producers therefore need the right to publish to the topic of half messages."""
    assert (await answer_to(peer, half_command("orders"), ROOT)).code == 0
    half = bench.record(HALF, 0, 0)
    answer = end_command(half, from_transaction_check=True, topic=HALF)
    assert (await answer_to(peer, answer, eve)).code == DENIED
    writer = allow(peer, "writer", {"Topic:orders": ["Pub"]})
    assert ((await answer_to(peer, answer, writer)).code == 0) == strict
    assert bench.count("orders", 1) == (1 if strict else 0)


async def test_a_message_of_ones_own_does_not_become_a_half_message_of_another_topic(
    bench: Bench, peer: Peer, eve: SessionCredentials, strict: bool
) -> None:
    """Resumed, and then committed, it would be written to any topic."""
    sent = send_command(
        "mine", properties=half_properties(REAL_TOPIC="orders", REAL_QID="0", TRAN_MSG="false")
    )
    assert (await answer_to(peer, sent, eve)).code == 0
    record = bench.record("mine", 0, 0)
    header = ResumeCheckHalfMessageRequestHeader(msg_id=record.msg_id)
    resumed = await answer_to(peer, command(RequestCode.RESUME_CHECK_HALF_MESSAGE, header), eve)
    assert (resumed.code == DENIED) == strict, resumed.remark
    assert bench.count(HALF) == (0 if strict else 1)


async def test_only_a_broker_names_an_inner_producer_group(bench: Bench, peer: Peer, strict: bool) -> None:
    """The group lifts the ban on system topics."""
    eve = allow(peer, "eve", {"Topic:*": ["Pub"]})
    bench.broker.topics.put(TopicConfig(topic_name=TIMER))
    inner = send_command(TIMER, producer_group="InnerProducerGroup_broker-b_1")
    answer = await answer_to(peer, inner, eve)
    assert (answer.code == DENIED) == strict
    if strict:
        assert "Cluster:TestCluster" in (answer.remark or "")
    assert bench.count(TIMER) == (0 if strict else 1)
    again = send_command(TIMER, producer_group="InnerProducerGroup_broker-b_1")
    assert (await answer_to(peer, again, ROOT)).code == 0


async def test_light_queues_need_the_right_to_publish_to_each(tmp_path: Path, strict: bool) -> None:
    async with opened(tmp_path, strict, {"enableMultiDispatch": "true", "enableLmq": "true"}) as bench:
        peer = prepared(bench)
        eve = allow(peer, "eve", EVE_MAY)
        sent = send_command("mine", properties={"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"})
        assert ((await answer_to(peer, sent, eve)).code == DENIED) == strict
        writer = allow(peer, "writer", {"Topic:mine": ["Pub"], "Topic:%LMQ%*": ["Pub"]})
        sent = send_command("mine", properties={"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"})
        assert (await answer_to(peer, sent, writer)).code == 0


def producer(bench: Bench, user: SessionCredentials, client_id: str = "client") -> Peer:
    peer = bench.peer()
    beat = HeartbeatData(client_id=client_id, producer_data_set=[ProducerData(group_name="producers")])
    assert peer.call(signed(command(RequestCode.HEART_BEAT, None, to_json(beat)), user)).code == 0
    return peer


async def test_half_messages_go_only_to_producers_that_may_publish_their_topic(
    tmp_path: Path, strict: bool
) -> None:
    async with opened(tmp_path, strict, QUICK) as bench:
        peer = prepared(bench)
        stranger = producer(bench, allow(peer, "eve", EVE_MAY))
        assert (await answer_to(peer, half_command("orders", b"secret"), ROOT)).code == 0
        if strict:
            await until(lambda: bench.broker.transactions.checks.unreachable > 0)
            stranger.collect()
            assert stranger.requests == []
            writer = producer(bench, allow(peer, "writer", {"Topic:orders": ["Pub"]}), "other")
            await until(lambda: writer.collect() or writer.requests)
            assert writer.requests[0].code == RequestCode.CHECK_TRANSACTION_STATE
            stranger.collect()
            assert stranger.requests == []
        else:
            await until(lambda: stranger.collect() or stranger.requests)
            assert b"secret" in stranger.requests[0].body


async def test_the_replies_to_a_client_do_not_go_to_another_user_who_takes_its_id(
    bench: Bench, peer: Peer, eve: SessionCredentials, strict: bool
) -> None:
    writer = allow(peer, "writer", {"Topic:orders": ["Pub"]})
    asker = producer(bench, writer, "asker")
    stranger = producer(bench, eve, "asker")
    clients = bench.broker.tables.clients
    expected = asker if strict else stranger
    assert clients.producer_channel("asker") is expected.connection
    again = producer(bench, writer, "asker")
    assert clients.producer_channel("asker") is again.connection
    again.close()
    stranger = producer(bench, eve, "asker")
    assert clients.producer_channel("asker") is stranger.connection, "the client has left"


def java_hash(text: str) -> int:
    value = 0
    for character in text:
        value = (value * 31 + ord(character)) & 0xFFFFFFFF
    return value


async def test_a_query_by_key_finds_no_message_of_another_topic(
    bench: Bench, peer: Peer, eve: SessionCredentials
) -> None:
    """`mine#…` and `minf#…` have the same hash code if the next characters make up for the difference."""
    bench.broker.topics.put(TopicConfig(topic_name="minf"))
    # "e" + "#" + chr(c) and "f" + "#" + chr(c - 31 * 31) are out of ASCII: 961 above the other
    foreign_key, own_key = "A", chr(ord("A") + 961)
    assert java_hash(f"minf#{foreign_key}") == java_hash(f"mine#{own_key}")
    sent = send_command("minf", b"secret", {"KEYS": foreign_key, "WAIT": "true"})
    assert (await answer_to(peer, sent, ROOT)).code == 0
    header = QueryMessageRequestHeader(
        topic="mine", key=own_key, max_num=10, begin_timestamp=0, end_timestamp=2**60
    )
    answer = await answer_to(peer, command(RequestCode.QUERY_MESSAGE, header), eve)
    assert b"secret" not in answer.body
    header = QueryMessageRequestHeader(
        topic="minf", key=foreign_key, max_num=10, begin_timestamp=0, end_timestamp=2**60
    )
    found = await answer_to(peer, command(RequestCode.QUERY_MESSAGE, header), ROOT)
    assert bodies(records.decode_records(found.body)) == [b"secret"]


async def test_every_code_that_a_broker_serves_has_a_rule(bench: Bench) -> None:
    from epochmq_broker.auth.strict_rules import has_rule
    from epochmq_broker.requests.fast_handler import Port

    without = [code for port in Port for code in bench.broker.pipeline.served[port] if not has_rule(code)]
    assert without == []


async def test_a_code_without_a_rule_is_denied_to_all_but_super_users(
    bench: Bench, peer: Peer, eve: SessionCredentials, strict: bool
) -> None:
    """A new request code is closed until it has a rule."""
    from epochmq_broker.auth.strict_rules import strict_access

    (wanted,) = strict_access(command(987_654), "TestCluster")
    assert wanted.resource.key == "Cluster:TestCluster"


async def test_a_name_that_denies_decides_before_a_prefix_that_allows(peer: Peer, strict: bool) -> None:
    sam = allow(peer, "sam", {})
    for resource, decision in (("Topic:orders", "Deny"), ("Topic:or*", "Allow")):
        assert peer.call(signed(create_acl("sam", [resource], ["Pub"], decision))).code == 0
    answer = await answer_to(peer, send_command("orders", b"x"), sam)
    assert (answer.code == DENIED) == strict, answer.remark
