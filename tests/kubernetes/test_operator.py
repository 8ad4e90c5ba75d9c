"""Tests groups on a real cluster: they are created, take messages, scale up, heal and are deleted, although
the operator is killed."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, Self

import pytest

from epochmq_operator.crd import definition
from epochmq_operator.manifests.kept_templates import mounted_config_maps, template_spec
from epochmq_operator.resources import KINDS
from tests.kubernetes.messages import everything, received, send
from tests.kubernetes.operator_process import (
    READY_TIMEOUT_S,
    Groups,
    define,
    operator,
    run_epochmq,
)
from tests.kubernetes.testbed.cluster import COMMAND_TIMEOUT_S, Cluster
from tests.kubernetes.testbed.processes import TestbedError

QUORUM = {"replicas": 1}
"""A small ControllerGroup for tests that are not about controllers."""


@pytest.mark.usefixtures("started")
def test_a_minimal_resource_becomes_ready_heals_and_then_nothing_is_written(groups: Groups) -> None:
    cluster, namespace = groups.cluster, groups.namespace
    groups.apply("BrokerGroup", "orders", {"replicas": 3})
    status = groups.ready("orders", 3)
    assert status["master"] in {f"orders-broker-{n}" for n in range(3)}
    assert sorted(status["syncStateSet"]) == [1, 2, 3]
    send(groups, "orders", ["a", "b", "c"])
    assert received(groups, "orders", 3) == ["a", "b", "c"]

    ids = groups.broker_ids("orders", 3)
    old = cluster.core.read_namespaced_pod(status["master"], namespace).metadata.uid
    cluster.kubectl("delete", "pod", status["master"], "--namespace", namespace, "--wait=false")

    def another() -> bool:
        now = groups.status("BrokerGroup", "orders")
        pod = cluster.core.read_namespaced_pod(status["master"], namespace)
        return pod.metadata.uid != old and now["phase"] == "Ready" and now["ready"] == "3/3"

    cluster.wait(another, timeout_s=READY_TIMEOUT_S, what="the group has healed")
    assert groups.broker_ids("orders", 3) == ids
    assert received(groups, "orders", 3) == ["a", "b", "c"]

    # A busy machine may starve a replica or the master, and the status then says so; but that ends.
    groups.settled(30)


@pytest.mark.soak
def test_the_next_operator_finishes_a_creation_killed_at_every_step(
    cluster: Cluster, groups: Groups, tmp_path: Path
) -> None:
    groups.apply("ControllerGroup", "quorum", QUORUM)
    groups.apply("BrokerGroup", "orders", {"replicas": 1, "controllerGroup": "quorum"})
    for number in range(1, 4):
        with operator(cluster, groups.namespace, tmp_path) as running:

            def written(least: int = number * 4) -> bool:
                return len(groups.writes()) >= least

            cluster.wait(written, timeout_s=READY_TIMEOUT_S, what=f"the operator wrote {number * 4} times")
            running.kill()
        groups.forget_lease()
    with operator(cluster, groups.namespace, tmp_path):
        groups.ready("orders", 1)
    groups.made_once()
    assert "statefulsets/orders-broker" in groups.made()


@pytest.mark.usefixtures("started")
def test_a_group_scales_up_and_keeps_its_messages(groups: Groups) -> None:
    groups.apply("ControllerGroup", "orders", QUORUM)
    groups.apply("BrokerGroup", "orders", {"replicas": 1})
    groups.ready("orders", 1)
    send(groups, "orders", ["a", "b"])
    groups.cluster.kubectl("scale", "brokergroup/orders", "--replicas=3", "--namespace", groups.namespace)
    status = groups.ready("orders", 3)
    assert len(status["syncStateSet"]) == 3
    assert status["plan"]["name"] == "scale-up"
    send(groups, "orders", ["c"])
    assert received(groups, "orders", 3) == ["a", "b", "c"]

    groups.cluster.kubectl("scale", "brokergroup/orders", "--replicas=1", "--namespace", groups.namespace)
    status = groups.ready("orders", 1)
    # Fewer copies of each message are a changed configuration, so the plan begins with an update.
    assert status["plan"]["name"] == "update"
    assert groups.get("StatefulSet", "orders-broker")["spec"]["replicas"] == 1
    send(groups, "orders", ["d"])
    assert received(groups, "orders", 4) == ["a", "b", "c", "d"]


@pytest.mark.usefixtures("started")
def test_statefulsets_that_were_scaled_by_hand_are_scaled_back(groups: Groups) -> None:
    cluster, place = groups.cluster, f"--namespace={groups.namespace}"
    groups.apply("ControllerGroup", "orders", QUORUM)
    groups.apply("BrokerGroup", "orders", {"replicas": 1, "controllerGroup": "orders"})
    groups.ready("orders", 1)
    send(groups, "orders", ["a"])
    names = ("orders-broker", "orders-controller")
    mounted = [mounted_config_maps(template_spec(groups.get("StatefulSet", name))) for name in names]
    configurations = [name for (name,) in mounted]
    configured = [groups.get("ConfigMap", name)["metadata"]["resourceVersion"] for name in configurations]
    accounts = [groups.get("ServiceAccount", name)["metadata"]["uid"] for name in names]
    for name, wrong in (("orders-controller", 0), ("orders-broker", 0), ("orders-broker", 3)):
        before = groups.get("StatefulSet", name)["metadata"]["generation"]
        cluster.kubectl("scale", f"statefulset/{name}", f"--replicas={wrong}", place)

        def reverted(name: str = name, generation: int = before + 2) -> bool:
            found = groups.get("StatefulSet", name)
            return found["spec"]["replicas"] == 1 and found["metadata"]["generation"] == generation

        cluster.wait(reverted, READY_TIMEOUT_S, f"{name} has one replica again")
    groups.ready("orders", 1)
    assert received(groups, "orders", 1) == ["a"]
    after = [groups.get("ConfigMap", name)["metadata"]["resourceVersion"] for name in configurations]
    assert after == configured
    assert [groups.get("ServiceAccount", name)["metadata"]["uid"] for name in names] == accounts
    events = ("get", "events", "--field-selector=reason=RevertingDrift", "--output=name", place)
    cluster.wait(lambda: cluster.kubectl(*events).strip(), what="the operator has reported it")


def test_definitions_that_are_installed_late_are_watched(groups: Groups, tmp_path: Path) -> None:
    cluster = groups.cluster
    names = [definition(kind)["metadata"]["name"] for kind in KINDS]
    cluster.kubectl("delete", "crd", *names, "--timeout=240s")
    try:
        with operator(cluster, groups.namespace, tmp_path) as running:
            waits = "definitions are not installed"
            cluster.wait(lambda: waits in running.log.read_text(), READY_TIMEOUT_S, "the operator waits")
            define(cluster)
            groups.apply("ControllerGroup", "quorum", {**QUORUM, "paused": True})
            groups.wait("ControllerGroup", "quorum", phase="Paused")
            assert not running.ended
    finally:
        define(cluster)


@pytest.mark.usefixtures("started")
def test_a_guarded_group_is_deleted_after_confirmation_and_its_data_is_reused(groups: Groups) -> None:
    cluster, place = groups.cluster, f"--namespace={groups.namespace}"
    spec = {"replicas": 1, "controllerGroup": "orders", "deletionGuard": True}
    groups.apply("ControllerGroup", "orders", QUORUM)
    groups.apply("BrokerGroup", "orders", spec)
    groups.ready("orders", 1)
    send(groups, "orders", ["a", "b"])
    ids = groups.broker_ids("orders", 1)

    cluster.kubectl("delete", "brokergroup", "orders", place, "--wait=false")
    groups.wait("BrokerGroup", "orders", phase="Deleting")
    send(groups, "orders", ["c"])  # the group keeps running
    confirmation = "epochmq.io/confirm-deletion=orders"
    cluster.kubectl("annotate", "brokergroup", "orders", confirmation, place)
    cluster.wait(lambda: not groups.get("BrokerGroup", "orders"), READY_TIMEOUT_S, "the group is gone")
    assert not groups.get("StatefulSet", "orders-broker")
    assert groups.get("PersistentVolumeClaim", "store-orders-broker-0")

    groups.apply("BrokerGroup", "orders", {**spec, "deletionGuard": False})
    groups.ready("orders", 1)
    assert groups.broker_ids("orders", 1) == ids
    assert received(groups, "orders", 3) == ["a", "b", "c"]


@pytest.mark.usefixtures("started")
def test_the_command_shows_and_controls_replicas_on_a_cluster(groups: Groups) -> None:
    cluster = groups.cluster
    groups.apply("ControllerGroup", "orders", QUORUM)
    groups.apply("BrokerGroup", "orders", {"replicas": 2, "controllerGroup": "orders"})
    groups.ready("orders", 2)
    there = ("--kubeconfig", str(cluster.kubeconfig), "--namespace", groups.namespace)

    def shown() -> dict[str, dict[str, Any]]:
        group = json.loads(run_epochmq("status", "-o", "json", *there))["brokerGroups"][0]
        return {one["pod"]: one for one in group["replicas"]}

    before = shown()
    follower = next(pod for pod, one in before.items() if one["role"] == "slave")
    other = next(pod for pod in before if pod != follower)
    run_epochmq("promote", f"orders/{follower}", "--timeout", "60", *there)
    groups.wait("BrokerGroup", "orders", master=follower)
    run_epochmq("fence", f"orders/{follower}", *there)
    cluster.wait(lambda: shown()[follower]["fenced"], what="fenced")
    run_epochmq("fence", f"orders/{follower}", "--off", *there)
    groups.ready("orders", 2)
    run_epochmq("drain", f"orders/{other}", "--timeout", "60", *there)
    cluster.wait(lambda: shown()[other]["drained"] and not shown()[other]["inSync"], what="drained")
    run_epochmq("drain", f"orders/{other}", "--off", *there)
    cluster.wait(lambda: all(one["ready"] and one["inSync"] for one in shown().values()), what="both in sync")


class Sender:
    """Sends messages from a pod, and records the acknowledged ones."""

    def __init__(self, groups: Groups, group: str, pod: str) -> None:
        self._groups, self._group, self._pod = groups, group, pod
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(COMMAND_TIMEOUT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            try:
                self._groups.cluster.execute(
                    self._groups.namespace,
                    self._pod,
                    *("epochmq", "produce", "kept", f"m{number}", "--timeout", "10"),
                    *("--nameserver", f"{self._group}-nameserver:9876"),
                    container="broker",
                )
            except TestbedError:
                continue  # it may or may not be stored
            self.acknowledged.append(f"m{number}")


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize(
    "trouble",
    ["killed process", pytest.param("stopped kubelet and killed process", marks=pytest.mark.soak)],
)
def test_no_acknowledged_message_is_lost_when_the_master_dies(groups: Groups, trouble: str) -> None:
    cluster, namespace = groups.cluster, groups.namespace
    groups.apply("ControllerGroup", "orders", QUORUM)
    groups.apply("BrokerGroup", "orders", {"replicas": 3, "controllerGroup": "orders"})
    status = groups.ready("orders", 3)
    master, epoch = status["master"], status["masterEpoch"]
    other = next(f"orders-broker-{n}" for n in range(3) if f"orders-broker-{n}" != master)
    node = cluster.node(cluster.core.read_namespaced_pod(master, namespace).spec.node_name)
    with Sender(groups, "orders", other) as sender:
        cluster.wait(lambda: len(sender.acknowledged) >= 3, READY_TIMEOUT_S, "messages are taken")
        if trouble.startswith("stopped"):
            node.stop_kubelet()
        try:
            cluster.kill_container(namespace, master, "broker")

            def another() -> bool:
                now = groups.status("BrokerGroup", "orders")
                return bool(now["masterEpoch"] > epoch and now["master"])

            cluster.wait(another, READY_TIMEOUT_S, "there is another master")
            taken = len(sender.acknowledged)
            cluster.wait(lambda: len(sender.acknowledged) > taken, READY_TIMEOUT_S, "it takes messages")
        finally:
            if trouble.startswith("stopped"):
                node.start_kubelet()
    groups.ready("orders", 3)
    everything(groups, "orders", sender.acknowledged)
