"""mqadmin's requests, in the cases that mqadmin's own output does not show."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from epochmq_broker.auth.access_settings import ACCESS_KEYS
from epochmq_protocol import fastjson, message, properties
from epochmq_protocol.bodies import (
    ConsumerData,
    ConsumeStats,
    ConsumeType,
    CreateTopicListRequestBody,
    GetConsumerStatusBody,
    HeartbeatData,
    KVTable,
    MessageModel,
    MessageQueue,
    MessageRequestMode,
    ResetOffsetBody,
    SetMessageRequestModeRequestBody,
    SubscriptionData,
    SubscriptionGroupConfig,
    from_json,
    to_json,
)
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import Command, encode, response
from epochmq_protocol.headers_admin import (
    CloneGroupOffsetRequestHeader,
    ConsumeMessageDirectlyResultRequestHeader,
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    GetConsumeStatsRequestHeader,
    QueryConsumeQueueRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryCorrectionOffsetHeader,
    QuerySubscriptionByConsumerRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    QueryTopicsByConsumerRequestHeader,
    ResetOffsetRequestHeader,
    UpdateGroupForbiddenRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from epochmq_protocol.headers_base import Header
from epochmq_protocol.topics import TopicConfig
from tests.unit.broker.kit import Bench, Peer, command, running, send_command

LONG_MAX = 2**63 - 1


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path) as made:
        yield made


def ask(bench: Bench, code: int, header: Header | None = None, body: bytes = b"") -> Command:
    return bench.peer().call(command(code, header, body))


async def ask_later(bench: Bench, code: int, header: Header | None = None, body: bytes = b"") -> Command:
    peer = bench.peer()
    return await peer.answer(peer.send(command(code, header, body)))


def result(answer: Command) -> tuple[int, str | None]:
    return answer.code, answer.remark


def online(bench: Bench, client_id: str, group: str, *topics: str) -> Peer:
    peer = bench.peer()
    consumer = ConsumerData(
        group_name=group,
        consume_type=ConsumeType.CONSUME_PASSIVELY,
        message_model=MessageModel.CLUSTERING,
        subscription_data_set=[SubscriptionData(topic=topic, sub_string="*") for topic in topics],
    )
    body = HeartbeatData(client_id=client_id, consumer_data_set=[consumer])
    peer.call(command(RequestCode.HEART_BEAT, body=to_json(body)))
    peer.collect()
    peer.requests.clear()
    return peer


# topics


def create(topic: str, **fields: Any) -> CreateTopicRequestHeader:
    values: dict[str, Any] = {
        "read_queue_nums": 4,
        "write_queue_nums": 4,
        "perm": 6,
        "topic_filter_type": "SINGLE_TAG",
    }
    return CreateTopicRequestHeader(topic=topic, default_topic="TBW102", **(values | fields))


async def test_an_identical_topic_keeps_the_data_version(bench: Bench) -> None:
    for _ in range(2):
        answer = await ask_later(bench, RequestCode.UPDATE_AND_CREATE_TOPIC, create("orders"))
        assert answer.code == ResponseCode.SUCCESS
    assert bench.broker.topics.data_version.counter == 1


@pytest.mark.parametrize(
    ("header", "remark"),
    [
        (create(" "), "The specified topic is blank."),
        (create("a b"), "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        (create("x" * 128), "The specified topic is longer than topic max length."),
        (create("TBW102"), "The topic[TBW102] is conflict with system topic."),
        (create("t", attributes="+message.type=MIXED"), "MIXED message type is not supported."),
        (create("t", read_queue_nums=-1), "-1 queues for a topic: expected 0 to 65536"),
    ],
)
async def test_an_invalid_topic_is_rejected_with_the_reason(
    bench: Bench, header: CreateTopicRequestHeader, remark: str
) -> None:
    answer = await ask_later(bench, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    assert result(answer) == (ResponseCode.INVALID_PARAMETER, remark)
    assert header.topic not in bench.broker.topics or header.topic == "TBW102"


async def test_a_list_of_topics_is_created_as_a_whole_or_not_at_all(bench: Bench) -> None:
    good = TopicConfig(topic_name="good")
    for bad in (
        TopicConfig(topic_name="bad name"),
        TopicConfig(topic_name="bad", read_queue_nums=-1),
        TopicConfig(topic_name="bad", write_queue_nums=-1),
    ):
        body = to_json(CreateTopicListRequestBody(topic_config_list=[good, bad]))
        answer = await ask_later(bench, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert "good" not in bench.broker.topics
    body = to_json(CreateTopicListRequestBody(topic_config_list=[good]))
    assert (await ask_later(bench, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)).code == 0
    assert "good" in bench.broker.topics


@pytest.mark.parametrize("other", [False, True], ids=["its own", "of another group, too"])
async def test_a_deleted_topic_takes_no_retries_of_another_group_with_it(bench: Bench, other: bool) -> None:
    """In the form V1, the retry topic of the group `a` for the topic `b_c` is that of the group `a_b_c`."""
    for name in ("b_c", "%RETRY%a_b_c"):
        bench.broker.topics.put(TopicConfig(topic_name=name))
    bench.broker.groups.update(
        [SubscriptionGroupConfig(group_name=name) for name in ("a", *(["a_b_c"] if other else []))]
    )
    bench.broker.tables.offsets.commit("a", "b_c", 0, 1)
    deleted = ask(bench, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="b_c"))
    assert deleted.code == ResponseCode.SUCCESS
    assert "b_c" not in bench.broker.topics
    assert ("%RETRY%a_b_c" in bench.broker.topics) == other


async def test_a_deleted_topic_leaves_nothing_behind_and_can_be_created_again(bench: Bench) -> None:
    broker = bench.broker
    bench.peer().call(send_command("T"))
    broker.offsets.commit("g", "T", 0, 1)
    broker.topics.create_in_send_back("%RETRY%g_T", 1)
    broker.topics.create_in_send_back("%RETRY%g+T", 1)
    assert ask(bench, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="T")).code == 0
    assert {"T", "%RETRY%g_T", "%RETRY%g+T"}.isdisjoint(broker.topics.table)
    assert broker.offsets.table == {}
    assert broker.store.lookup.existing_queue("T", 0) is None
    assert broker.tables.stats.find("TOPIC_PUT_NUMS", "T") is None
    bench.peer().call(send_command("T", b"again"))
    assert bench.record("T", 0, 0).body == b"again"


async def test_queues_without_a_topic_are_deleted_and_others_stay(bench: Bench) -> None:
    for topic in ("gone", "here"):
        bench.peer().call(send_command(topic))
    bench.broker.topics.delete("gone")
    assert ask(bench, RequestCode.CLEAN_UNUSED_TOPIC).code == ResponseCode.SUCCESS
    assert bench.broker.store.lookup.existing_queue("gone", 0) is None
    assert bench.count("here") == 1


# groups


async def test_a_group_needs_a_name(bench: Bench) -> None:
    body = to_json(SubscriptionGroupConfig(group_name=" "))
    assert result(ask(bench, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)) == (
        ResponseCode.INVALID_PARAMETER,
        "The specified group is blank.",
    )


async def test_a_group_is_forbidden_to_read_a_topic_and_allowed_again(bench: Bench) -> None:
    def forbid(readable: bool | None) -> bool:
        header = UpdateGroupForbiddenRequestHeader(group="g", topic="t", readable=readable)
        answer = ask(bench, RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, header)
        return bool(json.loads(answer.body)["readable"])

    assert [forbid(None), forbid(False), forbid(None), forbid(True)] == [True, False, False, True]


async def test_deleting_a_group_keeps_its_offsets_unless_requested(bench: Bench) -> None:
    broker = bench.broker
    for clean, left in ((False, {"T@g": {0: 3}}), (True, {})):
        broker.groups.find("g")
        broker.offsets.commit("g", "T", 0, 3)
        header = DeleteSubscriptionGroupRequestHeader(group_name="g", clean_offset=clean)
        assert ask(bench, RequestCode.DELETE_SUBSCRIPTIONGROUP, header).code == ResponseCode.SUCCESS
        assert "g" not in broker.groups
        assert broker.offsets.table == left


# offsets


def put(bench: Bench, count: int, topic: str = "T") -> None:
    for number in range(count):
        bench.peer().call(send_command(topic, str(number).encode()))


async def reset(bench: Bench, **fields: Any) -> Command:
    values = {"group": "g", "topic": "T", "timestamp": -1, "is_force": True}
    return ask(
        bench, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetRequestHeader(**(values | fields))
    )


async def test_a_reset_goes_to_the_end_to_a_time_or_to_an_offset(bench: Bench) -> None:
    put(bench, 5)
    bench.broker.groups.find("g")
    queue = MessageQueue("T", "broker-a", 0)
    for fields, offset in (({}, 5), ({"timestamp": 0}, 0), ({"queue_id": 0, "offset": 6}, 6)):
        answer = await reset(bench, **fields)
        assert from_json(ResetOffsetBody, answer.body).offset_table[queue] == offset
        assert bench.broker.offsets.query("g", "T", 0) == offset
        assert bench.broker.offsets.has_pending_reset("g", "T", 0)


async def test_an_invalid_reset_is_rejected(bench: Bench) -> None:
    assert result(await reset(bench)) == (ResponseCode.TOPIC_NOT_EXIST, "Topic T does not exist")
    put(bench, 2)
    assert result(await reset(bench)) == (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "Group g does not exist")
    bench.broker.groups.find("g")
    rejected = await reset(bench, queue_id=0, offset=4)
    assert result(rejected) == (ResponseCode.SYSTEM_ERROR, "Target offset 4 not in consume queue range [0-2]")
    assert not bench.broker.offsets.has_resets


async def test_without_server_side_resets_the_offsets_are_pushed_to_online_members(tmp_path: Path) -> None:
    async with running(tmp_path, {"useServerSideResetOffset": "false"}) as bench:
        put(bench, 3)
        bench.broker.groups.find("g")
        for queue_id in range(4):
            bench.broker.offsets.commit("g", "T", queue_id, 2)
        assert (await reset(bench)).code == ResponseCode.CONSUMER_NOT_ONLINE
        member = online(bench, "c1", "g", "T")
        assert (await reset(bench)).code == ResponseCode.SUCCESS
        member.collect()
        [notification] = [r for r in member.requests if r.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET]
        assert notification.is_oneway
        assert (
            from_json(ResetOffsetBody, notification.body).offset_table[MessageQueue("T", "broker-a", 0)] == 3
        )


async def test_offsets_are_cloned_for_one_topic_or_for_all(bench: Bench) -> None:
    for topic in ("a", "b"):
        put(bench, 1, topic)
        bench.broker.offsets.commit("src", topic, 0, 1)
    clone = CloneGroupOffsetRequestHeader(src_group="src", dest_group="one", topic="a")
    assert ask(bench, RequestCode.CLONE_GROUP_OFFSET, clone).code == ResponseCode.SUCCESS
    clone = CloneGroupOffsetRequestHeader(src_group="src", dest_group="all", topic=" ")
    assert ask(bench, RequestCode.CLONE_GROUP_OFFSET, clone).code == ResponseCode.SUCCESS
    assert bench.broker.offsets.topics_of("one") == {"a"}
    assert bench.broker.offsets.topics_of("all") == {"a", "b"}


async def test_correction_offsets_are_the_lowest_of_all_groups_unless_the_compared_group_is_behind(
    bench: Bench,
) -> None:
    put(bench, 9)
    for group, offset in (("slow", 2), ("fast", 8), ("mine", 5)):
        bench.broker.offsets.commit(group, "T", 0, offset)

    def correct(compare: str, filtered: str = "") -> dict[str, int]:
        header = QueryCorrectionOffsetHeader(topic="T", compare_group=compare, filter_groups=filtered)
        answer = ask(bench, RequestCode.QUERY_CORRECTION_OFFSET, header)
        return dict(fastjson.loads(answer.body)["correctionOffsets"])

    assert correct("mine") == {"0": 2}
    assert correct("mine", "slow") == {"0": 5}
    assert correct("slow", "slow,mine") == {"0": LONG_MAX}
    assert bench.broker.offsets.query("slow", "T", 0) == 2


async def test_consume_stats_omit_topics_that_an_online_group_does_not_subscribe(bench: Bench) -> None:
    for topic in ("a", "b"):
        put(bench, 2, topic)
        bench.broker.offsets.commit("g", topic, 0, 1)

    def topics(**fields: str) -> set[str]:
        header = GetConsumeStatsRequestHeader(consumer_group="g", **fields)
        stats = from_json(ConsumeStats, ask(bench, RequestCode.GET_CONSUME_STATS, header).body)
        return {queue.topic for queue in stats.offset_table}

    assert topics() == {"a", "b"}
    online(bench, "c1", "g", "a")
    assert topics() == {"a"}
    assert topics(topic="b") == set()
    assert topics(topic_list="b;nothing") == {"b"}


async def test_a_time_span_has_the_first_last_and_consumed_message_of_every_queue(bench: Bench) -> None:
    put(bench, 3)
    bench.broker.offsets.commit("g", "T", 0, 2)
    header = QueryConsumeTimeSpanRequestHeader(topic="T", group="g")
    spans = fastjson.loads(ask(bench, RequestCode.QUERY_CONSUME_TIME_SPAN, header).body)["consumeTimeSpanSet"]
    times = [bench.record("T", 0, offset).store_timestamp for offset in range(3)]
    first = spans[0]
    assert [first["minTimeStamp"], first["consumeTimeStamp"], first["maxTimeStamp"]] == times
    assert first["delayTime"] >= 0
    assert spans[1]["minTimeStamp"] == -1


async def test_a_time_span_has_no_time_of_a_message_that_does_not_exist(bench: Bench) -> None:
    put(bench, 3)
    bench.broker.offsets.commit("g", "T", 1, 0)

    def span(group: str, queue_id: int) -> dict[str, int]:
        header = QueryConsumeTimeSpanRequestHeader(topic="T", group=group)
        answer = ask(bench, RequestCode.QUERY_CONSUME_TIME_SPAN, header)
        found: dict[str, int] = fastjson.loads(answer.body)["consumeTimeSpanSet"][queue_id]
        return found

    for group, queue_id in (("g", 1), ("nobody", 1), ("nobody", 0)):
        assert span(group, queue_id)["delayTime"] == 0, (group, queue_id)
    assert span("g", 1)["maxTimeStamp"] == 0
    assert span("nobody", 0)["maxTimeStamp"] == bench.record("T", 0, 2).store_timestamp


async def test_the_groups_of_a_topic_have_offsets_or_are_online(bench: Bench) -> None:
    online(bench, "c1", "g", "T")
    bench.broker.offsets.commit("h", "T", 0, 1)
    header = QueryTopicConsumeByWhoRequestHeader(topic="T")
    answer = ask(bench, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
    assert json.loads(answer.body) == {"groupList": ["g", "h"]}


async def test_the_topics_of_a_group_are_those_with_offsets(bench: Bench) -> None:
    for topic in ("T", "U"):
        bench.broker.offsets.commit("g", topic, 0, 1)
    bench.broker.offsets.commit("h", "V", 0, 1)
    answer = ask(bench, RequestCode.QUERY_TOPICS_BY_CONSUMER, QueryTopicsByConsumerRequestHeader(group="g"))
    found = json.loads(answer.body)
    assert (found["topicList"], found["brokerAddr"]) == (["T", "U"], bench.broker.live.current.client_addr)


async def test_the_system_topics_are_those_of_the_table(bench: Bench) -> None:
    answer = ask(bench, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    found = set(json.loads(answer.body)["topicList"])
    assert found == bench.broker.topics.system_topics
    assert {"SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "SCHEDULE_TOPIC_XXXX", "broker-a"} <= found


# clients


async def test_a_request_to_a_consumer_is_forwarded_and_its_response_returned(bench: Bench) -> None:
    member = online(bench, "c1", "g", "T")
    asker = bench.peer()
    header = GetConsumerRunningInfoRequestHeader(consumer_group="g", client_id="c1", jstack_enable=True)
    opaque = asker.send(command(RequestCode.GET_CONSUMER_RUNNING_INFO, header))
    passed = await _request_at(member)
    assert (passed.code, passed.ext) == (RequestCode.GET_CONSUMER_RUNNING_INFO, header.encode())
    _answer(member, passed, ResponseCode.SUCCESS, b'{"jstack":"x"}')
    answer = await asker.answer(opaque)
    assert (answer.code, answer.body) == (ResponseCode.SUCCESS, b'{"jstack":"x"}')


async def test_a_message_is_consumed_directly_with_the_record_as_body(bench: Bench) -> None:
    put(bench, 1)
    record = bench.record("T", 0, 0)
    member = online(bench, "c1", "g", "T")
    asker = bench.peer()
    header = ConsumeMessageDirectlyResultRequestHeader(
        consumer_group="g", client_id="c1", msg_id=record.msg_id, topic="T"
    )
    opaque = asker.send(command(RequestCode.CONSUME_MESSAGE_DIRECTLY, header))
    passed = await _request_at(member)
    assert message.decode_record(passed.body).body == record.body
    assert (passed.ext or {})["brokerName"] == "broker-a"
    assert {"topicSysFlag", "groupSysFlag"} <= (passed.ext or {}).keys()
    _answer(member, passed, ResponseCode.SUCCESS, b"{}")
    assert (await asker.answer(opaque)).code == ResponseCode.SUCCESS


async def test_a_missing_consumer_is_named(bench: Bench) -> None:
    header = GetConsumerRunningInfoRequestHeader(consumer_group="g", client_id="c1")
    answer = await ask_later(bench, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
    assert result(answer) == (ResponseCode.SYSTEM_ERROR, "The Consumer <g> <c1> not online")


async def test_a_request_to_a_consumer_that_leaves_fails_at_once(bench: Bench) -> None:
    member = online(bench, "c1", "g", "T")
    asker = bench.peer()
    header = GetConsumerRunningInfoRequestHeader(consumer_group="g", client_id="c1")
    opaque = asker.send(command(RequestCode.GET_CONSUMER_RUNNING_INFO, header))
    await _request_at(member)
    member.close()
    assert (await asker.answer(opaque)).code == ResponseCode.SYSTEM_ERROR


async def test_the_status_of_a_group_is_collected_from_its_members(bench: Bench) -> None:
    member = online(bench, "c1", "g", "T")
    asker = bench.peer()
    header = GetConsumerStatusRequestHeader(topic="T", group="g")
    opaque = asker.send(command(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header))
    passed = await _request_at(member)
    assert passed.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    table = {MessageQueue("T", "broker-a", 0): 7}
    _answer(member, passed, ResponseCode.SUCCESS, to_json(GetConsumerStatusBody(message_queue_table=table)))
    body = from_json(GetConsumerStatusBody, (await asker.answer(opaque)).body)
    assert body.consumer_table == {"c1": table}


async def test_a_subscription_is_found_by_group_and_topic(bench: Bench) -> None:
    online(bench, "c1", "g", "T")
    for topic, known in (("T", True), ("other", False)):
        header = QuerySubscriptionByConsumerRequestHeader(group="g", topic=topic)
        body = fastjson.loads(ask(bench, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, header).body)
        assert ("subscriptionData" in body) is known


async def _request_at(peer: Peer) -> Command:
    """The request that the broker has sent to a client."""
    while True:
        peer.collect()
        if peer.requests:
            return peer.requests.pop(0)
        peer.wire.wrote.clear()
        await peer.wire.wrote.wait()


def _answer(peer: Peer, asked: Command, code: int, body: bytes) -> None:
    peer.connection.data_received(encode(response(asked, code, body=body)))


# the broker


async def set_config(bench: Bench, **changes: str) -> Command:
    body = properties.format(changes).encode()
    return await ask_later(bench, RequestCode.UPDATE_BROKER_CONFIG, body=body)


async def test_settings_change_together_or_not_at_all(bench: Bench) -> None:
    rejected = await set_config(bench, maxMessageSize="2048", flushDiskType="SOMETIMES")
    assert rejected.code == ResponseCode.SYSTEM_ERROR
    assert rejected.remark == "flushDiskType=SOMETIMES: expected one of ASYNC_FLUSH, SYNC_FLUSH"
    assert bench.broker.live.current.max_message_size == 1 << 20
    assert (await set_config(bench, maxMessageSize="2048", unheardOf="1")).code == ResponseCode.SUCCESS
    assert bench.broker.live.current.max_message_size == 2048


async def test_a_key_fixed_at_the_start_accepts_only_its_present_value(
    bench: Bench,
) -> None:
    port = str(bench.broker.live.current.listen_port)
    rejected = await set_config(bench, listenPort="12345")
    assert rejected.code == ResponseCode.SYSTEM_ERROR
    assert (rejected.remark or "").startswith(
        f"listenPort=12345: expected {port}, because the key cannot change"
    )
    assert (await set_config(bench, listenPort=port)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    "key",
    [
        *("brokerConfigPath", "configBlackList", "rocketmqHome", "secret", "spaced"),
        *("\\ configBlackList", "configBlackList\\ ", "\\tconfigBlackList", "configBlackLis\\u0074"),
        *("\\ brokerConfigPath", "\\ secret", "tls.server.certPath"),
    ],
)
async def test_black_listed_settings_cannot_be_changed(tmp_path: Path, key: str) -> None:
    async with running(
        tmp_path, {"configBlackList": "configBlackList;secret; spaced ;tlsServerCertPath"}
    ) as bench:
        assert result(await set_config(bench, **{key: "x"})) == (
            ResponseCode.NO_PERMISSION,
            "Can not update config in black list.",
        )


@pytest.mark.parametrize("key", ["storePathEpochFile", "storePathBrokerIdentity", "authSecretsPath"])
@pytest.mark.parametrize("before", ["", "\\ "])
async def test_no_file_of_the_broker_can_be_changed(bench: Bench, key: str, before: str) -> None:
    rejected = await set_config(bench, **{before + key: "/etc/shadow"})
    assert rejected.code == ResponseCode.SYSTEM_ERROR
    assert "cannot change while the broker runs" in (rejected.remark or "")
    assert bench.broker.live.as_properties()[key] == ""


async def test_a_private_configuration_file_stays_private(tmp_path: Path) -> None:
    """It may hold passwords."""
    path = tmp_path / "broker.conf"
    path.write_text("maxMessageSize=4096\n")
    path.chmod(0o600)
    async with running(tmp_path / "store", {"brokerConfigPath": str(path)}) as bench:
        await set_config(bench, maxMessageSize="2048")
    assert path.read_text() == "maxMessageSize=2048\n"
    for file in (path, path.with_name("broker.conf.bak")):
        assert file.stat().st_mode & 0o777 == 0o600


async def test_a_change_is_written_into_the_configuration_file_and_the_rest_of_it_stays(
    tmp_path: Path,
) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("# ours\nmaxMessageSize = 4096\n")
    async with running(tmp_path / "store", {"brokerConfigPath": str(path)}) as bench:
        await set_config(bench, maxMessageSize="2048", unheardOf="1")
    assert path.read_text() == "# ours\nmaxMessageSize=2048\n"
    assert path.with_name("broker.conf.bak").read_text() == "# ours\nmaxMessageSize = 4096\n"


async def test_the_settings_version_increments_with_a_change_only(bench: Bench) -> None:
    def counter() -> int:
        answer = ask(bench, RequestCode.GET_BROKER_CONFIG)
        assert properties.parse(answer.body.decode())["brokerName"] == "broker-a"
        return int(json.loads((answer.ext or {})["version"])["counter"])

    before = counter()
    await set_config(bench, unheardOf="1")
    assert counter() == before
    await set_config(bench, traceOn="false")
    assert counter() == before + 1


async def test_keys_of_access_control_are_shown_when_they_are_set_and_passwords_never(bench: Bench) -> None:
    def shown() -> dict[str, str]:
        return properties.parse(ask(bench, RequestCode.GET_BROKER_CONFIG).body.decode())

    assert not ACCESS_KEYS & shown().keys()
    live = bench.broker.live
    live.current = msgspec.structs.replace(
        live.current,
        authentication_whitelist="10,310",
        init_authentication_user='{"username":"admin","password":"secret1"}',
    )
    assert shown()["authenticationWhitelist"] == "10,310"
    assert "secret1" not in str(shown())


async def test_runtime_info_has_the_numbers_cluster_list_needs(bench: Bench) -> None:
    put(bench, 2)
    table = from_json(KVTable, ask(bench, RequestCode.GET_BROKER_RUNTIME_INFO).body).table
    assert table["brokerVersionDesc"] == "V5_3_3"
    assert table["msgPutTotalTodayNow"] == "2"
    assert table["remainTransientStoreBufferNumbs"] == str(2**31 - 1), "there is no such pool"
    assert int(table["earliestMessageTimeStamp"]) == bench.record("T", 0, 0).store_timestamp
    assert 0 <= float(table["commitLogDiskRatio"]) <= 1
    assert all(isinstance(value, str) for value in table.values())


async def test_an_unknown_counter_is_not_found(bench: Bench) -> None:
    header = ViewBrokerStatsDataRequestHeader(stats_name="TOPIC_PUT_NUMS", stats_key="nothing")
    assert result(ask(bench, RequestCode.VIEW_BROKER_STATS_DATA, header)) == (
        ResponseCode.SYSTEM_ERROR,
        "The stats <TOPIC_PUT_NUMS> <nothing> not exist",
    )


async def test_units_of_a_consume_queue_are_returned_from_an_index_on(bench: Bench) -> None:
    put(bench, 3)

    def units(index: int, count: int) -> Command:
        header = QueryConsumeQueueRequestHeader(topic="T", queue_id=0, index=index, count=count)
        return ask(bench, RequestCode.QUERY_CONSUME_QUEUE, header)

    body = fastjson.loads(units(1, 10).body)
    assert (body["minQueueIndex"], body["maxQueueIndex"], len(body["queueData"])) == (0, 3, 2)
    assert len(fastjson.loads(units(0, 1).body)["queueData"]) == 1
    assert result(units(3, 1)) == (ResponseCode.SUCCESS, "Index 3 of 0@T is not exist!")
    assert len(fastjson.loads(units(0, 2**31 - 1).body)["queueData"]) == 3


async def test_a_group_can_be_set_to_pop_a_topic_and_a_restart_keeps_the_mode(tmp_path: Path) -> None:
    def mode(bench: Bench, mode: MessageRequestMode) -> Command:
        body = SetMessageRequestModeRequestBody(topic="T", consumer_group="g", mode=mode)
        return ask(bench, RequestCode.SET_MESSAGE_REQUEST_MODE, body=to_json(body))

    async with running(tmp_path) as bench:
        assert mode(bench, MessageRequestMode.PULL).code == ResponseCode.TOPIC_NOT_EXIST
        put(bench, 1)
        assert mode(bench, MessageRequestMode.PULL).code == ResponseCode.SUCCESS
        assert mode(bench, MessageRequestMode.POP).code == ResponseCode.SUCCESS
    async with running(tmp_path) as bench:
        modes = json.loads(ask(bench, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE).body)
    assert modes["messageRequestModeMap"]["T"]["g"]["mode"] == "POP"


async def test_slaves_get_the_tables_as_in_the_files(bench: Bench) -> None:
    put(bench, 1)
    bench.broker.offsets.commit("g", "T", 0, 1)
    topics = fastjson.loads(ask(bench, RequestCode.GET_ALL_TOPIC_CONFIG).body)
    assert topics["topicConfigTable"].keys() == bench.broker.topics.table.keys()
    assert topics["dataVersion"]["counter"] == bench.broker.topics.data_version.counter
    groups = fastjson.loads(ask(bench, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    assert groups["subscriptionGroupTable"].keys() == bench.broker.groups.table.keys()
    offsets = fastjson.loads(ask(bench, RequestCode.GET_ALL_CONSUMER_OFFSET).body)
    assert offsets["offsetTable"] == {"T@g": {"0": 1}}
    assert "offsetTable" in fastjson.loads(ask(bench, RequestCode.GET_ALL_DELAY_OFFSET).body)
