"""Tests a partitioned master, and a master whose node is drained, with a producer on each side."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.ack_checks import Ack
from tests.kubernetes.operator_process import READY_TIMEOUT_S, Groups, Operator
from tests.kubernetes.pod_faults import PodFaults
from tests.kubernetes.testbed.cluster import Cluster
from tests.kubernetes.testbed.node import Node
from tests.kubernetes.testbed.processes import TestbedError
from tests.kubernetes.traffic import Traffic

pytestmark = pytest.mark.soak


class PartitionedGroup(NamedTuple):
    """A group whose master is alone on the second node, with a producer beside it; a second producer is on
    the first node with the other replicas and the controller."""

    beside: Traffic
    across: Traffic
    pod_faults: PodFaults
    node: Node


@pytest.fixture
def split(cluster: Cluster, groups: Groups, started: Operator, clients: str) -> PartitionedGroup:
    """The group, placed by cordoning one node after the other."""
    first, second = cluster.nodes
    try:
        cluster.kubectl("cordon", second.name)
        groups.apply("ControllerGroup", "orders", {"replicas": 1})
        groups.apply("BrokerGroup", "orders", {"replicas": 2, "controllerGroup": "orders"})
        groups.ready("orders", 2)
        cluster.kubectl("uncordon", second.name)
        cluster.kubectl("cordon", first.name)
        groups.apply("BrokerGroup", "orders", {"replicas": 3, "controllerGroup": "orders"})
        what = ("get", "pod", "--ignore-not-found", f"--namespace={groups.namespace}", "orders-broker-2")
        cluster.wait(
            lambda: cluster.kubectl(*what, "--output=jsonpath={.spec.nodeName}") == second.name,
            READY_TIMEOUT_S,
            "the third replica has its node",
        )
    finally:
        for node in cluster.nodes:
            cluster.kubectl("uncordon", node.name)
    # A change of `minInSyncReplicas` restarts the others, which return to their volumes on the first node.
    groups.ready("orders", 3)
    across = Traffic(groups, clients, "orders", producer="across")
    beside = Traffic(groups, clients, "orders", producer="beside")
    across.start(node=first.name, consumers=False)
    beside.start(node=second.name, consumers=False)
    pod_faults = PodFaults(across)
    pod_faults.promote("orders-broker-2")
    return PartitionedGroup(beside, across, pod_faults, second)


def test_a_partitioned_master_acknowledges_nothing_once_another_does(split: PartitionedGroup) -> None:
    """The master's node is disconnected, with a producer on it that keeps sending."""
    cluster = split.across.groups.cluster
    split.beside.wait_acks()
    split.across.wait_acks()
    old = split.beside.acks[-1].address
    cut_s = time.monotonic()

    def of_another() -> list[Ack]:
        return [ack for ack in split.across.acks if ack.sent_s > cut_s and ack.address != old]

    split.node.unplug()
    try:
        cluster.wait(of_another, READY_TIMEOUT_S, "another master acknowledges")
        split.across.wait_acks(100)
        last = [ack for ack in split.beside.acks if ack.address == old][-1]
    finally:
        split.node.plug()
    first = of_another()[0]
    print(
        f"cut off, it acknowledged for {max(0.0, last.acked_s - cut_s):.2f} s; another did after "
        f"{first.acked_s - cut_s:.2f} s"
    )
    assert last.acked_s < first.acked_s
    cluster.wait(split.pod_faults.whole, READY_TIMEOUT_S, "the group is whole")
    split.beside.wait_acks()
    for one in (split.across, split.beside):
        one.stop()
    _check_both(split)


@contextmanager
def following_log(groups: Groups, pod: str, file: Path) -> Iterator[None]:
    """Writes what a broker logs to this file, until its pod has ended."""
    cluster = groups.cluster
    kubectl = [str(cluster.programs / "kubectl"), f"--kubeconfig={cluster.kubeconfig}"]
    command = ["logs", f"--namespace={groups.namespace}", pod, "--container=broker", "--follow"]
    with file.open("wb") as log, subprocess.Popen([*kubectl, *command], stdout=log) as follower:
        try:
            yield
            follower.wait(READY_TIMEOUT_S)
        finally:
            follower.kill()


def test_draining_the_masters_node_switches_over_and_respects_the_budget(
    split: PartitionedGroup, tmp_path: Path
) -> None:
    """A node with one replica is drained; one with two is not, because the budget does not allow the second
    eviction. The drained master itself has passed its mastership on before it stopped: no failover begins
    the next epoch."""
    cluster, groups = split.across.groups.cluster, split.across.groups
    drain = ("--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector=epochmq.io/component=broker")
    epoch = groups.state("orders-broker-2")["masterEpoch"]
    log = tmp_path / "orders-broker-2.log"
    begun_s = time.monotonic()
    try:
        with following_log(groups, "orders-broker-2", log):
            cluster.kubectl("drain", split.node.name, *drain, "--timeout=150s", timeout_s=180)
        drained_s = time.monotonic()
        assert f"is the master of epoch {epoch + 1}; sends were held for" in log.read_text()
        assert groups.state(split.pod_faults.master())["masterEpoch"] == epoch + 1
        split.across.wait_acks()
        silence_s = split.across.silence_s(begun_s, time.monotonic())
        print(f"drained in {drained_s - begun_s:.1f} s, nothing acknowledged for {silence_s:.2f} s")
        with pytest.raises(TestbedError, match="disruption budget"):
            cluster.kubectl("drain", cluster.nodes[0].name, *drain, "--timeout=20s")
        split.across.wait_acks()
    finally:
        for node in cluster.nodes:
            cluster.kubectl("uncordon", node.name)
    cluster.wait(split.pod_faults.whole, READY_TIMEOUT_S, "the group is whole")
    for one in (split.across, split.beside):
        one.stop()
    _check_both(split)


def _check_both(split: PartitionedGroup) -> None:
    """Checks the messages of both producers, whose bodies are alike."""
    for one in (split.across, split.beside):
        print(one.summary())
    split.across.check(split.beside, consumers=False)
    split.across.check_equal(3)
