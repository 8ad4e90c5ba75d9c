"""POP in replica groups of real processes: the next master hands out again what was not acknowledged."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.group_processes import Member, our_broker, our_controller
from tests.support.group_traffic import deliver_to
from tests.support.pop_client import acknowledge, pop
from tests.support.process import wait_until
from tests.support.remoting import call
from tests.support.replica_group import ReplicaGroup

QUERY_CONSUMER_OFFSET = 14
SAFE = {"allAckInSyncStateSet": True, "minInSyncReplicas": 2, "registerNameServerPeriod": 10_000}
INVISIBLE_MS = 4000
MESSAGES = 60


@pytest.fixture(params=[False, True], ids=["stored", "buffered"])
def buffered(request: pytest.FixtureRequest) -> bool:
    """Whether checkpoints stay in memory."""
    return bool(request.param)


@pytest.fixture
def group(tmp_path: Path, *, buffered: bool) -> Iterator[ReplicaGroup]:
    settings = {**SAFE, "enablePopBufferMerge": buffered}
    made = ReplicaGroup(tmp_path, [our_controller] * 3, [our_broker] * 3, broker=settings, octet=72)
    made.start()
    yield made
    print(made.logs(6000))  # shown when the test failed
    made.kill()


def offset_of(member: Member, topic: str = "orders") -> int:
    """The group's offset at this broker."""
    header = {"consumerGroup": "poppers", "topic": topic, "queueId": "0"}
    return int(call(member.address, QUERY_CONSUMER_OFFSET, header).ext.get("offset", -1))


def test_unacknowledged_messages_come_again_after_a_failover(group: ReplicaGroup, *, buffered: bool) -> None:
    """The master is killed right after its last response. Messages whose acknowledgement it took in time do
    not all come again; every other message does."""
    bodies = {b"%d" % number for number in range(MESSAGES)}
    for body in bodies:
        deliver_to(group, body)
    received: set[bytes] = set()
    acknowledged: set[bytes] = set()
    master = group.wait_master()

    def receive_some() -> bool:
        for number, (message, info) in enumerate(pop(master.address, ReplicaGroup.NAME, 8, INVISIBLE_MS)):
            received.add(message.body)
            if number % 2 and acknowledge(master.address, message, info):
                acknowledged.add(message.body)
        return len(received) > MESSAGES // 2

    wait_until(receive_some, what="half of the messages are received")
    if not buffered:  # so that only the checkpoints bring the messages back
        wait_until(
            lambda: all(offset_of(one) >= len(received) for one in group.brokers),
            what="the replicas have the offset of the group",
        )
    master.process.kill()
    started = time.monotonic()
    again: set[bytes] = set()

    def receive_rest() -> bool:
        with contextlib.suppress(AssertionError):
            successor = group.wait_master(other_than=master)
            for message, info in pop(successor.address, ReplicaGroup.NAME, 32, 60_000):
                again.add(message.body)
                acknowledge(successor.address, message, info)
        return again >= bodies - acknowledged

    wait_until(receive_rest, what="the next master hands out what was not acknowledged", timeout_s=120)
    assert again | acknowledged == bodies
    if not buffered:
        assert len(again & acknowledged) < len(acknowledged)
    assert acknowledged
    print(f"{len(again & acknowledged)} came again; {time.monotonic() - started:.1f} s")
