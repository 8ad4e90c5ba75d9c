"""RocketMQ's C++ client (an older dialect: numbers in header fields, enum ordinals in heartbeats, the first
send request) sends in every way it can, and its push consumer gets all messages, in order in each queue."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interop.cpp_peer import CppPeer, Line, missing_cpp_client, run_plan
from tests.support.admin import create_topic, route_queues
from tests.support.cluster import Cluster
from tests.support.process import wait_until

pytestmark = [
    pytest.mark.skipif(missing_cpp_client() is not None, reason=str(missing_cpp_client())),
    pytest.mark.timeout(600),
]

FLUSH = "flush"
_numbers = itertools.count(1)
Run = Callable[[Line], list[Line]]
Start = Callable[[Line], CppPeer]


@pytest.fixture
def run(cluster: Cluster, tmp_path: Path) -> Run:
    """Runs a plan to its end."""
    return lambda plan: run_plan(cluster, plan, tmp_path / f"cpp-{next(_numbers)}")


@pytest.fixture
def topic(cluster: Cluster, run: Run) -> str:
    """A new topic with a message in each of its four queues. A new group asks for the end of a queue. In a
    young queue it then starts at the first message; in an empty one it may miss messages that are sent
    meanwhile."""
    name = f"Cpp_{next(_numbers)}"
    create_topic(cluster.nameserver_address, cluster.broker_address, name, 4)
    primes = [{"how": "orderly", "body": FLUSH, "tags": FLUSH, "key": i} for i in range(4)]
    run({"do": "send", "topic": name, "sends": primes})
    return name


@pytest.fixture
def start(cluster: Cluster, tmp_path: Path) -> Start:
    """A peer that runs a plan until its context ends."""
    return lambda plan: CppPeer(cluster, plan, tmp_path / f"cpp-{next(_numbers)}")


def consume(topic: str, **more: Any) -> Line:
    """The plan of a push consumer with a group of its own."""
    return {"do": "consume", "topic": topic, "group": f"G_{topic}", **more}


def sends(how: str, count: int, **more: Any) -> list[Line]:
    """Planned sends with the bodies `how-0`, `how-1`, …"""
    return [{"how": how, "body": f"{how}-{i}", **more} for i in range(count)]


def stored(run: Run, topic: str) -> list[Line]:
    """The messages of the topic, read by plain pulls, without the sender's last message."""
    pulled = run({"do": "pull", "topic": topic, "group": f"P_{topic}"})
    return [m for m in pulled if m["tags"] != FLUSH]


def test_a_sync_send_is_stored_with_all_its_properties(run: Run, topic: str) -> None:
    planned = sends("sync", 40, tags="red", keys="one two", properties={"own": "значение"})
    results = run({"do": "send", "topic": topic, "sends": planned})
    assert [(r["body"], r["status"]) for r in results] == [(f"sync-{i}", "OK") for i in range(40)]
    by_id = {m["msg_id"]: m for m in stored(run, topic)}
    assert len(by_id) == 40
    for result in results:
        message = by_id[result["msg_id"]]
        assert message["body"] == result["body"]
        assert message["queue_offset"] == result["offset"]
        assert (message["tags"], message["keys"], message["own"]) == ("red", "one two", "значение")


@pytest.mark.parametrize("how", ["oneway", "async"])
def test_one_way_and_async_sends_are_all_stored(run: Run, topic: str, how: str) -> None:
    results = run({"do": "send", "topic": topic, "sends": sends(how, 60)})
    assert [r["status"] for r in results] == (["OK"] * 60 if how == "async" else [])
    # A one-way send may still be in flight when the send behind it, to another queue, is answered.
    expected = sorted(f"{how}-{i}" for i in range(60))
    wait_until(lambda: sorted(m["body"] for m in stored(run, topic)) == expected, what="all are stored")


def test_ordered_sends_keep_each_key_in_one_queue_and_reach_an_orderly_consumer_in_order(
    run: Run, start: Start, topic: str
) -> None:
    planned: list[Line] = [
        {"how": "orderly", "body": f"order-{i % 4}-{i // 4}", "key": i % 4, "tags": "t"} for i in range(120)
    ]
    with start(consume(topic, orderly=True, expression="t")) as consumer:
        results = run({"do": "send", "topic": topic, "sends": planned})
        assert {r["status"] for r in results} == {"OK"}
        consumer.wait_bodies({p["body"] for p in planned})
        received = consumer.messages
    by_key: dict[str, list[Line]] = defaultdict(list)
    for message in received:
        by_key[message["body"].split("-")[1]].append(message)
    for key, messages in by_key.items():
        assert [m["body"] for m in messages] == [f"order-{key}-{i}" for i in range(30)]
        assert len({m["queue_id"] for m in messages}) == 1
        first = messages[0]["queue_offset"]
        assert [m["queue_offset"] for m in messages] == list(range(first, first + 30))


def test_a_push_consumer_gets_every_message_once(run: Run, start: Start, topic: str) -> None:
    run({"do": "send", "topic": topic, "sends": [{"how": "sync", "body": f"before-{i}"} for i in range(50)]})
    with start(consume(topic)) as consumer:
        consumer.wait_bodies({f"before-{i}" for i in range(50)})
        run({"do": "send", "topic": topic, "sends": sends("async", 200)})
        expected = {f"before-{i}" for i in range(50)} | {f"async-{i}" for i in range(200)}
        consumer.wait_bodies(expected)
        bodies = [b for b in consumer.bodies if b != FLUSH]
    assert len(bodies) == len(expected)


def test_a_tag_subscription_gets_its_tags_only(run: Run, start: Start, topic: str) -> None:
    tags = ["red", "green", "blue"]
    planned = [{"how": "sync", "body": f"m-{i}", "tags": tags[i % 3]} for i in range(60)]
    with start(consume(topic, expression="red || blue")) as consumer:
        run({"do": "send", "topic": topic, "sends": planned})
        wanted = {f"m-{i}" for i in range(60) if i % 3 != 1}
        consumer.wait_bodies(wanted)
        assert set(consumer.bodies) == wanted


def test_a_first_send_creates_the_topic(cluster: Cluster, run: Run) -> None:
    topic = f"CppNew_{next(_numbers)}"
    assert route_queues(cluster.nameserver_address, topic) == 0
    results = run({"do": "send", "topic": topic, "sends": sends("sync", 3)})
    assert {r["status"] for r in results} == {"OK"}
    wait_until(lambda: route_queues(cluster.nameserver_address, topic) == 4, what=f"route of {topic}")


def test_a_delayed_message_is_delivered_after_its_delay(run: Run, start: Start, topic: str) -> None:
    with start(consume(topic)) as consumer:
        run({"do": "send", "topic": topic, "sends": [{"how": "sync", "body": "late", "delay": 1}]})
        consumer.wait_bodies({"late"})
        (late,) = (m for m in consumer.messages if m["body"] == "late")
    assert 900 <= late["store_timestamp"] - late["born_timestamp"] < 30_000
    assert late["topic"] == topic


def test_a_large_text_is_compressed_by_one_client_and_read_by_the_other(run: Run, topic: str) -> None:
    body = "0123456789" * 2_000
    run({"do": "send", "topic": topic, "sends": [{"how": "sync", "body": body}]})
    assert [m["body"] for m in stored(run, topic)] == [body]


def test_two_consumers_share_the_queues_and_one_takes_over_when_the_other_is_killed(
    run: Run, start: Start, topic: str
) -> None:
    def spread(name: str) -> list[Line]:
        return [{"how": "orderly", "body": f"{name}-{i}", "key": i % 4} for i in range(40)]

    def send_until(name: str, enough: Callable[[], bool], what: str) -> None:
        rounds = itertools.count()

        def another_round() -> bool:
            run({"do": "send", "topic": topic, "sends": spread(f"{name}{next(rounds)}")})
            return enough()

        wait_until(another_round, what=what)

    def queues(peer: CppPeer, name: str) -> set[int]:
        return {m["queue_id"] for m in peer.messages if m["body"].startswith(name)}

    with start(consume(topic)) as stays:
        send_until("one", lambda: queues(stays, "one") == {0, 1, 2, 3}, "one consumer has all queues")
        with start(consume(topic)) as leaves:
            send_until("two", lambda: len(queues(leaves, "two")) == 2, "the other has its half")
            leaves.kill()
        send_until("last", lambda: queues(stays, "last") == {0, 1, 2, 3}, "it has all queues again")
