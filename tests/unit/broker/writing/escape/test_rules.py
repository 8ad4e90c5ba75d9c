"""Which way a special message takes, which queue of which group, and in which form."""

from __future__ import annotations

from epochmq_broker.writing.escape import rules
from epochmq_broker.writing.escape.rules import EscapeKind, PublishRoute
from epochmq_broker.writing.inner_message import InnerMessage
from epochmq_protocol import message as records
from epochmq_protocol.bodies import MessageQueue
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.headers_client import SendMessageRequestHeaderV2
from epochmq_protocol.route import BrokerData, QueueData, TopicRouteData
from epochmq_protocol.topics import RMQ_SYS_TRANS_HALF_TOPIC, TopicQueueMappingInfo

HOST = records.encode_host("127.0.0.1", 10911)


def group(name: str, *ids: int) -> BrokerData:
    return BrokerData("c", name, {broker_id: f"{name}:{10911 + broker_id}" for broker_id in ids})


def queues(name: str, count: int, perm: int = 6) -> QueueData:
    return QueueData(name, count, count, perm)


def message(topic: str = "T", *, sys_flag: int = 0, retries: int = 0, **properties: str) -> InnerMessage:
    return InnerMessage(
        topic=topic,
        queue_id=7,
        body=b"body",
        properties=properties,
        rendered=b"as stored",
        flag=3,
        sys_flag=sys_flag,
        born_timestamp=1234,
        born_host=HOST,
        reconsume_times=retries,
    )


def test_a_route_has_the_writable_queues_of_other_groups_with_a_master_by_their_names() -> None:
    route = TopicRouteData(
        queue_datas=[
            queues("d", 2),
            queues("b", 1),
            queues("own", 4),
            queues("c", 4, perm=4),
            queues("e", 4),
        ],
        broker_datas=[group("own", 0), group("b", 0, 1), group("c", 0), group("d", 0), group("e", 1)],
    )
    found = rules.publish_route("T", route, "own")
    assert found.queues == (MessageQueue("T", "b", 0), MessageQueue("T", "d", 0), MessageQueue("T", "d", 1))
    assert found.masters["b"] == "b:10911"


def test_an_ordered_topic_has_the_queues_of_its_order() -> None:
    brokers = [group("own", 0), group("b", 0), group("c", 1)]
    route = TopicRouteData("own:4;b:2;c:2;broken", [queues("b", 8)], brokers)
    assert [queue.queue_id for queue in rules.publish_route("T", route, "own").queues] == [0, 1]
    # RocketMQ finds no address for the logical queues of a static topic.
    static = TopicRouteData(
        None, [queues("b", 8)], brokers, topic_queue_mapping_by_broker={"b": TopicQueueMappingInfo()}
    )
    assert rules.publish_route("T", static, "own").queues == ()


def test_a_group_creates_a_new_topic_with_one_queue() -> None:
    found = PublishRoute(tuple(MessageQueue("T", name, number) for name in "bc" for number in range(4)))
    created = [(queue.broker_name, queue.queue_id) for queue in rules.new_topic_route(found).queues]
    assert created == [("b", 0), ("c", 0)]


def test_messages_take_the_queues_in_turn() -> None:
    route = PublishRoute(tuple(MessageQueue("T", "b", number) for number in range(3)))
    taken = [rules.next_queue(route, index).queue_id for index in range(0x7FFFFFFE, 0x7FFFFFFE + 4)]
    assert taken == [0x7FFFFFFE % 3, 0x7FFFFFFF % 3, 0, 1]


def test_checkpoints_and_acknowledgements_of_a_group_meet_in_one_queue() -> None:
    route = PublishRoute(tuple(MessageQueue("R", "b", number) for number in range(8)))
    assert len({rules.specific_queue(route, "R", "broker-a") for _ in range(3)}) == 1
    spread = {rules.specific_queue(route, "R", f"broker-{number}").queue_id for number in range(100)}
    assert spread == set(range(8))
    for kind in (EscapeKind.CHECKPOINT, EscapeKind.RETRY):
        assert rules.takes_specific_queue(kind, "T", "R")
    assert rules.takes_specific_queue(EscapeKind.TIMER, "R", "R")
    for kind in (EscapeKind.DELAY, EscapeKind.TIMER, EscapeKind.TRANSACTION):
        assert not rules.takes_specific_queue(kind, "T", "R")


def test_a_message_is_sent_as_it_would_be_stored_and_waits_until_it_is_safe() -> None:
    delivered = message(TAGS="a", PGROUP="producers", WAIT="false", REAL_TOPIC="T", sys_flag=1, retries=2)
    command = rules.send_request(rules.remote_form(delivered), 5, "InnerProducerGroup_a_1")
    header = SendMessageRequestHeaderV2.decode(command.ext)
    assert command.body == b"body"
    assert (header.topic, header.queue_id, header.producer_group) == ("T", 5, "producers")
    assert (header.default_topic, header.default_topic_queue_nums) == ("TBW102", 8)
    assert (header.sys_flag, header.flag, header.born_timestamp, header.reconsume_times) == (1, 3, 1234, 2)
    assert (header.unit_mode, header.batch) == (False, False)
    assert header.properties is not None
    sent = records.parse_properties(header.properties.encode())
    assert sent == {"TAGS": "a", "PGROUP": "producers", "WAIT": "true", "REAL_TOPIC": "T"}
    assert delivered.properties["WAIT"] == "false"
    nameless = SendMessageRequestHeaderV2.decode(rules.send_request(message(), 0, "inner").ext)
    assert nameless.producer_group == "inner"


def test_a_half_message_is_sent_as_its_producer_sent_it() -> None:
    half = message(
        RMQ_SYS_TRANS_HALF_TOPIC,
        retries=1,
        REAL_TOPIC="orders",
        REAL_QID="3",
        TRAN_PREPARED_QUEUE_OFFSET="9",
        TRANSACTION_CHECK_TIMES="2",
        UNIQ_KEY="k",
    )
    sent = rules.remote_form(half)
    assert (sent.topic, sent.sys_flag, sent.reconsume_times) == ("orders", 4, 0)
    assert sent.properties == {
        "REAL_TOPIC": "orders",
        "TRANSACTION_CHECK_TIMES": "2",
        "UNIQ_KEY": "k",
        "TRAN_MSG": "true",
        "WAIT": "true",
    }


def test_a_message_is_sent_until_the_other_group_has_made_it_safe() -> None:
    assert [code for code in range(300) if rules.is_escaped(code)] == [ResponseCode.SUCCESS]
