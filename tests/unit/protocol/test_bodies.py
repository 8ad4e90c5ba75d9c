"""Any bytes give a body or a body error, and bodies are read as leniently as by fastjson."""

from __future__ import annotations

import contextlib
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochmq_protocol import bodies, fastjson, fastjson_writer, subscription_groups, topics
from epochmq_protocol.bodies import MessageQueue, from_json, to_json
from epochmq_protocol.bodies_base import Body
from epochmq_protocol.bodies_client import (
    BatchAck,
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    LockBatchRequestBody,
    MessageModel,
    SubscriptionData,
)
from epochmq_protocol.errors import BodyError, ProtocolError, RemoteProtocolError, RequestError
from tests.unit.protocol.golden import golden
from tests.unit.protocol.json_values import VALUES

CLASSES = sorted(
    {
        value
        for module in (bodies, topics)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value is not Body
        if not value.__name__.startswith("_")
    },
    key=lambda cls: cls.__name__,
)


def _shaped(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Objects with the names of the class and random values."""
    names = [field.encode_name for field in msgspec.structs.fields(cls)]
    return st.dictionaries(st.sampled_from([*names, "other"]), VALUES, max_size=6)


def _by_hand(body: Any) -> bytes:
    """The body as `_Writer` writes it, without msgspec's encoder."""
    with mock.patch.object(fastjson_writer, "_encoded", return_value=None):
        return to_json(body)


@pytest.mark.long
@pytest.mark.parametrize("cls", CLASSES)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_any_values_give_a_body_or_a_body_error(cls: type[Any], data: st.DataObject) -> None:
    text = fastjson.dumps(data.draw(_shaped(cls) | VALUES))
    try:
        body = from_json(cls, text)
    except BodyError:
        return
    again = from_json(cls, to_json(body))
    assert to_json(again) == to_json(body) == _by_hand(body)


@pytest.mark.parametrize("cls", CLASSES)
@settings(max_examples=5, deadline=None)
@given(data=st.binary(max_size=40))
def test_any_bytes_give_a_body_or_a_body_error(cls: type[Any], data: bytes) -> None:
    with contextlib.suppress(BodyError):
        from_json(cls, data)


@pytest.mark.parametrize("name", ["RegisterBrokerBody", "HeartbeatData", "ConsumeStats", "TopicRouteData"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_bytes_give_a_body_or_a_body_error(name: str, data: st.DataObject) -> None:
    cls: type[Any] = getattr(bodies, name)
    text = bytearray(
        golden("bodies")[name]["full"].encode()
        if name in golden("bodies")
        else golden("route")["plain"].encode()
    )
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(
            st.sampled_from(list(b'{}[]":,019"ab\\$.\x00\xff'))
        )
    with contextlib.suppress(BodyError):
        from_json(cls, bytes(text))


def test_a_malformed_body_gets_system_error_and_the_connection_stays_open() -> None:
    with pytest.raises(BodyError) as caught:
        from_json(bodies.KVTable, b'{"table":5}')
    assert isinstance(caught.value, RequestError)
    assert isinstance(caught.value, RemoteProtocolError)
    assert isinstance(caught.value, ProtocolError)
    assert (caught.value.code, caught.value.remark) == (1, "KVTable.table=5: expected an object")


@pytest.mark.parametrize(
    "text",
    [
        '{"clientID":"c","heartbeatFingerprint":"7","withoutSub":"true"}',
        "{clientID:'c',heartbeatFingerprint:7.0,isWithoutSub:1}",
        '{"client_id":"c","HEARTBEATFINGERPRINT":7,"without-sub":true,"unknown":[1]}',
    ],
)
def test_names_and_values_are_matched_as_leniently_as_by_fastjson(text: str) -> None:
    assert from_json(HeartbeatData, text) == HeartbeatData("c", heartbeat_fingerprint=7, without_sub=True)


def test_null_missing_and_empty_mean_the_default() -> None:
    text = '{"clientID":null,"heartbeatFingerprint":"","producerDataSet":null,"consumerDataSet":[null]}'
    assert from_json(HeartbeatData, text) == HeartbeatData()


def test_enums_are_read_by_name_in_any_case_and_by_ordinal_as_the_c_client_sends_them() -> None:
    text = '{"consumerDataSet":[{"groupName":"g","consumeType":%s,"messageModel":%s,"consumeFromWhere":%s}]}'
    by_name = from_json(
        HeartbeatData, text % ('"consume_passively"', '"CLUSTERING"', '"CONSUME_FROM_TIMESTAMP"')
    )
    by_ordinal = from_json(HeartbeatData, text % (1, 1, 5))
    assert by_name == by_ordinal
    consumer = by_name.consumer_data_set[0]
    assert consumer.consume_type is ConsumeType.CONSUME_PASSIVELY
    assert consumer.message_model is MessageModel.CLUSTERING
    assert consumer.consume_from_where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
    unknown = from_json(HeartbeatData, text % ('"NEW_KIND"', 99, "-1"))
    assert unknown.consumer_data_set[0].consume_type is None


def test_both_encoders_write_large_tables_with_the_same_bytes() -> None:
    group = subscription_groups.SubscriptionGroupConfig(group_name="g")
    policy = subscription_groups.GroupRetryPolicy(
        exponential_retry_policy=subscription_groups.ExponentialRetryPolicy(max=9)
    )
    tables: list[Any] = [
        topics.TopicConfigSerializeWrapper(
            topic_config_table={
                "a": topics.TopicConfig("a"),
                "Z": topics.TopicConfig("Z", attributes={"k": "v"}),
            }
        ),
        subscription_groups.SubscriptionGroupWrapper(
            subscription_group_table={
                "g": group,
                "h": msgspec.structs.replace(group, group_retry_policy=policy),
                "i": msgspec.structs.replace(
                    group,
                    subscription_data_set=[subscription_groups.SimpleSubscriptionData('"expression":null')],
                ),
            }
        ),
    ]
    for table in tables:
        assert fastjson_writer._encoded(table) is not None
        assert to_json(table) == _by_hand(table)
        assert from_json(type(table), to_json(table)) == table
    mapped = topics.TopicConfigSerializeWrapper(
        topic_queue_mapping_info_map={"a": topics.TopicQueueMappingInfo(topic="a", curr_id_map={1: 2})}
    )
    assert fastjson_writer._encoded(mapped) is None
    assert b'"currIdMap":{1:2}' in to_json(mapped)


def test_message_queues_are_hashable_and_sortable() -> None:
    queue = MessageQueue("T", "b", 1)
    assert {queue: 1}[MessageQueue("T", "b", 1)] == 1
    assert sorted([queue, MessageQueue("T", "a", 5), MessageQueue("S", "z", 9)])[0].topic == "S"
    body = from_json(bodies.LockBatchRequestBody, '{"mqSet":[{"topic":"T","brokerName":"b","queueId":1}]}')
    assert body.mq_set == {queue}
    offsets = from_json(
        bodies.ResetOffsetBody, '{"offsetTable":{{"topic":"T","brokerName":"b","queueId":1}:7}}'
    )
    assert offsets.offset_table == {queue: 7}


def test_integer_keys_may_be_quoted_or_not() -> None:
    for text in ('{"brokerAddrs":{0:"a","2":"b"}}', '{"brokerAddrs":{"0":"a",2:"b"}}'):
        assert from_json(bodies.BrokerData, text).broker_addrs == {0: "a", 2: "b"}
    with pytest.raises(BodyError, match=r"brokerAddrs key='x'"):
        from_json(bodies.BrokerData, '{"brokerAddrs":{"x":"a"}}')


def test_an_error_names_the_number_that_is_out_of_range() -> None:
    with pytest.raises(BodyError, match=r"QueueData\.perm=2147483648: expected a 32-bit integer"):
        from_json(bodies.QueueData, '{"perm":2147483648}')


def test_a_strict_first_body_may_be_lenient_json() -> None:
    loose = from_json(bodies.TopicRouteData, "{queueDatas:[{brokerName:'b',perm:'6'}]}")
    assert loose.queue_datas == [bodies.QueueData("b", perm=6)]


def test_the_bits_of_a_batch_ack_are_offsets() -> None:
    ack = from_json(BatchAck, '{"c":"g","t":"T","so":100,"b":"BQCA"}')
    assert ack.offsets() == [100, 102, 123]
    assert b'"b":"BQCA"' in to_json(ack)
    with pytest.raises(BodyError):
        from_json(BatchAck, '{"b":"A"}')


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_any_bytes_give_a_compressed_registration_or_a_body_error(data: bytes) -> None:
    import zlib

    for compressed in (data, zlib.compress(data), zlib.compress(b"\x00\x00\x00\x02{}" + data)):
        with contextlib.suppress(BodyError):
            bodies.RegisterBrokerBody.decode(compressed, compressed=True)


def test_a_registration_that_decompresses_beyond_the_bound_is_rejected() -> None:
    import zlib

    with pytest.raises(BodyError, match="after decompression"):
        bodies.RegisterBrokerBody.decode(
            zlib.compress(bytes(10_000_000)), compressed=True, bytes_max=1_000_000
        )


def test_registrations_round_trip_in_both_forms() -> None:
    body = bodies.RegisterBrokerBody()
    wrapper = body.topic_config_serialize_wrapper
    wrapper.data_version = topics.DataVersion(1, 2, 3)
    wrapper.topic_config_table["T"] = topics.TopicConfig("T", 1, 2, 6, attributes={"message.type": "FIFO"})
    wrapper.topic_queue_mapping_info_map["S"] = topics.TopicQueueMappingInfo("S", total_queues=2, bname="b")
    body.filter_server_list.append("10.0.0.1:1")
    assert bodies.RegisterBrokerBody.decode(body.encode()) == body
    assert bodies.RegisterBrokerBody.decode(body.encode(compress=True), compressed=True) == body
    old = bodies.RegisterBrokerBody.decode(body.encode(compress=True), compressed=True, version=399)
    assert old.topic_config_serialize_wrapper.topic_queue_mapping_info_map == {}


@pytest.mark.parametrize("compressed", [False, True])
def test_a_large_registration_is_decoded_in_steps(compressed: bool) -> None:
    body = bodies.RegisterBrokerBody()
    table = body.topic_config_serialize_wrapper.topic_config_table
    for number in range(3000):
        table[f"topic-{number}"] = topics.TopicConfig(f"topic-{number}", number, 2**31 - 1, 6)
    data = body.encode(compress=compressed)
    steps = bodies.RegisterBrokerBody.decode_steps(data, compressed=compressed)
    assert sum(1 for _ in steps) > 3000 / topics.TOPICS_AT_A_TIME
    assert bodies.RegisterBrokerBody.decode(data, compressed=compressed) == body


def test_names_in_another_spelling_count_in_bodies_for_the_fast_parser() -> None:
    """It takes only bodies without unknown names; the others go to the parser that knows fastjson's rules."""
    subscription = SubscriptionData(topic="t", sub_string="*")
    consumer = ConsumerData(group_name="g", subscription_data_set=[subscription])
    whole = HeartbeatData(client_id="c", consumer_data_set=[consumer])
    text = to_json(whole)
    assert from_json(HeartbeatData, text) == whole
    for name, other in ((b"clientID", b"clientId"), (b"groupName", b"group_name"), (b"topic", b"Topic")):
        assert name in text
        assert from_json(HeartbeatData, text.replace(name, other)) == whole
    lock = LockBatchRequestBody(consumer_group="g", client_id="c", mq_set={MessageQueue("t", "b", 3)})
    text = to_json(lock)
    assert from_json(LockBatchRequestBody, text) == lock
    for name, other in ((b"clientId", b"clientID"), (b"queueId", b"queue_id"), (b"mqSet", b"MqSet")):
        assert name in text
        assert from_json(LockBatchRequestBody, text.replace(name, other)) == lock
