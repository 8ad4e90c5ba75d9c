"""Tests on a real cluster that a replica whose node is lost for good, with its local volume, is replaced by
`epochmq replica replace`, while RocketMQ's producer sends: no acknowledged message is lost."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from epochmq_operator.plans.objects import REPLACE_REPLICA, annotation
from tests.kubernetes.killed_operators import KilledOperators, ready, resource
from tests.kubernetes.messages import received, send
from tests.kubernetes.operator_process import READY_TIMEOUT_S, Groups, Operator, operator, run_epochmq
from tests.kubernetes.testbed.cluster import Cluster
from tests.kubernetes.testbed.node import Node
from tests.kubernetes.traffic import Traffic

LOST = "orders-broker-2"
CLAIM = f"store-{LOST}"
COMMAND_TIMEOUT_S = 240


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
    done = subprocess.run(command, capture_output=True, text=True, timeout=READY_TIMEOUT_S, check=False)
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


@pytest.mark.soak
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


@pytest.mark.soak
def test_operators_that_are_killed_after_every_write_replace_a_replica_once(
    cluster: Cluster, groups: Groups, definitions: None, tmp_path: Path
) -> None:
    """The replica's node takes no pods any more, so its volume cannot be used."""
    place = f"--namespace={groups.namespace}"
    with operator(cluster, groups.namespace, tmp_path):
        groups.apply("ControllerGroup", "quorum", {"replicas": 1})
        groups.apply("BrokerGroup", "orders", {"replicas": 3, "controllerGroup": "quorum"})
        groups.ready("orders", 3)
        send(groups, "orders", ["a", "b"])
        claims = {
            f"store-orders-broker-{n}": uid(groups, "PersistentVolumeClaim", f"store-orders-broker-{n}")
            for n in range(3)
        }
        node = cluster.node(node_of(groups, LOST))
        cluster.kubectl("cordon", node.name)
        cluster.kubectl("delete", "pod", LOST, place)
        groups.wait("BrokerGroup", "orders", READY_TIMEOUT_S, ready="2/3")
        cluster.wait(
            lambda: len(groups.status("BrokerGroup", "orders")["syncStateSet"]) == 2,
            READY_TIMEOUT_S,
            "the lost replica has left the SyncStateSet",
        )
    try:
        groups.forget_lease()
        value = f"{REPLACE_REPLICA}={LOST}.{claims[CLAIM]}"
        cluster.kubectl("annotate", "brokergroup", "orders", value, place)
        whole = ready(groups, 3, "quorum")

        def over() -> bool:
            found = resource(groups, "BrokerGroup", "orders")
            state = (found["status"].get("replacement") or {}).get("state")
            return state == "Replaced" and annotation(found, REPLACE_REPLICA) is None and whole()

        died = KilledOperators(groups, tmp_path).until(over)
    finally:
        cluster.kubectl("uncordon", node.name)
    assert [write for write in died if "/persistentvolumeclaims/" in write] == [
        write for write in died if write.startswith("DELETE") and write.endswith(f"/{CLAIM}")
    ]
    found = {name: uid(groups, "PersistentVolumeClaim", name) for name in claims}
    assert [name for name in claims if found[name] != claims[name]] == [CLAIM]
    assert received(groups, "orders", 2) == ["a", "b"]
