"""Every trouble in turn, under RocketMQ's clients in the cluster: whatever dies, nothing that was
acknowledged is lost, and the group heals by itself. How long each was felt is printed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.operator_process import Groups, Operator
from tests.kubernetes.traffic import Traffic
from tests.kubernetes.troubles import Troubles
from tests.support.stalls import unless_stalled

pytestmark = pytest.mark.soak

APART = {"nameserver": {"embedded": False}}
"""Nameservers in pods of their own, so that they can die alone."""
RESUMED_S = 1.5
"""Outside Kubernetes writes resume within half a second of a master's end; a second comes on top."""
KILLS = 4


@pytest.fixture
def troubles(groups: Groups, started: Operator, clients: str) -> Iterator[Troubles]:
    """Those of a group of three, with three controllers, whose clients are on the first node; afterwards the
    account is made."""
    groups.apply("ControllerGroup", "orders", {"replicas": 3, **APART})
    groups.apply("BrokerGroup", "orders", {"replicas": 3, "controllerGroup": "orders"})
    groups.ready("orders", 3)
    traffic = Traffic(groups, clients, "orders")
    traffic.start(node=groups.cluster.nodes[0].name)
    made = Troubles(traffic)
    ids = made.ids()
    yield made
    traffic.stop()
    print(traffic.told())
    traffic.check()
    traffic.check_equal(3)
    assert made.ids() == ids


def test_writes_resume_at_once_though_every_broker_has_another_address_than_before(
    troubles: Troubles, tmp_path: Path
) -> None:
    """Java keeps for half a minute what a name led to: whoever was told names would look for the next master
    where its pod was before."""
    before = {name: troubles.pod(name).status.pod_ip for name in troubles.brokers}
    for name in troubles.brokers:
        troubles.delete(name)
    assert all(troubles.pod(name).status.pod_ip != address for name, address in before.items())

    def resumes_after_a_kill(_: int) -> None:
        told = troubles.kill(troubles.master(), "broker")
        assert told.silence_s < RESUMED_S, told

    for _ in range(KILLS):
        unless_stalled(tmp_path, resumes_after_a_kill)


def test_every_pod_is_deleted_in_turn(troubles: Troubles) -> None:
    """Brokers, controllers and nameservers, and once more whoever leads."""
    for name in sorted(one.metadata.name for one in troubles.pods()):
        troubles.delete(name)
    troubles.delete(troubles.master())
    troubles.delete(troubles.leader())


def test_every_kind_of_process_is_killed_and_a_kubelet_is_stopped(troubles: Troubles) -> None:
    master = troubles.master()
    follower = next(name for name in troubles.brokers if name != master)
    troubles.kill(follower, "broker")
    troubles.kill(follower, "admin")
    troubles.kill(master, "admin")
    epoch = troubles.groups.state(master)["masterEpoch"]
    troubles.kill(troubles.leader(), "controller")
    troubles.kill("orders-nameserver-0", "nameserver")
    assert troubles.groups.state(troubles.master())["masterEpoch"] == epoch, "no broker was taken for dead"
    troubles.kill(master, "broker")
    troubles.stop_kubelet(troubles.master())


def test_the_power_of_the_masters_node_is_cut(troubles: Troubles) -> None:
    """The clients' node stays. Half of the group dies at once, with most of its controllers perhaps: then it
    waits for them."""
    second = troubles.groups.cluster.nodes[1]
    there = next(name for name in troubles.brokers if troubles.pod(name).spec.node_name == second.name)
    if troubles.pod(troubles.master()).spec.node_name != second.name:
        troubles.promote(there)
    troubles.cut_power(second)
