"""A slave acts for its dead master (RIP-32): consumers continue from it at their offsets and keep their
locks, sends are rejected as RocketMQ rejects them, and the master takes over again. RocketMQ's Java client,
nameserver and brokers take part on either side."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.interop.acting_pairs import (
    ACTING,
    ALL_CONSUMER_OFFSETS,
    GET_ROUTE,
    NOT_ACTIVE_MS,
    SUPPORTING,
    UPDATE_AND_CREATE_TOPIC,
    Consumer,
    is_active,
)
from tests.interop.java_cluster import NO_TIMER_MESSAGES, java_broker, java_nameserver
from tests.support.cluster import Settings
from tests.support.group_processes import Factory, our_broker, our_nameserver
from tests.support.java_slaves import java_slave
from tests.support.pair import SEND_MESSAGE_V2, Pair
from tests.support.process import PATIENCE_S, wait_holds, wait_until
from tests.support.remoting import Response, call, frame, read_frame, split_address
from tests.support.stalls import unless_stalled

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

END_TRANSACTION, SEND_BACK, RECALL, LOCK_BATCH, UNLOCK_BATCH, PULL = 37, 36, 370, 41, 42, 11
CONSUMER_LIST = 38
UPDATE_CONSUMER_OFFSET, QUERY_CONSUMER_OFFSET, MAX_OFFSET, MIN_OFFSET = 15, 14, 30, 31
QUEUES = 3
FORGOTTEN_S = 240
"""How long a broker may list a consumer that has stopped. RocketMQ's broker handles heartbeats and the end of
a client in different threads: a late heartbeat registers the client again, for 120 s."""
COMBINATIONS = [
    pytest.param(our_nameserver, our_broker, our_broker, id="all-ours"),
    pytest.param(java_nameserver, our_broker, our_broker, id="java-nameserver", marks=pytest.mark.soak),
    pytest.param(our_nameserver, our_broker, java_slave, id="java-slave"),
    pytest.param(java_nameserver, java_broker, our_broker, id="java-master-and-nameserver"),
    pytest.param(java_nameserver, java_broker, java_slave, id="all-java", marks=pytest.mark.soak),
    pytest.param(
        our_nameserver, java_broker, java_slave, id="javas-with-our-nameserver", marks=pytest.mark.soak
    ),
]
"""In `make test` RocketMQ's nameserver takes part beside its master."""
LOCKS_AT_THE_SLAVE = [
    COMBINATIONS[0],
    COMBINATIONS[1],
    pytest.param(our_nameserver, our_broker, java_slave, id="java-slave", marks=pytest.mark.soak),
    pytest.param(
        java_nameserver, java_broker, our_broker, id="java-master-and-nameserver", marks=pytest.mark.soak
    ),
    *COMBINATIONS[4:],
]
"""The locks are the acting slave's alone, so that one slave of EpochMQ shows them in `make test`."""


@contextmanager
def acting_pair(
    directory: Path, nameserver: Factory, master: Factory, slave: Factory, settings: Settings | None = None
) -> Iterator[Pair]:
    """A master, its slave, and a topic `orders` with three queues that both know."""
    pair = Pair(
        directory,
        [master, slave],
        broker={**NO_TIMER_MESSAGES, **ACTING, **(settings or {})},
        octet=67,
        nameserver=nameserver,
        nameserver_settings=SUPPORTING,
    )
    with pair:
        fields = {
            "topic": "orders", "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "perm": "6",
            "writeQueueNums": str(QUEUES), "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
            "order": "false",
        }  # fmt: skip
        wait_until(
            lambda: call(pair.master.address, UPDATE_AND_CREATE_TOPIC, fields).code == 0, what="a topic"
        )
        wait_until(lambda: bool(pair.ha()["haConnectionInfo"]), what="the slave is connected")
        wait_until(lambda: shows_both(pair), what="a route")
        yield pair


def slave_of(pair: Pair) -> str:
    return pair.brokers[1].address


def route(pair: Pair, topic: str = "orders") -> tuple[dict[int, str], int] | None:
    """The brokers that a client finds, by id, and the permission of the queues."""
    response = call(pair.nameserver.address, GET_ROUTE, {"topic": topic, "acceptStandardJsonOnly": "true"})
    if response.code != 0:
        return None
    found = json.loads(response.body)
    (broker,), (queues,) = found["brokerDatas"], found["queueDatas"]
    return {int(number): at for number, at in broker["brokerAddrs"].items()}, queues["perm"]


def shows_both(pair: Pair) -> bool:
    """Whether clients find the master, writable, and its slave."""
    return route(pair) == ({0: pair.master.address, 1: slave_of(pair)}, 6)


def consumers_at(address: str, group: str) -> list[str]:
    """The clients of a consumer group, as a broker lists them."""
    response = call(address, CONSUMER_LIST, {"consumerGroup": group})
    if response.code != 0:
        return []  # it knows no such group
    found: list[str] = json.loads(response.body)["consumerIdList"]
    return found


def shows_acting_master(pair: Pair) -> bool:
    """Whether clients find the slave in the master's place, read-only."""
    return route(pair) == ({0: slave_of(pair)}, 4)


def kill_master(pair: Pair) -> None:
    """Kills the master; returns when clients find the slave in its place."""
    pair.master.process.kill()
    wait_until(lambda: shows_acting_master(pair), what="the slave has the master's place")


def restart_master(pair: Pair) -> None:
    """Starts the master again; returns when clients find it."""
    pair.master.start()
    wait_until(lambda: shows_both(pair), what="the master")


def check_master_acts(pair: Pair) -> None:
    """Only the master runs the special services."""
    assert is_active(pair.master.address)
    assert not is_active(slave_of(pair))


def offsets_at_slave(pair: Pair) -> set[bytes]:
    """`QUEUE:OFFSET` of the group `readers`, as the slave has copied them."""
    body = call(slave_of(pair), ALL_CONSUMER_OFFSETS).body
    found = re.search(rb'"orders@readers":\{([^}]*)\}', body)
    return set(found[1].split(b",")) if found else set()


def fill(pair: Pair, prefix: str, count: int) -> list[str]:
    """Sends so many messages to the master, and waits until the slave has them. Returns their bodies."""
    bodies = [f"{prefix}-{number}" for number in range(count)]
    for number, body in enumerate(bodies):
        pair.deliver_once(body=body.encode(), queue_id=number % QUEUES)
    pair.wait_followed()
    return bodies


@pytest.mark.parametrize(("nameserver", "master", "slave"), COMBINATIONS)
def test_a_consumer_continues_from_the_slave_at_its_offsets(
    tmp_path: Path, nameserver: Factory, master: Factory, slave: Factory
) -> None:
    with acting_pair(tmp_path, nameserver, master, slave) as pair:
        wait_holds(partial(check_master_acts, pair))
        before = fill(pair, "before", 30)

        with Consumer(pair, tmp_path / "first") as consumer:
            wait_until(lambda: sorted(consumer.bodies) == sorted(before), what="the first messages")
            # A consumer that stops at once may not commit the message that it has just consumed.
            wait_until(
                lambda: offsets_at_slave(pair) == {b"0:10", b"1:10", b"2:10"},
                what="the slave has the offsets",
            )
        # The next consumer would share the queues with a consumer that the slave still lists.
        wait_until(
            lambda: not consumers_at(slave_of(pair), "readers"),
            timeout_s=FORGOTTEN_S,
            what="the slave has forgotten the first consumer",
        )
        after = fill(pair, "after", 30)
        kill_master(pair)
        wait_until(lambda: is_active(slave_of(pair)), what="the slave acts")
        with Consumer(pair, tmp_path / "second") as consumer:
            wait_until(lambda: len(consumer.bodies) >= len(after), what="the other messages")
            assert sorted(consumer.bodies) == sorted(after), "from the slave, and none twice"
            # The master takes over: sends work again, and the consumer moves on to it.
            restart_master(pair)
            wait_until(lambda: not is_active(slave_of(pair)), what="the slave acts no longer")
            wait_until(lambda: is_active(pair.master.address), what="the master runs the special services")
            wait_until(lambda: bool(pair.ha()["haConnectionInfo"]), what="the slave follows again")
            latest = fill(pair, "latest", 30)
            wait_until(lambda: set(latest) <= set(consumer.bodies), what="messages of the returned master")


@pytest.mark.parametrize(("nameserver", "master", "slave"), LOCKS_AT_THE_SLAVE)
def test_an_orderly_consumer_keeps_its_locks_at_the_slave(
    tmp_path: Path, nameserver: Factory, master: Factory, slave: Factory
) -> None:
    with acting_pair(tmp_path, nameserver, master, slave) as pair:
        sent = fill(pair, "in-order", 108)
        with Consumer(pair, tmp_path / "consumer", orderly=True, pause_ms=300) as consumer:
            wait_until(lambda: len(consumer.bodies) >= 12, what="the first messages")
            kill_master(pair)
            # This takes three times as long as a lock that is not renewed.
            wait_until(lambda: set(consumer.bodies) == set(sent), what="all messages")
            for queue_id in range(QUEUES):
                offsets = [offset for queue, offset, _ in consumer.messages if queue == queue_id]
                assert offsets == list(range(len(sent) // QUEUES)), (
                    f"queue {queue_id}: in order, and none twice"
                )
            wait_until(lambda: locked(pair, "another client") == 0, what="the slave has the consumer's locks")


def locked(pair: Pair, client: str) -> int:
    """How many queues a client can lock at the slave; they are unlocked again."""
    queues = [{"topic": "orders", "brokerName": Pair.NAME, "queueId": number} for number in range(QUEUES)]
    body = json.dumps({"consumerGroup": "readers", "clientId": client, "mqSet": queues}).encode()
    response = call(slave_of(pair), LOCK_BATCH, body=body)
    assert response.code == 0
    assert call(slave_of(pair), UNLOCK_BATCH, body=body).code == 0
    return len(json.loads(response.body)["lockOKMQSet"])


def send_to_slave(pair: Pair, properties: str = "WAIT\x01true\x02") -> Response:
    ext = {
        "a": "producers", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000",
        "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    return call(slave_of(pair), SEND_MESSAGE_V2, ext, b"hello")


@pytest.mark.parametrize(
    ("nameserver", "master", "slave"),
    [
        pytest.param(our_nameserver, our_broker, our_broker, id="our-slave"),
        pytest.param(our_nameserver, our_broker, java_slave, id="java-slave", marks=pytest.mark.soak),
    ],
)
def test_an_acting_master_answers_each_request_as_rocketmq_s_does(
    tmp_path: Path, nameserver: Factory, master: Factory, slave: Factory
) -> None:
    with acting_pair(tmp_path, nameserver, master, slave) as pair:
        fill(pair, "message", 30)
        address = slave_of(pair)
        wait_until(lambda: pull(pair, "reader-0").code == 0, what="the slave knows the topic")
        kill_master(pair)
        wait_until(lambda: is_active(address), what="the slave acts")
        # Nothing is stored.
        for properties in ("WAIT\x01true\x02", "WAIT\x01false\x02", "DELAY\x012\x02"):
            rejected = send_to_slave(pair, properties)
            assert rejected.code == 14, rejected
            assert rejected.remark is not None
            assert "messages are put to the slave" in rejected.remark
        back = {
            "offset": "0",
            "group": "reader-0",
            "delayLevel": "0",
            "unitMode": "false",
            "originTopic": "orders",
        }
        rejected = call(address, SEND_BACK, back)
        host = address.rpartition(":")[0]
        assert (rejected.code, rejected.remark) == (1, f"no master available along with {host}")
        end = {
            "producerGroup": "producers", "tranStateTableOffset": "0", "commitLogOffset": "0",
            "commitOrRollback": "8", "fromTransactionCheck": "false", "msgId": "x", "transactionId": "x",
        }  # fmt: skip
        assert call(address, END_TRANSACTION, end).code == 11
        recall = {"topic": "orders", "recallHandle": "x", "producerGroup": "producers"}
        assert call(address, RECALL, recall).code == 11
        # Everything else is served.
        assert pull(pair, "reader-1").code == 0
        queue = {"topic": "orders", "queueId": "0"}
        assert call(address, MAX_OFFSET, queue).ext["offset"] == "10"
        assert call(address, MIN_OFFSET, queue).ext["offset"] == "0"
        offset = {"consumerGroup": "reader-1", **queue}
        assert call(address, UPDATE_CONSUMER_OFFSET, {**offset, "commitOffset": "4"}).code == 0
        assert call(address, QUERY_CONSUMER_OFFSET, offset).ext["offset"] == "4"
        assert locked(pair, "some client") == QUEUES
        # A pull that waits is answered when the master returns, and its consumer moves on.
        with socket.create_connection(split_address(address), timeout=PATIENCE_S) as waiting:
            waiting.sendall(frame(PULL, pull_fields("reader-1", offset=10, wait_s=300), opaque=1))
            # The answer to a later request of the connection shows that the pull has arrived.
            waiting.sendall(frame(MAX_OFFSET, queue, opaque=2))
            assert read_frame(waiting)[0]["opaque"] == 2
            restart_master(pair)
            released, _ = read_frame(waiting)
        assert (released["opaque"], released["code"]) == (1, 19)
        assert released["extFields"]["suggestWhichBrokerId"] == "0"
        assert released["extFields"]["nextBeginOffset"] == "10"
        wait_until(lambda: not is_active(address), what="the slave acts no longer")


def pull(pair: Pair, group: str) -> Response:
    """Pulls from the first queue of the slave."""
    return call(slave_of(pair), PULL, pull_fields(group), timeout_s=60)


def pull_fields(group: str, *, offset: int = 0, wait_s: int = 15) -> dict[str, str]:
    """The header of a pull from the first queue, which waits for a message if there is none."""
    return {
        "consumerGroup": group, "topic": "orders", "queueId": "0", "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": str(wait_s * 1000),
        "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("nameserver", "master", "slave"),
    [
        pytest.param(java_nameserver, our_broker, our_broker, id="java-nameserver"),
        pytest.param(our_nameserver, java_broker, our_broker, id="java-master", marks=pytest.mark.soak),
    ],
)
def test_heartbeats_keep_a_broker_in_the_route_and_silence_removes_it(
    tmp_path: Path, nameserver: Factory, master: Factory, slave: Factory
) -> None:
    """With the requests of version 5: heartbeats (904) and polls of the group (901)."""
    settings: Settings = {"compatibleWithOldNameSrv": False}
    with acting_pair(tmp_path, nameserver, master, slave, settings) as pair:

        def kept(_number: int) -> None:
            # Registrations come every 10 s only.
            until_s = time.monotonic() + 3 * NOT_ACTIVE_MS / 1000

            def over() -> bool:
                assert shows_both(pair), "heartbeats keep both brokers"
                return time.monotonic() > until_s

            wait_until(lambda: shows_both(pair), what="both brokers are listed")
            wait_until(over, what="three times the time-out")

        unless_stalled(tmp_path, kept)
        pair.master.process.signal(signal.SIGSTOP)
        try:
            wait_until(lambda: shows_acting_master(pair), what="the silent master is removed")
            wait_until(lambda: is_active(slave_of(pair)), what="the slave acts")
        finally:
            pair.master.process.signal(signal.SIGCONT)
        wait_until(lambda: shows_both(pair), what="the master registers again")
        wait_until(lambda: not is_active(slave_of(pair)), what="the slave acts no longer")
