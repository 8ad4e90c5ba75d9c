"""RocketMQ's Go client sends in every way it can, and its consumers get all messages, selected and in order
as promised, while brokers relay requests to them, check users, and fail."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.conftest import CLUSTERS, KINDS
from tests.interop.go_peer import GoMissingError, GoPeer, go_client
from tests.interop.handovers import hand_over
from tests.interop.plan_peer import Line
from tests.interop.replicated_cluster import ReplicatedCluster
from tests.support.admin import create_topic, route_queues
from tests.support.cluster import Cluster
from tests.support.process import wait_until
from tests.support.remoting import call
from tests.support.signing import CHECKED, ROOT, signed

pytestmark = pytest.mark.timeout(600)

QUEUES = 4
QUERY_CONSUMER_OFFSET = 14
GET_CONSUMER_CONNECTION_LIST, RESET_OFFSET, GET_CONSUMER_STATUS, GET_RUNNING_INFO, CONSUME_DIRECTLY = (
    203,
    222,
    223,
    307,
    309,
)
_numbers = itertools.count()
Start = Callable[[Line], GoPeer]
Run = Callable[[Line], list[Line]]


@pytest.fixture(autouse=True)
def _needs_the_client() -> None:
    try:
        go_client()
    except GoMissingError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def start(cluster: Cluster, tmp_path: Path) -> Start:
    """A client that carries out a plan within its context."""
    return lambda plan: GoPeer(cluster, plan, tmp_path / f"go-{next(_numbers)}")


@pytest.fixture
def run(start: Start) -> Run:
    """Runs a plan to its end."""

    def run_to_its_end(plan: Line) -> list[Line]:
        with start(plan) as peer:
            return peer.finish()

    return run_to_its_end


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A new topic with four queues."""
    name = f"Go_{next(_numbers)}"
    return create_topic(cluster.nameserver_address, cluster.broker_address, name, QUEUES)


def sending(topic: str, *sends: Line) -> Line:
    """The plan of a producer."""
    return {"do": "send", "topic": topic, "group": "go_producer", "sends": sends}


def numbered(how: str, count: int, **more: Any) -> list[Line]:
    """Planned sends with the bodies `how-0`, `how-1`, …"""
    return [{"how": how, "body": f"{how}-{i}", **more} for i in range(count)]


def consuming(topic: str, **more: Any) -> Line:
    """The plan of a push consumer with a group of its own."""
    return {"do": "consume", "topic": topic, "group": f"G_{topic}", **more}


def stored(run: Run, topic: str, **more: Any) -> list[Line]:
    """The messages of the topic, read by plain pulls."""
    return run({"do": "pull", "topic": topic, "group": f"P_{topic}", **more})


def wait_for_commits(cluster: Cluster, plan: Line, count: int) -> None:
    """Waits until the broker has the offsets behind `count` consumed messages of the plan's group. The client
    prints a message while it consumes it; one that shuts down at once may not commit the last ones."""

    def committed(queue_id: int) -> int:
        fields = {"consumerGroup": plan["group"], "topic": plan["topic"], "queueId": str(queue_id)}
        return int(call(cluster.broker_address, QUERY_CONSUMER_OFFSET, fields).ext.get("offset", "0"))

    wait_until(lambda: sum(map(committed, range(QUEUES))) == count, what=f"{count} messages are committed")


def wait_for_the_retry_topic(cluster: Cluster, start: Start, plan: Line) -> None:
    """Lets the plan's consumer join for a moment, and waits until the group's topic of retries has a route. A
    consumer that starts then has that route from its start; another would ask for it half a minute later."""
    with start(plan) as peer:
        peer.wait_ready()
        retries = f"%RETRY%{plan['group']}"
        wait_until(
            lambda: route_queues(cluster.nameserver_address, retries) > 0, what=f"a route of {retries}"
        )
        peer.close()


def test_a_sync_send_is_stored_with_all_its_properties(run: Run, topic: str) -> None:
    planned = numbered("sync", 40, tags="red", keys=["one", "two"], properties={"own": "значение"})
    results = run(sending(topic, *planned))
    assert [(r["body"], r.get("status")) for r in results] == [(f"sync-{i}", "SEND_OK") for i in range(40)]
    by_id = {message["msg_id"]: message for message in stored(run, topic)}
    assert len(by_id) == 40
    for result in results:
        message = by_id[result["msg_id"]]
        assert message["body"] == result["body"]
        assert message["offset_msg_id"] == result["offset_msg_id"]
        assert (message["queue_id"], message["queue_offset"]) == (result["queue_id"], result["offset"])
        assert (message["tags"], message["keys"]) == ("red", "one two")
        assert message["properties"]["own"] == "значение"
    assert Counter(message["queue_id"] for message in by_id.values()) == dict.fromkeys(range(QUEUES), 10)


@pytest.mark.parametrize("how", ["oneway", "async"])
def test_one_way_and_async_sends_are_all_stored(run: Run, topic: str, how: str) -> None:
    results = run(sending(topic, *numbered(how, 60), *numbered("sync", 1)))
    assert [r.get("status") for r in results] == ["SEND_OK"] * (61 if how == "async" else 1)
    expected = sorted([*(f"{how}-{i}" for i in range(60)), "sync-0"])
    # A one-way send may still be in flight when the send behind it, to another queue, is answered.
    wait_until(lambda: sorted(m["body"] for m in stored(run, topic)) == expected, what="all are stored")


def test_a_batch_is_stored_as_its_messages(run: Run, topic: str) -> None:
    bodies = [f"one of many {i}" for i in range(50)]
    (result,) = run(sending(topic, {"how": "batch", "bodies": bodies, "tags": "t"}))
    assert result["status"] == "SEND_OK", result
    found = stored(run, topic)
    assert [m["body"] for m in found] == bodies
    assert {(m["tags"], m["queue_id"]) for m in found} == {("t", result["queue_id"])}
    assert [m["queue_offset"] for m in found] == list(range(50))


def test_a_large_message_is_compressed_and_read_again(run: Run, topic: str) -> None:
    body = "0123456789" * 2_000
    run(sending(topic, {"how": "sync", "body": body}))
    assert [m["body"] for m in stored(run, topic)] == [body]


def test_a_first_send_creates_the_topic(cluster: Cluster, run: Run) -> None:
    topic = f"GoNew_{next(_numbers)}"
    results = run(sending(topic, *numbered("sync", 3)))
    assert [r.get("status") for r in results] == ["SEND_OK"] * 3
    wait_until(lambda: route_queues(cluster.nameserver_address, topic) == QUEUES, what=f"route of {topic}")


@pytest.mark.parametrize("delay", [{"delay": 1}, {"deliverMS": 1500}], ids=["level", "timer"])
def test_a_delayed_message_is_delivered_after_its_delay(
    run: Run, start: Start, topic: str, delay: Line
) -> None:
    with start(consuming(topic)) as consumer:
        run(sending(topic, {"how": "sync", "body": "late", **delay}))
        consumer.wait_bodies({"late"})
        (late,) = consumer.messages
    assert late["store_timestamp"] - late["born_timestamp"] >= 900
    assert late["topic"] == topic


def test_ordered_sends_reach_an_orderly_consumer_in_order_though_some_fail(
    run: Run, start: Start, topic: str
) -> None:
    planned: list[Line] = [
        {"how": "sync", "body": f"order-{i % 4}-{i // 4}", "sharding": f"key-{i % 4}"} for i in range(120)
    ]
    failures = {"order-0-3": 2, "order-3-0": 1}
    with start(consuming(topic, orderly=True, failures=failures)) as consumer:
        results = run(sending(topic, *planned))
        assert {r.get("status") for r in results} == {"SEND_OK"}
        consumer.wait_bodies({p["body"] for p in planned})
        received = consumer.messages
        consumer.close()
    by_key: dict[str, list[Line]] = defaultdict(list)
    for message in received:
        by_key[message["body"].split("-")[1]].append(message)
    for key, messages in by_key.items():
        attempts = [1 + failures.get(f"order-{key}-{i}", 0) for i in range(30)]
        expected = [f"order-{key}-{i}" for i in range(30) for _ in range(attempts[i])]
        assert [m["body"] for m in messages] == expected
        assert len({m["queue_id"] for m in messages}) == 1
    (again,) = {tuple(m["reconsume_times"] for m in received if m["body"] == "order-0-3")}
    assert again == (0, 1, 2)


def test_a_push_consumer_gets_every_message_once_and_goes_on_where_it_stopped(
    cluster: Cluster, run: Run, start: Start, topic: str
) -> None:
    run(sending(topic, *({"how": "sync", "body": f"before-{i}"} for i in range(50))))
    with start(consuming(topic)) as consumer:
        consumer.wait_bodies({f"before-{i}" for i in range(50)})
        run(sending(topic, *numbered("async", 200)))
        consumer.wait_bodies({f"async-{i}" for i in range(200)})
        wait_for_commits(cluster, consuming(topic), 250)
        first = [m["body"] for m in consumer.close()]
    run(sending(topic, *numbered("sync", 30)))
    with start(consuming(topic)) as consumer:
        consumer.wait_bodies({f"sync-{i}" for i in range(30)})
        second = consumer.bodies
    assert (len(first), sorted(second)) == (250, sorted(f"sync-{i}" for i in range(30)))


@pytest.mark.parametrize(
    ("expression", "sql"), [("red || blue", False), ("color IN ('red', 'blue') AND number >= 10", True)]
)
def test_a_filtered_subscription_gets_what_it_selects(
    run: Run, start: Start, topic: str, expression: str, *, sql: bool
) -> None:
    colors = ["red", "green", "blue"]
    planned = [
        {
            "how": "sync",
            "body": f"m-{i}",
            "tags": colors[i % 3],
            "properties": {"color": colors[i % 3], "number": str(i)},
        }
        for i in range(60)
    ]
    wanted = {f"m-{i}" for i in range(10 if sql else 0, 60) if i % 3 != 1}
    run(sending(topic, *planned[:30]))
    with start(consuming(topic, expression=expression, sql=sql)) as consumer:
        consumer.wait_ready()
        run(sending(topic, *planned[30:]))
        consumer.wait_bodies(wanted)
        assert sorted(consumer.bodies) == sorted(wanted)
    assert {m["body"] for m in stored(run, topic, expression=expression, sql=sql)} == wanted


def test_each_broadcast_consumer_gets_everything(run: Run, start: Start, topic: str) -> None:
    plan = consuming(topic, broadcast=True)
    with start(plan) as one, start(plan) as other:
        one.wait_ready()
        other.wait_ready()
        run(sending(topic, *numbered("sync", 40)))
        expected = [f"sync-{i}" for i in range(40)]
        for consumer in (one, other):
            consumer.wait_bodies(set(expected))
            assert sorted(consumer.bodies) == sorted(expected)


def test_two_consumers_share_the_queues_and_one_takes_over_when_the_other_leaves(
    run: Run, start: Start, topic: str
) -> None:
    def send_until(name: str, enough: Callable[[], bool], what: str) -> None:
        rounds = itertools.count()

        def another_round() -> bool:
            number = next(rounds)
            run(sending(topic, *({"how": "sync", "body": f"{name}{number}-{i}"} for i in range(40))))
            return enough()

        wait_until(another_round, what=what)

    def queues(peer: GoPeer, name: str) -> set[int]:
        return {m["queue_id"] for m in peer.messages if m["body"].startswith(name)}

    everything = set(range(QUEUES))
    with start(consuming(topic)) as stays:
        send_until("one", lambda: queues(stays, "one") == everything, "one consumer has all queues")
        with start(consuming(topic)) as leaves:
            send_until("two", lambda: len(queues(leaves, "two")) == 2, "the other has its half")
            leaves.close()
        send_until("last", lambda: queues(stays, "last") == everything, "it has all queues again")


def test_a_pull_consumer_polls_and_acknowledges(run: Run, start: Start, topic: str) -> None:
    run(sending(topic, *numbered("sync", 60)))
    plan = {"do": "poll", "topic": topic, "group": f"G_{topic}"}
    with start(plan) as consumer:
        consumer.wait_bodies({f"sync-{i}" for i in range(60)})
        assert len(consumer.close()) == 60
    run(sending(topic, *numbered("async", 20)))
    with start(plan) as consumer:
        consumer.wait_bodies({f"async-{i}" for i in range(20)})
        assert sorted(consumer.bodies) == sorted(f"async-{i}" for i in range(20))


def test_a_failed_message_is_retried_and_then_becomes_a_dead_letter(
    cluster: Cluster, run: Run, start: Start, topic: str
) -> None:
    plan = consuming(topic, failures={"twice": 1, "never": 9}, reconsumeMax=1)
    wait_for_the_retry_topic(cluster, start, plan)
    with start(plan) as consumer:
        run(sending(topic, *({"how": "sync", "body": body} for body in ("once", "twice", "never"))))
        expected = [("never", 0), ("never", 1), ("once", 0), ("twice", 0), ("twice", 1)]

        def attempts() -> list[tuple[str, int]]:
            return sorted((m["body"], m["reconsume_times"]) for m in consumer.messages)

        wait_until(lambda: attempts() == expected, what="two messages come again")
        assert {m["topic"] for m in consumer.messages} == {topic}
        dead = f"%DLQ%{plan['group']}"
        wait_until(lambda: route_queues(cluster.nameserver_address, dead) > 0, what=f"a route of {dead}")
        assert attempts() == expected
        consumer.close()
    # The topic is created before the message is stored.
    wait_until(lambda: [m["body"] for m in stored(run, dead)] == ["never"], what="the dead letter is stored")


def test_a_transaction_ends_as_its_producer_decides(run: Run, start: Start, topic: str) -> None:
    planned = [
        {"body": "committed", "first": "commit"},
        {"body": "rolled back", "first": "rollback"},
        {"body": "committed at a check", "first": "unknown", "then": "commit"},
        {"body": "rolled back at a check", "first": "unknown", "then": "rollback"},
    ]
    plan = {"do": "transact", "topic": topic, "group": f"T_{topic}", "sends": planned}
    with start(plan) as producer:
        producer.wait_ready()
        assert [line["status"] for line in producer.messages if "status" in line] == ["SEND_OK"] * 4
        undecided = {p["body"] for p in planned if p["first"] == "unknown"}
        wait_until(
            lambda: {line["checked"] for line in producer.messages if "checked" in line} == undecided,
            what="the broker asks about both",
        )
        committed = ["committed", "committed at a check"]
        wait_until(
            lambda: sorted(m["body"] for m in stored(run, topic)) == committed, what="both commits are seen"
        )
        sent = {line["body"]: line["msg_id"] for line in producer.messages if "status" in line}
        producer.close()
    assert {m["body"]: m["msg_id"] for m in stored(run, topic)} == {body: sent[body] for body in committed}


def test_a_request_is_answered_by_its_consumer(run: Run, start: Start, topic: str) -> None:
    with start({"do": "reply", "topic": topic, "group": f"G_{topic}"}) as consumer:
        consumer.wait_ready()
        asking = [{"body": f"question {i}"} for i in range(3)]
        plan = {"do": "request", "topic": topic, "group": "go_asking", "sends": asking}
        # The broker knows the client from its heartbeat, a second after the start. It cannot deliver a reply
        # that comes sooner.
        wait_until(
            lambda: {"body": "question 2", "reply": "question 2 answered"} in run(plan), what="a reply"
        )


def test_a_broker_relays_requests_to_a_running_consumer(
    cluster: Cluster, run: Run, start: Start, topic: str
) -> None:
    plan = consuming(topic)
    group = plan["group"]

    def asked(code: int, **ext: str) -> dict[str, Any]:
        response = call(cluster.broker_address, code, ext, timeout_s=60)
        assert response.code == 0, response
        found: dict[str, Any] = json.loads(response.body)
        return found

    (sent,) = run(sending(topic, {"how": "sync", "body": "once more"}))
    with start(plan) as consumer:
        consumer.wait_bodies({"once more"})
        connections = asked(GET_CONSUMER_CONNECTION_LIST, consumerGroup=group)
        assert {one["language"] for one in connections["connectionSet"]} == {"GO"}
        (connection,) = connections["connectionSet"]
        info = call(
            cluster.broker_address,
            GET_RUNNING_INFO,
            {"consumerGroup": group, "clientId": connection["clientId"], "jstackEnable": "false"},
            timeout_s=60,
        )
        assert info.code == 0, info
        assert topic.encode() in info.body
        ext = {"consumerGroup": group, "clientId": connection["clientId"], "msgId": sent["offset_msg_id"]}
        direct = asked(CONSUME_DIRECTLY, **ext)
        assert direct["consumeResult"] == 0, "the client's number of its success"
        wait_until(lambda: consumer.bodies == ["once more"] * 2, what="it has consumed the message again")


def test_a_running_group_whose_offset_is_reset_gets_the_messages_again(
    cluster: Cluster, run: Run, start: Start, topic: str
) -> None:
    run(sending(topic, *numbered("sync", 20)))
    expected = {f"sync-{i}" for i in range(20)}
    plan = consuming(topic)
    with start(plan) as consumer:
        consumer.wait_bodies(expected)
        ext = {"topic": topic, "group": plan["group"], "timestamp": "0", "isForce": "true"}
        response = call(cluster.broker_address, RESET_OFFSET, ext, timeout_s=60)
        assert response.code == 0, response
        wait_until(
            lambda: all(consumer.bodies.count(body) >= 2 for body in expected), what="each comes again"
        )
        assert set(consumer.bodies) == expected


@pytest.mark.not_secured("RocketMQ's Go client does not sign the request that creates a topic")
def test_the_admin_client_creates_lists_and_deletes(
    cluster: Cluster, run: Run, start: Start, topic: str
) -> None:
    with start(consuming(topic)) as consumer:
        consumer.wait_ready()
        name = f"GoMade_{next(_numbers)}"
        plan = {"do": "admin", "topic": name, "broker": cluster.broker_address}
        (found,) = run(plan)
        assert f"G_{topic}" in found["groups"]
    assert found["queues"] == 2
    assert {topic, name} <= set(found["topics"])
    assert name not in found["left"]
    assert topic in found["left"]


@pytest.fixture(scope="module", params=KINDS)
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose broker checks every request."""
    made = CLUSTERS[request.param](tmp_path_factory.mktemp(f"guarded-{request.param}"), broker=CHECKED)
    made.start()
    yield made
    made.abandon()


def test_a_broker_with_users_serves_those_that_sign(guarded: Cluster, tmp_path: Path) -> None:
    body = b'{"password":"poor-secret","userType":"Normal"}'
    made = call(guarded.broker_address, 3001, signed({"username": "poor"}, body, ROOT), body)
    assert made.code == 0, made.remark
    name, numbers = f"GoAuth_{next(_numbers)}", itertools.count()

    def run_as(user: str, secret: str, plan: Line) -> list[Line]:
        signing = {**plan, "user": user, "secret": secret}
        with GoPeer(guarded, signing, tmp_path / f"go-{next(numbers)}") as peer:
            return peer.finish()

    plan = sending(name, *numbered("sync", 4), {"how": "batch", "bodies": ["a", "b"]})
    allowed = run_as(*ROOT, plan)
    assert [line.get("status") for line in allowed] == ["SEND_OK"] * 5
    for user, secret, remark in (
        ("", "", "username cannot be null."),
        ("root", "wrong", "check signature failed."),
        ("poor", "poor-secret", f"User:poor has no permission to access Topic:{name} from 127.0.0.1"),
    ):
        for line in run_as(user, secret, plan):
            assert f"CODE: 16, DESC: {remark}" in line["error"], line
    expected = {"a", "b", *(f"sync-{i}" for i in range(4))}
    wait_until(lambda: route_queues(guarded.nameserver_address, name) > 0, what=f"route of {name}")
    consume = {**consuming(name), "user": ROOT[0], "secret": ROOT[1]}
    with GoPeer(guarded, consume, tmp_path / "consumer") as consumer:
        consumer.wait_bodies(expected)
        assert sorted(m["body"] for m in consumer.close()) == sorted(expected)


def test_a_group_of_replicas_loses_no_acknowledged_message(tmp_path: Path) -> None:
    """The mastership is passed on in order, and then the master is killed; the client asks for routes every
    30 s only."""
    cluster = ReplicatedCluster(tmp_path / "cluster", octet=86)
    group = cluster.group
    try:
        cluster.start()
        topic = create_topic(cluster.nameserver_address, cluster.broker_address, "GoFailover", QUEUES)
        plan = {"do": "stream", "topic": topic, "group": "go_streaming", "pauseMS": 5}
        with (
            GoPeer(cluster, consuming(topic), tmp_path / "consumer") as consumer,
            GoPeer(cluster, plan, tmp_path / "producer") as producer,
        ):

            def acknowledged() -> set[str]:
                return {line["body"] for line in producer.messages if "status" in line}

            def wait_for_more(what: str) -> None:
                before = len(acknowledged())
                wait_until(lambda: len(acknowledged()) > before + 100, timeout_s=240, what=what)

            wait_for_more("messages are acknowledged")
            master = group.wait_master()
            hand_over(group, next(one for one in group.brokers if one is not master))
            wait_for_more("messages are acknowledged after a switchover")
            master = group.wait_master()
            master.process.kill()
            group.wait_master(other_than=master)
            wait_for_more("messages are acknowledged after a failover")
            master.start()
            sent = {line["body"] for line in producer.close() if "status" in line}
            wait_until(lambda: sent <= set(consumer.bodies), timeout_s=240, what="all are consumed")
    finally:
        print(cluster.logs(4000))  # shown when the test failed
        cluster.abandon()
