"""Replica groups of ours, as real processes: three brokers under three controllers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.group_traffic import acknowledged, check_equal, read_queue, send
from tests.support.process import wait_until
from tests.support.replica_group import ReplicaGroup, our_broker, our_controller

SAFE = {"allAckInSyncStateSet": True, "minInSyncReplicas": 2, "registerNameServerPeriod": 10_000}


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
