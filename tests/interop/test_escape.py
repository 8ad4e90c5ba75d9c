"""The master of one group dies; its delayed messages, timer messages, rejected messages, popped messages and
open transactions reach RocketMQ's clients through another group, each once if the slave that sends them
is EpochMQ's. Either group is RocketMQ's or EpochMQ's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from epochmq_protocol.message import MessageExt
from tests.interop.acting_pairs import ACTING, SUPPORTING, Consumer, is_active
from tests.interop.escape_groups import (
    GET_MAX_OFFSET,
    OTHER_NAME,
    REJECTED,
    create_topic,
    knows_topic,
    masters,
)
from tests.interop.java_cluster import java_broker, java_nameserver
from tests.interop.java_env import JavaProcess, compile_java
from tests.support.group_processes import Factory, Member, our_broker, our_nameserver
from tests.support.java_slaves import java_slave
from tests.support.pair import SEND_MESSAGE_V2, Pair
from tests.support.pop_client import acknowledge, pop
from tests.support.process import wait_until
from tests.support.remoting import call

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

DELAYED_S = 20
"""Long enough to send everything and to kill the master before the first message is due."""
INVISIBLE_MS = 30_000
"""Long enough to kill the master, to wait until the slave acts, and to acknowledge a message there before it
is visible again."""
ESCAPING = {
    **ACTING,
    "inSyncReplicas": 1,
    "enableRemoteEscape": True,
    "messageDelayLevel": f"1s {DELAYED_S}s",
    "transactionCheckInterval": 1000,
    "transactionTimeOut": 1000,
    "transactionCheckMax": 1000,
}


@contextmanager
def two_groups(
    directory: Path, nameserver: Factory, brokers: tuple[Factory, Factory], other: Factory
) -> Iterator[tuple[Pair, Member]]:
    """A master and its slave; the master of the other group. Both groups have the topic `orders`."""
    pair = Pair(
        directory,
        brokers,
        broker=ESCAPING,
        octet=69,
        nameserver=nameserver,
        nameserver_settings=SUPPORTING,
    )
    settings = {"brokerName": OTHER_NAME, "brokerId": 0, "brokerRole": "ASYNC_MASTER"}
    group = pair.make_broker(2, other, ESCAPING | settings)
    pair.brokers.append(group)
    with pair:
        for address in (pair.master.address, group.address):
            create_topic(address, "orders")
        wait_until(lambda: bool(pair.ha()["haConnectionInfo"]), what="the slave is connected")
        wait_until(lambda: masters(pair, "orders") == [pair.master.address, group.address], what="a route")
        yield pair, group


def send(address: str, body: str, properties: str = "") -> None:
    ext = {
        "a": "producers", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000",
        "h": "0", "i": f"WAIT\x01true\x02{properties}", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    response = call(address, SEND_MESSAGE_V2, ext, body.encode(), timeout_s=60)
    assert response.code == 0, response


def delayed_end(address: str) -> int:
    """How many messages of level 2 a broker has had, those that consumers have rejected among them."""
    ext = {"topic": "SCHEDULE_TOPIC_XXXX", "queueId": "1"}
    return int(call(address, GET_MAX_OFFSET, ext).ext["offset"])


def pop_some(address: str, name: str, found: dict[str, tuple[MessageExt, str]], count: int) -> bool:
    """POPs once, and keeps each message as it came first. Returns whether so many messages have come."""
    for message, info in pop(address, name, 4, INVISIBLE_MS):
        found.setdefault(message.body.decode(), (message, info))
    return len(found) >= count


OURS = (our_broker, our_broker)
JAVAS = (java_broker, java_slave)


@pytest.mark.parametrize(
    ("nameserver", "brokers", "other"),
    [
        # In `make test` all ours is under the faults of `test_chaos`, and returns in `test_acting_handback`.
        pytest.param(our_nameserver, OURS, our_broker, id="all-ours", marks=pytest.mark.soak),
        pytest.param(java_nameserver, OURS, java_broker, id="to-java"),
        pytest.param(our_nameserver, (our_broker, java_slave), our_broker, id="from-java"),
        pytest.param(
            java_nameserver, OURS, our_broker, id="ours-with-javas-nameserver", marks=pytest.mark.soak
        ),
        pytest.param(
            our_nameserver, (java_broker, our_broker), our_broker, id="javas-master", marks=pytest.mark.soak
        ),
        pytest.param(
            our_nameserver, JAVAS, java_broker, id="javas-with-our-nameserver", marks=pytest.mark.soak
        ),
        pytest.param(java_nameserver, JAVAS, java_broker, id="all-java", marks=pytest.mark.soak),
    ],
)
def test_messages_of_a_group_without_a_master_come_through_another_group(
    tmp_path: Path, nameserver: Factory, brokers: tuple[Factory, Factory], other: Factory
) -> None:
    with two_groups(tmp_path, nameserver, brokers, other) as (pair, group):
        address, decision = pair.brokers[1].address, tmp_path / "decision"
        for number in range(2):
            send(pair.master.address, f"popped-{number}")
        wait_until(lambda: knows_topic(address), what="the slave knows the topic")
        create_topic(pair.master.address, "payments")
        producer = JavaProcess(
            "UndecidedProducer",
            [pair.nameserver.address, "payments", "paid", str(decision)],
            home=tmp_path / "producer",
            classes=compile_java("UndecidedProducer.java"),
            heap_mb=128,
        )
        consumer = Consumer(pair, tmp_path / "consumer")
        payments = Consumer(pair, tmp_path / "payments", group="cashiers", topic="payments")
        with consumer, payments:
            wait_until(lambda: len(consumer.bodies) == 2, what="the consumer is there")
            producer.start()
            try:
                producer.wait_until(lambda: "sent" in producer.output(100_000), what="a half message")
                popped: dict[str, tuple[MessageExt, str]] = {}
                wait_until(
                    lambda: pop_some(pair.master.address, Pair.NAME, popped, 2), what="messages are popped"
                )
                delayed = {f"delayed-{number}" for number in range(5)}
                timed = {f"timed-{number}" for number in range(5)}
                send(pair.master.address, REJECTED)
                for body in sorted(delayed):
                    send(pair.master.address, body, "DELAY\x012\x02")
                for body in sorted(timed):
                    send(pair.master.address, body, f"TIMER_DELAY_SEC\x01{DELAYED_S}\x02")
                waiting = len(delayed) + 1
                wait_until(lambda: delayed_end(pair.master.address) == waiting, what="it is rejected")
                pair.wait_followed()
                pair.master.process.kill()
                wait_until(lambda: is_active(address), what="the slave acts")
                wait_until(lambda: masters(pair, "orders") == [address, group.address], what="a new route")
                assert acknowledge(address, *popped["popped-0"])
                create_topic(group.address, "payments")
                decision.touch()
                wait_until(lambda: delayed | timed <= set(consumer.bodies), what="the delayed messages")
                again: dict[str, tuple[MessageExt, str]] = {}
                wait_until(lambda: pop_some(group.address, OTHER_NAME, again, 1 + 10), what="a message comes")
                assert "popped-1" in again
                assert again["popped-1"][0].reconsume_times == 1
                wait_until(lambda: "paid" in payments.bodies, what="the transaction is committed")
                # The slave may give the first copy once more: the group's offset of before is older.
                wait_until(
                    lambda: any(
                        body == REJECTED and name == OTHER_NAME for *_, body, name in consumer.sightings
                    ),
                    what="the rejected message comes through the other group",
                )
            finally:
                producer.stop()
            # What the master delivered before it was killed may come again, and a client may be given one
            # message twice: what counts is where it is stored.
            places = {place for place in consumer.sightings if place[2] in delayed | timed}
            copies = Counter((body, name) for _, _, body, name in places)
            assert {body for body, _ in copies} == delayed | timed
            # RocketMQ's slave sends a message again that was not acknowledged within three seconds.
            if brokers[1] is our_broker:
                assert max(copies.values()) == 1, f"each once: {sorted(places)}"
                assert "popped-0" not in again, "it was acknowledged"
