"""Tests every fault in turn, with RocketMQ's clients in the cluster: no acknowledged message is lost, and the
group recovers by itself. Prints for how long nothing was acknowledged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kubernetes.operator_process import Groups, Operator
from tests.kubernetes.pod_faults import PodFaults
from tests.kubernetes.traffic import Traffic

pytestmark = pytest.mark.soak

APART = {"nameserver": {"embedded": False}}
"""Nameservers in pods of their own, so that a nameserver can be killed alone."""
RESUMED_MAX_S = 20
"""Less than the time for which Java caches a name. Writes resume after one or two seconds."""
KILLS = 4


@pytest.fixture
def pod_faults(groups: Groups, started: Operator, clients: str) -> Iterator[PodFaults]:
    """Faults of a group of three with three controllers, whose clients are on the first node; afterwards all
    messages are checked."""
    groups.apply("ControllerGroup", "orders", {"replicas": 3, **APART})
    groups.apply("BrokerGroup", "orders", {"replicas": 3, "controllerGroup": "orders"})
    groups.ready("orders", 3)
    traffic = Traffic(groups, clients, "orders")
    traffic.start(node=groups.cluster.nodes[0].name)
    made = PodFaults(traffic)
    ids = made.ids()
    yield made
    traffic.stop()
    print(traffic.summary())
    traffic.check()
    traffic.check_equal(3)
    assert made.ids() == ids


def test_writes_resume_although_every_broker_has_a_new_address(pod_faults: PodFaults) -> None:
    """Java caches a resolved name for half a minute: a client that got names would look for the next master
    at its former address."""
    before = {name: pod_faults.pod(name).status.pod_ip for name in pod_faults.brokers}
    for name in pod_faults.brokers:
        pod_faults.delete(name)
    assert all(pod_faults.pod(name).status.pod_ip != address for name, address in before.items())
    for _ in range(KILLS):
        record = pod_faults.kill(pod_faults.master(), "broker")
        assert record.silence_s < RESUMED_MAX_S, record


def test_every_pod_is_deleted_in_turn(pod_faults: PodFaults) -> None:
    """Brokers, controllers and nameservers, and then each leader once more."""
    for name in sorted(one.metadata.name for one in pod_faults.pods()):
        pod_faults.delete(name)
    pod_faults.delete(pod_faults.master())
    pod_faults.delete(pod_faults.leader())


def test_every_kind_of_process_is_killed_and_a_kubelet_is_stopped(pod_faults: PodFaults) -> None:
    master = pod_faults.master()
    follower = next(name for name in pod_faults.brokers if name != master)
    pod_faults.kill(follower, "broker")
    pod_faults.kill(follower, "admin")
    pod_faults.kill(master, "admin")
    epoch = pod_faults.groups.state(master)["masterEpoch"]
    pod_faults.kill(pod_faults.leader(), "controller")
    pod_faults.kill("orders-nameserver-0", "nameserver")
    assert pod_faults.groups.state(pod_faults.master())["masterEpoch"] == epoch, (
        "no broker was taken for dead"
    )
    pod_faults.kill(master, "broker")
    pod_faults.stop_kubelet(pod_faults.master())


def test_the_masters_node_loses_power(pod_faults: PodFaults) -> None:
    """The clients' node keeps running. Half of the group is killed at once, perhaps with most of its
    controllers; then it waits for them."""
    second = pod_faults.groups.cluster.nodes[1]
    there = next(name for name in pod_faults.brokers if pod_faults.pod(name).spec.node_name == second.name)
    if pod_faults.pod(pod_faults.master()).spec.node_name != second.name:
        pod_faults.promote(there)
    pod_faults.cut_power(second)
