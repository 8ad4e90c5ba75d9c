"""RocketMQ's brokers in controller mode, under controllers of EpochMQ, of RocketMQ, and of both in one
quorum."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from epochmq_protocol import fastjson
from tests.interop.java_cluster import NO_TIMER_MESSAGES, java_broker
from tests.interop.java_controllers import OURS, java_controller
from tests.support.cluster import Settings
from tests.support.group_processes import our_controller
from tests.support.process import wait_until
from tests.support.replica_group import CONTROLLER_ELECT_MASTER, ReplicaGroup

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]


QUORUMS = [
    pytest.param(OURS, id="ours"),
    pytest.param([our_controller, our_controller, java_controller], id="two-of-ours", marks=pytest.mark.soak),
    pytest.param(
        [our_controller, java_controller, java_controller], id="one-of-ours", marks=pytest.mark.soak
    ),
    pytest.param([java_controller] * 3, id="java", marks=pytest.mark.soak),
]


PATIENT: Settings = {**NO_TIMER_MESSAGES, "controllerHeartBeatTimeoutMills": 15_000}
"""The broker's heartbeat timeout. A killed broker is noticed by its connection; a broker that a busy machine
delays must not be replaced."""


@pytest.fixture(params=QUORUMS)
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ReplicaGroup]:
    """Three controllers and three Java brokers, all in sync."""
    found = ReplicaGroup(tmp_path, request.param, [java_broker] * 3, broker=PATIENT)
    found.start()
    yield found
    found.kill()


def test_brokers_register_elect_fail_over_and_come_back(group: ReplicaGroup) -> None:
    """After kill -9 of the master another is elected from the SyncStateSet, and the dead one comes back as
    its replica. Killing the leading controller changes nothing for clients, and elections continue under its
    successor."""
    first = group.wait_master()
    epoch = group.epoch()
    first.process.kill()
    second = group.wait_master(other_than=first)
    assert group.epoch() > epoch
    first.start()
    group.wait_in_sync(3)

    leader = group.wait_leader()
    before = group.epoch()
    leader.process.kill()
    wait_until(
        lambda: group.routed_master() == second.address, what="clients continue with the former master"
    )
    group.wait_leader(other_than=leader)
    assert group.epoch() == before
    second.process.kill()
    third = group.wait_master(other_than=second)
    assert group.epoch() > before
    leader.start()
    second.start()
    group.wait_in_sync(3)
    assert group.wait_master() is third


def test_a_designated_replica_becomes_master_on_request(group: ReplicaGroup) -> None:
    """ELECT_MASTER with designateElect elects a living member of the SyncStateSet, and no other replica."""
    master = group.wait_master()
    others = [r for r in group.wait_replicas()["inSyncReplicas"] if r["brokerAddress"] != master.address]
    other = others[0]
    wanted = {
        "clusterName": group.CLUSTER,
        "brokerName": group.NAME,
        "brokerId": str(other["brokerId"]),
        "designateElect": "true",
        "invokeTime": "0",
    }
    response = group.answered(CONTROLLER_ELECT_MASTER, wanted)
    assert (response.code, response.ext["masterBrokerId"]) == (0, str(other["brokerId"]))
    assert fastjson.loads(response.body)["syncStateSet"] == [other["brokerId"]]
    assert group.wait_master(other_than=master).address == other["brokerAddress"]
    assert group.answered(CONTROLLER_ELECT_MASTER, wanted).code == 2011
    unknown = group.answered(CONTROLLER_ELECT_MASTER, {**wanted, "brokerId": "99"})
    assert unknown.code == 2012
