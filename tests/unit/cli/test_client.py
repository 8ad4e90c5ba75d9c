"""Tests the producer and the consumer against a fake nameserver and broker in this process."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochmq.client import Consumer, Producer, ReceivedMessage, SendStatus
from epochmq.client.allocate import allocate_averagely
from epochmq.client.ids import ClientUniqKeyGenerator, client_id
from epochmq.client.routes import readable_queues, writeable_queues
from epochmq_protocol import message
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import ConnectError, RequestError, RetryableError
from epochmq_protocol.route import BrokerData, QueueData, TopicRouteData
from tests.support.net import free_port, loopback
from tests.unit.cli.fake_cluster import FakeCluster


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as started:
        yield started


@pytest.fixture
async def producer(cluster: FakeCluster) -> AsyncIterator[Producer]:
    made = Producer([cluster.nameserver], "p", timeout_ms=60_000)
    yield made
    await made.close()


async def take(consumer: Consumer, count: int, *, acknowledge: bool = True) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    messages = consumer.messages()
    async with asyncio.timeout(120):
        while len(found) < count:
            found.append(await anext(messages))
            if acknowledge:
                consumer.acknowledge()
    await messages.aclose()
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 (the fake cluster changes it)
            await asyncio.sleep(0.01)


# allocation


@given(st.integers(0, 40), st.integers(1, 12))
def test_members_share_all_queues_evenly_and_without_overlap(queues: int, clients: int) -> None:
    names = [f"c{n:02d}" for n in range(clients)]
    shares = [allocate_averagely(range(queues), names, name) for name in names]
    assert sorted(queue for share in shares for queue in share) == list(range(queues))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_the_queues_of_each_member_are_those_of_rocketmq() -> None:
    # AllocateMessageQueueAveragely with 8 queues and 3 consumers: 3, 3, 2.
    names = ["a", "b", "c"]
    assert [allocate_averagely(range(8), names, n) for n in names] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert allocate_averagely(range(8), names, "unknown") == []


# routes


def test_only_queues_with_permission_and_a_master_are_used() -> None:
    route = TopicRouteData(
        queue_datas=[
            QueueData("both", 2, 1, 6),
            QueueData("read", 1, 1, 4),
            QueueData("write", 1, 1, 2),
            QueueData("orphan", 1, 1, 6),
        ],
        broker_datas=[BrokerData("c", name, {0: "h:1"}) for name in ("both", "read", "write")]
        + [BrokerData("c", "orphan", {1: "h:2"})],
    )
    readable = [(queue.broker_name, queue.queue_id) for queue in readable_queues("t", route)]
    writeable = [(queue.broker_name, queue.queue_id) for queue in writeable_queues("t", route)]
    assert readable == [("both", 0), ("both", 1), ("read", 0)]
    assert writeable == [("both", 0), ("write", 0)]


async def test_another_nameserver_is_tried_if_one_does_not_respond(cluster: FakeCluster) -> None:
    nowhere = f"{cluster.host}:{free_port(cluster.host)}"
    producer = Producer([nowhere, cluster.nameserver], "p")
    try:
        assert (await producer.send("t", b"x")).status is SendStatus.SEND_OK
    finally:
        await producer.close()


async def test_the_error_names_every_nameserver_if_none_responds() -> None:
    host = loopback(55)
    addresses = [f"{host}:{free_port(host)}" for _ in range(2)]
    producer = Producer(addresses, "p", timeout_ms=2000)
    try:
        with pytest.raises(ConnectError) as caught:
            await producer.send("t", b"x")
    finally:
        await producer.close()
    assert all(address in str(caught.value) for address in addresses)


# ids


def test_ids_differ_and_look_like_rocketmqs() -> None:
    ids = ClientUniqKeyGenerator()
    made = [ids.next() for _ in range(1000)]
    assert len(set(made)) == 1000
    assert all(len(one) == 32 and one == one.upper() and int(one, 16) for one in made)
    assert client_id() != client_id()


# producing


async def test_a_message_is_stored_with_its_tag_and_keys(cluster: FakeCluster, producer: Producer) -> None:
    cluster.create("t", 1)
    result = await producer.send("t", b"hello", tags="red", keys="k1 k2")
    (stored,) = cluster.topics["t"][0]
    assert (stored.body, result.queue_offset, result.broker_name) == (b"hello", 0, "b")
    assert message.parse_properties(stored.properties) == {
        "UNIQ_KEY": result.msg_id,
        "TAGS": "red",
        "KEYS": "k1 k2",
    }
    assert result.offset_msg_id == stored.msg_id


async def test_messages_alternate_between_the_queues(cluster: FakeCluster, producer: Producer) -> None:
    cluster.create("t", 4)
    for number in range(8):
        await producer.send("t", str(number).encode())
    assert [len(queue) for queue in cluster.topics["t"]] == [2, 2, 2, 2]


async def test_messages_of_a_new_topic_use_only_the_queues_that_the_broker_creates(
    cluster: FakeCluster, producer: Producer
) -> None:
    results = [await producer.send("new", b"x") for _ in range(8)]
    assert {result.queue_id for result in results} == {0, 1, 2, 3}


async def test_a_topic_that_no_broker_creates_is_an_error() -> None:
    async with FakeCluster(auto_create=False) as cluster:
        producer = Producer([cluster.nameserver], "p")
        try:
            with pytest.raises(RequestError, match="does not exist, and no broker creates topics"):
                await producer.send("new", b"x")
        finally:
            await producer.close()


@pytest.mark.parametrize(
    ("topic", "body", "problem"),
    [
        ("a b", b"x", "illegal characters"),
        ("", b"x", "blank"),
        ("t" * 128, b"x", "longer"),
        ("t", b"", "is empty"),
    ],
)
async def test_an_invalid_message_is_not_sent(
    cluster: FakeCluster, producer: Producer, topic: str, body: bytes, problem: str
) -> None:
    with pytest.raises(RequestError, match=problem):
        await producer.send(topic, body)
    assert cluster.requests == []


async def test_a_busy_broker_is_retried_with_the_same_id(cluster: FakeCluster, producer: Producer) -> None:
    cluster.rejections = [(ResponseCode.SYSTEM_BUSY, "busy"), (ResponseCode.SERVICE_NOT_AVAILABLE, "not yet")]
    result = await producer.send("t", b"x")
    assert result.status is SendStatus.SEND_OK
    assert len(cluster.requests) == 3


async def test_after_the_time_limit_the_last_response_is_the_error(cluster: FakeCluster) -> None:
    cluster.rejections = [(ResponseCode.SYSTEM_BUSY, f"busy {n}") for n in range(50)]
    producer = Producer([cluster.nameserver], "p", timeout_ms=500)
    try:
        with pytest.raises(RequestError) as caught:
            await producer.send("t", b"x")
    finally:
        await producer.close()
    assert len(cluster.requests) > 1
    assert f"busy {len(cluster.requests) - 1}" in str(caught.value)


async def test_a_send_waits_for_the_registration_of_a_broker(
    cluster: FakeCluster, producer: Producer
) -> None:
    cluster.create("t")
    cluster.registered = False
    sending = asyncio.create_task(producer.send("t", b"x"))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.3, setattr, cluster, "registered", True)
    assert (await sending).status is SendStatus.SEND_OK


async def test_a_final_rejection_is_not_retried(cluster: FakeCluster, producer: Producer) -> None:
    cluster.rejections = [(ResponseCode.MESSAGE_ILLEGAL, "too long")]
    with pytest.raises(RequestError, match="too long"):
        await producer.send("t", b"x")
    assert len(cluster.requests) == 1


async def test_a_status_of_less_durability_is_a_result(cluster: FakeCluster, producer: Producer) -> None:
    cluster.status = ResponseCode.FLUSH_DISK_TIMEOUT
    result = await producer.send("t", b"x")
    assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
    assert sum(map(len, cluster.topics["t"])) == 1


async def test_a_restarted_broker_is_found_again(cluster: FakeCluster, producer: Producer) -> None:
    await producer.send("t", b"before")
    await cluster.restart_broker()
    assert (await producer.send("t", b"after")).status is SendStatus.SEND_OK


# consuming


async def test_a_new_group_starts_at_the_beginning_and_the_next_member_continues(
    cluster: FakeCluster,
) -> None:
    for number in range(100):
        cluster.put("t", number % 4, str(number).encode())
    async with Consumer([cluster.nameserver], "g", "t") as consumer:
        first = await take(consumer, 40)
    async with Consumer([cluster.nameserver], "g", "t") as consumer:
        second = await take(consumer, 60)
    bodies = [int(received.body) for received in first + second]
    assert sorted(bodies) == list(range(100))
    for queue_id in range(4):
        own = [int(r.body) for r in first + second if r.record.queue_id == queue_id]
        assert own == sorted(own)


async def test_only_acknowledged_messages_are_committed(cluster: FakeCluster) -> None:
    for number in range(10):
        cluster.put("t", 0, str(number).encode())
    async with Consumer([cluster.nameserver], "g", "t") as consumer:
        await take(consumer, 3)
    assert cluster.offsets["g", "t", 0] == 3
    async with Consumer([cluster.nameserver], "g", "t") as consumer:
        again = await take(consumer, 2, acknowledge=False)
    assert [received.body for received in again] == [b"3", b"4"]
    assert cluster.offsets["g", "t", 0] == 3


async def test_a_message_arrives_while_the_pull_is_held(cluster: FakeCluster) -> None:
    cluster.create("t")
    async with Consumer([cluster.nameserver], "g", "t") as consumer:
        taking = asyncio.create_task(take(consumer, 1))
        await until(lambda: cluster.pulls_held == 4)
        cluster.put("t", 2, b"now")
        assert [received.body for received in await taking] == [b"now"]


async def test_the_consumer_waits_for_a_topic_that_is_created_later(cluster: FakeCluster) -> None:
    notices: list[str] = []
    async with Consumer([cluster.nameserver], "g", "later", notice=notices.append) as consumer:
        taking = asyncio.create_task(take(consumer, 1))
        await until(lambda: bool(notices))
        cluster.put("later", 0, b"x")
        assert len(await taking) == 1
    assert notices == ["topic later does not exist yet; waiting for it"]


async def test_two_members_share_the_queues_and_no_message_is_delivered_twice(cluster: FakeCluster) -> None:
    cluster.create("t")
    seen: Counter[bytes] = Counter()
    queues: dict[str, set[int]] = {}

    async def read(name: str) -> None:
        async with Consumer([cluster.nameserver], "g", "t") as consumer:
            async for received in consumer.messages():
                seen[received.body] += 1
                queues.setdefault(name, set()).add(received.record.queue_id)
                consumer.acknowledge()

    one = asyncio.create_task(read("one"))
    await until(lambda: cluster.pulls_held == 4)
    for number in range(20):
        cluster.put("t", number % 4, b"a%d" % number)
    await until(lambda: seen.total() == 20)
    other = asyncio.create_task(read("other"))
    await until(lambda: len(cluster.members["g"]) == 2)
    for number in range(200):
        cluster.put("t", number % 4, b"b%d" % number)
        await asyncio.sleep(0.002)
    await until(lambda: seen.total() >= 220)
    one.cancel()
    await asyncio.wait({one})
    for number in range(40):
        cluster.put("t", number % 4, b"c%d" % number)
    await until(lambda: seen.total() >= 260)
    other.cancel()
    await asyncio.wait({other})
    assert len(seen) == 260
    assert seen.total() == 260
    assert queues["other"] == {0, 1, 2, 3}
    assert cluster.members["g"] == {}


async def test_only_wanted_tags_are_delivered_and_other_messages_count_as_consumed(
    cluster: FakeCluster,
) -> None:
    for tag in ("red", "blue", "green", "red"):
        cluster.put("t", 0, tag.encode(), message.format_properties({"TAGS": tag}))
    async with Consumer([cluster.nameserver], "g", "t", tags="red || green") as consumer:
        found = await take(consumer, 3)
        await until(lambda: cluster.pulls_held == 4)
    assert [received.body for received in found] == [b"red", b"green", b"red"]
    assert cluster.offsets["g", "t", 0] == 4


async def test_an_unwanted_tag_with_the_same_hash_is_not_delivered(cluster: FakeCluster) -> None:
    for tag in ("Aa", "BB"):
        cluster.put("t", 0, tag.encode(), message.format_properties({"TAGS": tag}))
    async with Consumer([cluster.nameserver], "g", "t", tags="BB") as consumer:
        assert [received.body for received in await take(consumer, 1)] == [b"BB"]


async def test_a_compressed_body_is_uncompressed(cluster: FakeCluster) -> None:
    cluster.put("t", 0, zlib.compress(b"long " * 1000), sys_flag=message.COMPRESSED_FLAG)
    async with Consumer([cluster.nameserver], "g", "t") as consumer:
        (received,) = await take(consumer, 1)
    assert received.body == b"long " * 1000


async def test_the_messages_of_an_inner_batch_are_delivered_one_by_one(cluster: FakeCluster) -> None:
    batch = [message.BatchElement(b"%d" % at, b"TAGS\x01t%d\x02" % at, at) for at in range(3)]
    flags = message.INNER_BATCH_FLAG | message.NEED_UNWRAP_FLAG
    cluster.put("t", 0, message.encode_batch(batch), sys_flag=flags)
    async with Consumer([cluster.nameserver], "g", "t") as consumer:
        messages = await take(consumer, 3)
    assert [received.body for received in messages] == [b"0", b"1", b"2"]


async def test_the_consumer_continues_after_a_restart_of_the_broker(cluster: FakeCluster) -> None:
    cluster.put("t", 0, b"before")
    notices: list[str] = []
    async with Consumer([cluster.nameserver], "g", "t", notice=notices.append) as consumer:
        assert [received.body for received in await take(consumer, 1)] == [b"before"]
        await until(lambda: cluster.pulls_held == 4)
        await cluster.restart_broker()
        cluster.put("t", 0, b"after")
        assert [received.body for received in await take(consumer, 1)] == [b"after"]
    assert notices
    assert cluster.offsets["g", "t", 0] == 2


async def test_the_consumer_waits_while_a_group_has_no_master(cluster: FakeCluster) -> None:
    cluster.put("t", 0, b"before")
    notices: list[str] = []
    async with Consumer([cluster.nameserver], "g", "t", notice=notices.append) as consumer:
        await take(consumer, 1)
        cluster.leads = False
        await cluster.restart_broker()
        await until(lambda: any("has no broker with a master" in notice for notice in notices))
        cluster.leads = True
        cluster.put("t", 0, b"after")
        assert [received.body for received in await take(consumer, 1)] == [b"after"]


async def test_an_unreachable_nameserver_ends_the_consumer(cluster: FakeCluster) -> None:
    nowhere = f"{cluster.host}:{free_port(cluster.host)}"
    with pytest.raises(RetryableError, match="no nameserver responds"):
        async with Consumer([nowhere], "g", "t") as consumer:
            await take(consumer, 1)
