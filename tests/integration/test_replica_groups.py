"""Replica groups of real processes: three EpochMQ brokers under three EpochMQ controllers."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.group_processes import Member, our_broker, our_controller
from tests.support.group_traffic import (
    SUCCESS,
    check_equal,
    deliver_to,
    read_queue,
    send,
    send_header,
    wait_confirmed,
)
from tests.support.process import wait_holds, wait_until
from tests.support.remoting import call, frame, read_frame, split_address
from tests.support.replica_group import ReplicaGroup

SEND_MESSAGE_V2, QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET = 310, 14, 15
CLEAN_BROKER_DATA = 1011
SYSTEM_BUSY, FLUSH_SLAVE_TIMEOUT, SERVICE_NOT_AVAILABLE, GO_AWAY = 2, 12, 14, 1500

SAFE = {"allAckInSyncStateSet": True, "minInSyncReplicas": 2, "registerNameServerPeriod": 10_000}


CONSUMER = {"consumerGroup": "readers", "topic": "orders", "queueId": "0"}


def offset_of(member: Member) -> str | None:
    """The consumer group's offset at this broker."""
    return call(member.address, QUERY_CONSUMER_OFFSET, CONSUMER).ext.get("offset")


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaGroup]:
    directory = tmp_path_factory.mktemp("group")
    made = ReplicaGroup(directory, [our_controller] * 3, [our_broker] * 3, broker=SAFE, octet=71)
    try:
        made.start()
        deliver_to(made, b"first")  # creates the topic
        yield made
    finally:
        made.kill()


@pytest.fixture
def group(started: ReplicaGroup) -> Iterator[ReplicaGroup]:
    """The group that all tests share; every broker is in sync when a test starts."""
    for member in started.brokers:
        if not member.process.alive:
            member.start()
    started.wait_in_sync(3)
    yield started
    print(started.logs(6000))  # shown when the test failed


def end_of_queue(group: ReplicaGroup) -> int:
    """The number of messages in queue 0; no client sends meanwhile."""
    return len(read_queue(wait_confirmed(group)))


def bodies_from(member: Member, start: int) -> list[bytes]:
    """The bodies in queue 0 from this offset on, without those that clients sent again because an
    acknowledgement was lost."""
    return list(dict.fromkeys(record.body for record in read_queue(member, start=start)))


def test_a_killed_master_is_replaced_and_nothing_acknowledged_is_lost(group: ReplicaGroup) -> None:
    """Kills one master after the other; each comes back as a replica, and its log equals the others'."""
    kept: list[bytes] = []
    start = end_of_queue(group)
    for kill in range(3):
        for number in range(20):
            body = b"%d-%d" % (kill, number)
            master = deliver_to(group, body)
            kept.append(body)
        master.process.kill()
        assert deliver_to(group, b"after") is not master
        master.start()
        group.wait_in_sync(3)
    stored = bodies_from(wait_confirmed(group), start)
    assert [body for body in stored if body != b"after"] == kept
    check_equal(group)


def test_all_brokers_are_killed_at_once_and_nothing_is_lost(group: ReplicaGroup) -> None:
    """Kills all brokers at once. Ids, epochs, roles and messages are there again; a broker that comes back
    first waits for one that is in sync."""
    bodies = [b"%d" % number for number in range(50)]
    start = end_of_queue(group)
    for body in bodies:
        deliver_to(group, body)
    ids = {member.name: identity_of(member) for member in group.brokers}
    for member in [*group.brokers, *group.controllers]:
        member.process.kill()
    for member in [*group.brokers, *group.controllers]:
        member.start()
    group.wait_in_sync(3)
    deliver_to(group, b"after")
    assert bodies_from(wait_confirmed(group), start) == [*bodies, b"after"]
    assert {member.name: identity_of(member) for member in group.brokers} == ids
    check_equal(group)


def test_delayed_messages_and_consumer_offsets_continue_at_the_next_master(group: ReplicaGroup) -> None:
    """After a failover a delayed message is delivered, and consumers continue at their offsets. The former
    master, a replica now, rejects sends as RocketMQ's slaves do."""
    start = end_of_queue(group)
    deliver_to(group, b"at once")
    deliver_to(group, b"later", properties="DELAY\x012\x02")  # 5 s
    commit = {**CONSUMER, "commitOffset": "1"}

    def committed() -> bool:
        master = group.wait_master()
        read_queue(master)  # the first pull creates the consumer group
        return call(master.address, UPDATE_CONSUMER_OFFSET, commit).code == SUCCESS

    wait_until(committed, what="the offset is committed")
    wait_until(lambda: [offset_of(one) for one in group.brokers] == ["1"] * 3, what="the offset is copied")
    master = group.wait_master()
    master.process.kill()
    group.wait_master(other_than=master)
    wait_until(lambda: offset_of(group.wait_master()) == "1", what="the next master has the offset")
    wait_until(
        lambda: bodies_from(group.wait_master(), start) == [b"at once", b"later"],
        what="the delayed message is delivered",
    )
    first, *_, last = read_queue(group.wait_master(), start=start)
    assert last.store_timestamp - first.store_timestamp >= 5000
    master.start()
    group.wait_in_sync(3)

    def is_rejected() -> None:
        replica = next(one for one in group.brokers if one is not group.wait_master())
        assert send(replica).code == SYSTEM_BUSY

    wait_holds(is_rejected)
    check_equal(group)


def test_a_master_that_is_stopped_answers_the_sends_in_flight(group: ReplicaGroup) -> None:
    """Sends in flight are acknowledged, later ones rejected at once; then another broker is the master."""
    master = deliver_to(group)
    wait_confirmed(group)
    before = count_stored(master)
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
        sender.join(120)
    assert codes.keys() <= {SUCCESS, SYSTEM_BUSY, FLUSH_SLAVE_TIMEOUT, SERVICE_NOT_AVAILABLE, GO_AWAY}, codes
    group.wait_master(other_than=master)

    def check() -> None:
        """Reads again: a new master shows a message only when its replicas have it, too."""
        assert count_stored(group.wait_master(other_than=master)) - before >= codes[SUCCESS]

    wait_holds(check)


def count_stored(member: Member) -> int:
    """The number of messages in all queues."""
    return sum(len(read_queue(member, queue_id)) for queue_id in range(4))


def test_a_replica_whose_metadata_was_removed_comes_back(group: ReplicaGroup) -> None:
    """Removes a dead replica by cleanBrokerMetadata; RocketMQ's broker would be rejected for ever."""
    master = deliver_to(group)
    replica = next(member for member in group.brokers if member is not master)
    replica.process.kill()
    wait_until(
        lambda: len(group.wait_replicas()["inSyncReplicas"]) == 2, what="it is out of the SyncStateSet"
    )
    group.wait_in_sync(2)
    clean = {
        "clusterName": group.CLUSTER,
        "brokerName": group.NAME,
        "brokerControllerIdsToClean": identity_of(replica).split("#")[2],
        "isCleanLivingBroker": "false",
        "invokeTime": "0",
    }
    response = group.answered(CLEAN_BROKER_DATA, clean)
    assert response.code == SUCCESS, response
    before = identity_of(replica)
    replica.start()
    group.wait_in_sync(3)
    assert identity_of(replica) == before
    check_equal(group)


def identity_of(member: Member) -> str:
    """The identity in its store."""
    return (member.config.parent / "store" / "brokerIdentity").read_text()
