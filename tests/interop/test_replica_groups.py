"""Replica groups of RocketMQ's brokers and ours, under controllers of ours and of RocketMQ's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.interop.java_cluster import java_broker
from tests.interop.test_controller import OURS, java_controller
from tests.support.group_traffic import SUCCESS, acknowledged, check_equal, read_queue, send
from tests.support.process import wait_until
from tests.support.replica_group import (
    CONTROLLER_ELECT_MASTER,
    Factory,
    Member,
    ReplicaGroup,
    our_broker,
)

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

SAFE = {
    "allAckInSyncStateSet": True,
    "minInSyncReplicas": 2,
    "registerNameServerPeriod": 10_000,
    "controllerHeartBeatTimeoutMills": 15_000,
}
JAVA_QUORUM: Sequence[Factory] = [java_controller] * 3
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


def elect(group: ReplicaGroup, wanted: Member) -> None:
    """Makes a broker the master."""

    def elected() -> bool:
        found = group.replicas() or {"inSyncReplicas": []}
        ids = [one["brokerId"] for one in found["inSyncReplicas"] if one["brokerAddress"] == wanted.address]
        if not ids:
            return False
        ext = {
            "clusterName": group.CLUSTER,
            "brokerName": group.NAME,
            "brokerId": str(ids[0]),
            "designateElect": "true",
            "invokeTime": "0",
        }
        answer = group.ask(CONTROLLER_ELECT_MASTER, ext)
        return answer is not None and answer.code in (0, 2011)

    wait_until(elected, timeout_s=60, what=f"{wanted.name} is elected")
    wait_until(
        lambda: group.master() is wanted and group.routed_master() == wanted.address,
        timeout_s=60,
        what=f"{wanted.name} is master",
    )


def test_every_broker_may_be_master_of_the_others(group: ReplicaGroup) -> None:
    """Each broker is elected master, followed by the others, and killed; what was acknowledged stays, and all
    logs and epoch files are the same bytes."""
    kept: list[bytes] = []

    def send_some(master: Member, what: str) -> None:
        wait_until(
            partial(acknowledged, master, b"probe"), timeout_s=60, what=f"{master.name} takes messages"
        )
        for number in range(30):
            body = f"{what}-{number}".encode() * 20
            assert send(master, body).code == SUCCESS
            kept.append(body)

    for member in group.brokers:
        elect(group, member)
        send_some(member, f"before-{member.name}")
        group.wait_in_sync(3)
        check_equal(group)
        member.process.kill()
        successor = group.wait_master(other_than=member)
        send_some(successor, f"after-{member.name}")
        member.start()
        group.wait_in_sync(3)
    bodies = [record.body for record in read_queue(group.wait_master())]
    assert [body for body in bodies if body != b"probe"] == kept
    check_equal(group)
