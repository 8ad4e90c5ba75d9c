"""Replica groups of RocketMQ's and EpochMQ's brokers, under EpochMQ's and RocketMQ's controllers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.interop.java_cluster import NO_TIMER_MESSAGES, java_broker
from tests.interop.java_controllers import OURS, java_controller
from tests.interop.java_env import NEWEST, JavaProcess, compile_java, made_by
from tests.support.group_processes import Factory, Member, our_broker
from tests.support.group_traffic import QUEUES, check_equal, deliver, read_queue, wait_confirmed
from tests.support.process import wait_holds, wait_until
from tests.support.replica_group import ReplicaGroup

pytestmark = [pytest.mark.java, pytest.mark.timeout(1200)]

SAFE = {
    **NO_TIMER_MESSAGES,
    "allAckInSyncStateSet": True,
    "minInSyncReplicas": 2,
    "registerNameServerPeriod": 10_000,
    "controllerHeartBeatTimeoutMills": 15_000,
}
PATIENCE_S = 60.0
"""How long a producer may be without a master on a busy machine; docs/develop/replication.md has the
measured times."""
JAVA_QUORUM: Sequence[Factory] = [java_controller] * 3
NEWEST_QUORUM: Sequence[Factory] = [made_by(NEWEST, java_controller)] * 3
newest_broker = made_by(NEWEST, java_broker)
GROUPS = [
    pytest.param((OURS, [our_broker, java_broker, our_broker]), id="one-java-broker-under-ours"),
    pytest.param(
        (OURS, [java_broker, our_broker, java_broker]),
        id="two-java-brokers-under-ours",
        marks=pytest.mark.soak,
    ),
    pytest.param(
        (JAVA_QUORUM, [our_broker, java_broker, our_broker]),
        id="one-java-broker-under-java",
        marks=pytest.mark.soak,
    ),
    pytest.param((JAVA_QUORUM, [our_broker] * 3), id="ours-under-java", marks=pytest.mark.soak),
    pytest.param(
        (NEWEST_QUORUM, [our_broker, newest_broker, our_broker]),
        id="one-newest-broker-under-newest",
        marks=pytest.mark.soak,
    ),
    pytest.param(
        (OURS, [newest_broker, our_broker, java_broker]),
        id="newest-and-java-broker-under-ours",
        marks=pytest.mark.soak,
    ),
]


@pytest.fixture(params=GROUPS)
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ReplicaGroup]:
    controllers: Sequence[Factory]
    brokers: Sequence[Factory]
    controllers, brokers = request.param
    made = ReplicaGroup(tmp_path, controllers, brokers, broker=SAFE, octet=73)
    made.start()
    yield made
    print(made.logs(8000))  # shown when the test failed
    made.kill()


def test_every_broker_can_be_master_of_the_others(group: ReplicaGroup) -> None:
    """Each broker is elected master, followed by the others, and killed. Acknowledged messages survive, and
    all logs and epoch files are equal, byte for byte."""
    kept: list[bytes] = []

    def send_some(master: Member, what: str) -> None:
        for number in range(30):
            body = f"{what}-{number}".encode() * 20
            deliver(master, body)
            kept.append(body)

    # A replica of RocketMQ 5.5 that is empty keeps the first epoch in its list when the next one begins.
    group.wait_in_sync(len(group.brokers))
    send_some(group.wait_master(), "first")
    for member in group.brokers:
        group.elect(member)
        send_some(member, f"before-{member.name}")
        group.wait_in_sync(len(group.brokers))
        check_equal(group)
        member.process.kill()
        successor = group.wait_master(other_than=member)
        send_some(successor, f"after-{member.name}")
        member.start()
        group.wait_in_sync(len(group.brokers))

    def check() -> None:
        """Compares again: a message that was not acknowledged, as on a busy machine, was sent again."""
        bodies = [record.body for record in read_queue(wait_confirmed(group))]
        assert list(dict.fromkeys(bodies)) == kept

    wait_holds(check)
    check_equal(group)


class SteadyProducer:
    """RocketMQ's producer, sending one message after another (`SteadyProducer.java`)."""

    def __init__(self, directory: Path, nameserver: str) -> None:
        self.process = JavaProcess(
            "SteadyProducer",
            [nameserver, "5"],
            home=directory,
            classes=compile_java("SteadyProducer.java"),
            heap_mb=128,
        )

    def acks(self) -> list[tuple[bytes, int, int, float]]:
        """(body, queue, offset, when in seconds) of every acknowledged message."""
        words = (line.split() for line in self.process.output_path.read_text().splitlines())
        return [
            (one[1].encode(), int(one[2]), int(one[3]), int(one[4]) / 1e9)
            for one in words
            if len(one) == 5 and one[0] == "acked"
        ]

    def wait_more(self, count: int = 100) -> None:
        """Waits until `count` more messages are acknowledged."""
        before = len(self.acks())
        wait_until(lambda: len(self.acks()) >= before + count, what=f"{count} more messages")

    def longest_gap_s(self, since: int) -> float:
        """The longest time between two acknowledgements, from number `since` on."""
        moments = [one[3] for one in self.acks()[max(since - 1, 0) :]]
        return max(after - before for before, after in itertools.pairwise(moments))


def test_a_java_producer_continues_with_the_next_master(tmp_path: Path) -> None:
    """Kills the master, then stops the next one cleanly. The producer asks for routes every 100 ms."""
    group = ReplicaGroup(
        tmp_path, OURS, [our_broker] * 3, broker=SAFE, controller={"writeLeaseMs": 300}, octet=78
    )
    home = tmp_path / "producer"
    home.mkdir()
    producer = SteadyProducer(home, group.nameserver.address)
    try:
        group.start()
        producer.process.start()
        producer.wait_more()
        for how in ("kill", "stop"):
            master = group.wait_master()
            before = len(producer.acks())
            end = master.process.kill if how == "kill" else master.process.stop
            end()
            producer.wait_more()
            gap_s = producer.longest_gap_s(before)
            print(f"{how}: nothing acknowledged for {gap_s:.3f} s")
            master.start()
            group.wait_in_sync(3)
        producer.process.kill()
        master = wait_confirmed(group)
        stored = [read_queue(master, queue_id) for queue_id in range(QUEUES)]
        for body, queue_id, offset, _ in producer.acks():
            assert stored[queue_id][offset].body == body
        check_equal(group)
    finally:
        producer.process.kill()
        print(group.logs(8000))  # shown when the test failed
        group.kill()
