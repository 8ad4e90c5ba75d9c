"""RocketMQ's producer, with its own settings, while switchovers move the mastership from replica to
replica."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.handovers import hand_over
from tests.interop.java_env import JavaProcess, compile_java
from tests.support.group_processes import our_broker, our_controller
from tests.support.group_traffic import read_queue
from tests.support.process import ManagedProcess, wait_until
from tests.support.replica_group import ReplicaGroup

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

QUEUES = 4
SENT = re.compile(r"^sent (\d+) (\d+) (.*)$", re.MULTILINE)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ReplicaGroup]:
    safe = {"allAckInSyncStateSet": True, "slaveReadEnable": True, "defaultTopicQueueNums": QUEUES}
    made = ReplicaGroup(tmp_path, [our_controller] * 3, [our_broker] * 3, broker=safe, octet=68)
    made.start()
    yield made
    print(made.logs(4000))  # shown when the test failed
    made.kill()


# When a busy machine stalls for a second, sends fail without a switchover.
@pytest.mark.soak
def test_a_producer_with_rocketmqs_settings_sees_no_failed_send(group: ReplicaGroup, tmp_path: Path) -> None:
    """It asks for routes every 30 s, and retries at the same broker after a rejection."""
    producer = JavaProcess(
        "PatientProducer",
        [group.nameserver.address],
        home=tmp_path / "producer",
        classes=compile_java("PatientProducer.java"),
        heap_mb=128,
    )

    def sent() -> list[tuple[int, int, str]]:
        return [
            (int(n), int(ms), how) for n, ms, how in SENT.findall(ManagedProcess.output(producer, 10_000_000))
        ]

    held = []
    try:
        producer.start()
        wait_until(lambda: len(sent()) > 300, timeout_s=60, what="messages are sent")
        first = group.wait_master()
        for member in [*(one for one in group.brokers if one is not first), first]:
            held.append(hand_over(group, member))
            before = len(sent())
            wait_until(lambda before=before: len(sent()) > before + 200, timeout_s=60, what="sends continue")
            group.wait_in_sync(3)
    finally:
        producer.kill()
    outcomes = sent()
    assert {how for _, _, how in outcomes} == {"SEND_OK"}
    pauses = sorted((ms for number, ms, _ in outcomes if number > 100), reverse=True)
    print(f"held {held} ms; the slowest sends took {pauses[:10]} ms")
    master = group.wait_master()
    bodies = [int(one.body) for queue in range(QUEUES) for one in read_queue(master, queue)]
    assert {number for number, _, _ in outcomes} <= set(bodies)
    assert len(bodies) == len(set(bodies))
