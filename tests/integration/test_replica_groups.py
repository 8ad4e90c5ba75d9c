"""Replica groups of ours, as real processes: three brokers under three controllers."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.group_traffic import SUCCESS, acknowledged, check_equal, read_queue, send, send_header
from tests.support.process import wait_until
from tests.support.remoting import call, frame, read_frame, split_address
from tests.support.replica_group import Member, ReplicaGroup, our_broker, our_controller

SEND_MESSAGE_V2, QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET = 310, 14, 15
CLEAN_BROKER_DATA = 1011
SYSTEM_BUSY, SERVICE_NOT_AVAILABLE, GO_AWAY = 2, 14, 1500

SAFE = {"allAckInSyncStateSet": True, "minInSyncReplicas": 2, "registerNameServerPeriod": 10_000}


CONSUMER = {"consumerGroup": "readers", "topic": "orders", "queueId": "0"}


def offset_of(member: Member) -> str | None:
    """How far the consumers have come, as this broker knows it."""
    return call(member.address, QUERY_CONSUMER_OFFSET, CONSUMER).ext.get("offset")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ReplicaGroup]:
    made = ReplicaGroup(tmp_path, [our_controller] * 3, [our_broker] * 3, broker=SAFE, octet=71)
    made.start()
    yield made
    print(made.logs(6000))  # shown when the test failed
    made.kill()


def test_a_killed_master_is_replaced_and_nothing_acknowledged_is_lost(group: ReplicaGroup) -> None:
    """kill -9 of one master after the other; each comes back as a replica, and its log is the others'."""
    kept: list[bytes] = []
    for kill in range(3):
        master = group.master()
        assert master is not None
        for number in range(20):
            body = b"%d-%d" % (kill, number)
            assert send(master, body).code == 0
            kept.append(body)
        master.process.kill()
        successor = group.wait_master(other_than=master)
        wait_until(partial(acknowledged, successor, b"after"), what="the successor takes messages")
        master.start()
        group.wait_in_sync(3)
    master = group.wait_master()
    stored = [record.body for record in read_queue(master)]
    assert [body for body in stored if body != b"after"] == kept
    check_equal(group)


def test_everybody_is_killed_at_once_and_everything_comes_back(group: ReplicaGroup) -> None:
    """Power is lost. Ids, epochs, roles and messages are found again; whoever comes back first waits for one
    that is in sync."""
    master = group.wait_master()
    bodies = [b"%d" % number for number in range(50)]
    for body in bodies:
        assert send(master, body).code == SUCCESS
    ids = {member.name: identity_of(member) for member in group.brokers}
    for member in [*group.brokers, *group.controllers]:
        member.process.kill()
    for member in [*group.brokers, *group.controllers]:
        member.start()
    group.wait_in_sync(3)
    master = group.wait_master()
    wait_until(partial(acknowledged, master, b"after"), what="messages are taken again")
    assert [record.body for record in read_queue(master)][: len(bodies)] == bodies
    assert {member.name: identity_of(member) for member in group.brokers} == ids
    check_equal(group)


def test_delays_and_offsets_go_on_with_the_next_master(group: ReplicaGroup) -> None:
    """A delayed message is delivered, and consumers go on where they were; the former master, a replica now,
    refuses sends as RocketMQ's slaves do."""
    master = group.wait_master()
    assert send(master, b"at once").code == SUCCESS
    header = send_header(0, "D" * 32)
    header["i"] += "DELAY\x012\x02"  # 5 s
    assert call(master.address, SEND_MESSAGE_V2, header, b"later").code == SUCCESS
    assert len(read_queue(master)) == 1
    assert call(master.address, UPDATE_CONSUMER_OFFSET, {**CONSUMER, "commitOffset": "1"}).code == SUCCESS
    others = [member for member in group.brokers if member is not master]
    wait_until(lambda: [offset_of(one) for one in others] == ["1", "1"], what="the offset is copied")
    master.process.kill()
    successor = group.wait_master(other_than=master)
    assert offset_of(successor) == "1"
    wait_until(
        lambda: [record.body for record in read_queue(successor)] == [b"at once", b"later"],
        what="the delayed message is delivered",
    )
    master.start()
    group.wait_in_sync(3)
    assert send(master).code == SYSTEM_BUSY
    check_equal(group)


def test_a_master_that_is_stopped_answers_what_it_has_taken(group: ReplicaGroup) -> None:
    """What is under way is acknowledged, what comes later refused at once; another is master then."""
    master = group.wait_master()
    assert send(master).code == SUCCESS
    codes: Counter[int] = Counter()

    def send_on(queue_id: int) -> None:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(split_address(master.address)) as connection,
        ):
            for number in itertools.count(1):
                header = send_header(queue_id, f"{queue_id:08X}{number:024X}")
                connection.sendall(frame(SEND_MESSAGE_V2, header, b"body", opaque=number))
                codes[read_frame(connection)[0]["code"]] += 1

    senders = [threading.Thread(target=send_on, args=(queue_id,)) for queue_id in range(4)]
    for sender in senders:
        sender.start()
    wait_until(lambda: codes[SUCCESS] > 100, what="messages are acknowledged")
    assert master.process.stop() == 0
    for sender in senders:
        sender.join(30)
    assert codes.keys() <= {SUCCESS, SYSTEM_BUSY, SERVICE_NOT_AVAILABLE, GO_AWAY}, codes
    successor = group.wait_master(other_than=master)
    stored = sum(len(read_queue(successor, queue_id)) for queue_id in range(4))
    assert stored >= codes[SUCCESS]


def test_a_replica_that_was_cleaned_away_comes_back(group: ReplicaGroup) -> None:
    """cleanBrokerMetadata of a dead replica; RocketMQ's would be refused for ever."""
    master = group.wait_master()
    assert send(master).code == SUCCESS
    replica = next(member for member in group.brokers if member is not master)
    replica.process.kill()
    group.wait_in_sync(2)
    clean = {
        "clusterName": group.CLUSTER,
        "brokerName": group.NAME,
        "brokerControllerIdsToClean": identity_of(replica).split("#")[2],
        "isCleanLivingBroker": "false",
        "invokeTime": "0",
    }
    answer = group.ask(CLEAN_BROKER_DATA, clean)
    assert answer is not None
    assert answer.code == SUCCESS, answer
    before = identity_of(replica)
    replica.start()
    group.wait_in_sync(3)
    assert identity_of(replica) == before
    check_equal(group)


def identity_of(member: Member) -> str:
    """Who it is, by its store."""
    return (member.config.parent / "store" / "brokerIdentity").read_text()
