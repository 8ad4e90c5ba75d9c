"""Tests on a real cluster that a replica whose node is lost for good, with its local volume, is replaced by
`epochmq replica replace`, while RocketMQ's producer sends: no acknowledged message is lost."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kubernetes.operator_process import READY_TIMEOUT_S, Groups, Operator, run_epochmq
from tests.kubernetes.testbed.node import Node
from tests.kubernetes.traffic import Traffic

LOST = "orders-broker-2"
CLAIM = f"store-{LOST}"
COMMAND_TIMEOUT_S = 100


@contextlib.contextmanager
def without_pods_on(groups: Groups, node: Node) -> Iterator[None]:
    """No new pod is placed on the node meanwhile."""
    groups.cluster.kubectl("cordon", node.name)
    try:
        yield
    finally:
        groups.cluster.kubectl("uncordon", node.name)


@contextlib.contextmanager
def lost_node(groups: Groups, node: Node) -> Iterator[None]:
    """The node has lost power, and is repaired only at the end."""
    node.power_off()
    try:
        yield
    finally:
        node.power_on()
        groups.cluster.wait(lambda: is_ready(groups, node), READY_TIMEOUT_S, f"{node.name} is back")


def is_ready(groups: Groups, node: Node) -> bool:
    """Whether the node's kubelet reports to the API server."""
    found = groups.cluster.core.read_node(node.name)
    return any(one.type == "Ready" and one.status == "True" for one in found.status.conditions)


def order(groups: Groups) -> list[str]:
    """The command that orders a new volume."""
    place = (f"--namespace={groups.namespace}", f"--kubeconfig={groups.cluster.kubeconfig}")
    return ["replica", "replace", "orders/2", *place, f"--timeout={COMMAND_TIMEOUT_S}"]


def refusal(groups: Groups) -> str:
    """The error of an order that is refused."""
    command = [sys.executable, "-m", "epochmq", *order(groups)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    assert done.returncode == 1
    return done.stderr


def node_of(groups: Groups, pod: str) -> str:
    """The node of a pod; empty if it has none, or does not exist."""
    what = ("get", "pod", "--ignore-not-found", f"--namespace={groups.namespace}", pod)
    return groups.cluster.kubectl(*what, "--output=jsonpath={.spec.nodeName}")


def uid(groups: Groups, kind: str, name: str) -> Any:
    """The uid of an object."""
    return groups.get(kind, name)["metadata"]["uid"]


@pytest.fixture
def spread(groups: Groups, started: Operator, clients: str) -> Iterator[Traffic]:
    """A group whose last replica is alone on the second node, and clients on the first one; afterwards all
    messages are checked."""
    first, second = groups.cluster.nodes
    with without_pods_on(groups, second):
        groups.apply("ControllerGroup", "orders", {"replicas": 3})
        groups.apply("BrokerGroup", "orders", {"replicas": 2, "controllerGroup": "orders"})
        groups.ready("orders", 2)
    with without_pods_on(groups, first):
        groups.apply("BrokerGroup", "orders", {"replicas": 3, "controllerGroup": "orders"})
        groups.cluster.wait(lambda: node_of(groups, LOST) == second.name, what="the replica has its node")
    # A change of `minInSyncReplicas` restarts the others, which return to their volumes on the first node.
    groups.ready("orders", 3)
    traffic = Traffic(groups, clients, "orders")
    traffic.start(node=first.name)
    yield traffic
    traffic.stop()
    print(traffic.summary())
    traffic.check()
    traffic.check_equal(3)


def test_a_replica_whose_node_is_lost_gets_a_new_volume_and_identity(spread: Traffic) -> None:
    groups, cluster = spread.groups, spread.groups.cluster
    _, second = cluster.nodes
    ids, volume = groups.broker_ids("orders", 3), uid(groups, "PersistentVolumeClaim", CLAIM)
    assert f"{LOST} is ready, so its volume works" in refusal(groups)
    with lost_node(groups, second):
        cluster.wait(lambda: not is_ready(groups, second), READY_TIMEOUT_S, "the node is known to be lost")
        # What Kubernetes does by itself after five minutes. The pod does not end, because its node is lost.
        cluster.kubectl("delete", "pod", LOST, f"--namespace={groups.namespace}", "--wait=false")
        assert cluster.core.read_namespaced_pod(LOST, groups.namespace).metadata.deletion_timestamp

        def named() -> bool:
            message = groups.condition("BrokerGroup", "orders", "Degraded").get("message", "")
            return (
                f"{LOST} is being deleted on node {second.name}" in message
                and "orders-broker-0, orders-broker-1 have every acknowledged message" in message
            )

        cluster.wait(named, READY_TIMEOUT_S, "the status names the node and the remaining copies")
        spread.wait_acks()
        assert f"{LOST} has a new volume" in run_epochmq(*order(groups))
        groups.ready("orders", 3)
        spread.wait_acks()
        assert uid(groups, "PersistentVolumeClaim", CLAIM) != volume
        assert groups.broker_ids("orders", 3)[LOST] not in ids.values()
    groups.ready("orders", 3)
    spread.wait_acks()
    status = groups.status("BrokerGroup", "orders")
    assert ids[LOST] not in status["syncStateSet"]
    assert status["replacement"]["state"] == "Replaced"
    assert uid(groups, "PersistentVolumeClaim", CLAIM) != volume
