"""Injects faults into a group's pods and waits until the group has recovered."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.kubernetes.operator_process import READY_TIMEOUT_S, Groups
from tests.kubernetes.testbed.node import Node
from tests.kubernetes.traffic import Traffic

IsOver = Callable[[], bool]


@dataclass(frozen=True)
class PodFaultRecord:
    """One fault: how long nothing was acknowledged, and after what time the group had recovered by itself."""

    what: str
    silence_s: float
    healed_s: float

    def __str__(self) -> str:
        silence = f"nothing acknowledged for {self.silence_s:.2f} s"
        return f"{self.what}: {silence}, recovered after {self.healed_s:.1f} s"


class PodFaults:
    """Faults of a group with a producer. Each method returns when all pods are ready, one replica is the
    master with all of them in sync, and messages are acknowledged."""

    def __init__(self, traffic: Traffic, replicas: int = 3) -> None:
        self.traffic = traffic
        self.groups: Groups = traffic.groups
        self.brokers = [f"{traffic.group}-broker-{n}" for n in range(replicas)]

    @property
    def _cluster(self) -> Any:
        return self.groups.cluster

    def pods(self) -> list[Any]:
        """All pods of the namespace that the operator manages."""
        label = "app.kubernetes.io/managed-by=epochmq-operator"
        return list(self._cluster.core.list_namespaced_pod(self.groups.namespace, label_selector=label).items)

    def pod(self, name: str) -> Any:
        """One of them."""
        return self._cluster.core.read_namespaced_pod(name, self.groups.namespace)

    def ids(self) -> dict[str, int]:
        """The brokers' ids."""
        return {name: self.groups.state(name)["brokerId"] for name in self.brokers}

    def leader(self, controllers: int = 3) -> str:
        """The pod of the leading controller."""
        names = [f"{self.traffic.group}-controller-{n}" for n in range(controllers)]
        return next(name for name in names if self.groups.state(name).get("role") == "leader")

    def master(self) -> str:
        """The pod of the master."""
        return self.traffic.master()

    # Faults

    def delete(self, name: str) -> PodFaultRecord:
        """Deletes a pod as `kubectl delete pod` does."""
        before = self.pod(name).metadata.uid

        def act() -> IsOver:
            self._cluster.kubectl(
                "delete", "pod", name, f"--namespace={self.groups.namespace}", "--wait=false"
            )
            return lambda: self.pod(name).metadata.uid != before

        return self._during(f"{name} deleted", act)

    def kill(self, name: str, container: str) -> PodFaultRecord:
        """Kills the first process of a container by SIGKILL."""
        before = _restarts(self.pod(name), container)

        def act() -> IsOver:
            self._cluster.kill_container(self.groups.namespace, name, container)
            return lambda: _restarts(self.pod(name), container) > before

        return self._during(f"{name} {container} killed", act)

    def stop_kubelet(self, name: str) -> PodFaultRecord:
        """Stops the kubelet of a broker's node and kills the broker. The broker is not restarted before the
        kubelet is back, which is after another broker takes messages."""
        node: Node = self._cluster.node(self.pod(name).spec.node_name)
        before = _restarts(self.pod(name), "broker")

        def act() -> IsOver:
            node.stop_kubelet()
            try:
                self._cluster.kill_container(self.groups.namespace, name, "broker")
                self.traffic.wait_acks()
            finally:
                node.start_kubelet()
            return lambda: _restarts(self.pod(name), "broker") > before

        return self._during(f"kubelet of {node.name} stopped and {name} killed", act)

    def cut_power(self, node: Node) -> PodFaultRecord:
        """Kills everything on a node at once, and then starts it again."""
        before = {pod.metadata.name: _restarts(pod) for pod in self.pods() if pod.spec.node_name == node.name}

        def act() -> IsOver:
            node.power_off()
            node.power_on()
            return lambda: all(_restarts(self.pod(name)) > count for name, count in before.items())

        return self._during(f"power of {node.name} cut, with {len(before)} of its pods", act)

    def _during(self, what: str, act: Callable[[], IsOver]) -> PodFaultRecord:
        self.traffic.wait_acks()
        began_s = time.monotonic()
        is_over = act()
        self._cluster.wait(is_over, READY_TIMEOUT_S, f"{what}: it is back")
        self._cluster.wait(self.whole, READY_TIMEOUT_S, f"{what}: the group is whole")
        healed_s = time.monotonic()
        self.traffic.wait_acks()
        silence_s = self.traffic.silence_s(began_s, time.monotonic())
        record = PodFaultRecord(what, silence_s, healed_s - began_s)
        print(record, flush=True)
        return record

    # Replica control

    def promote(self, name: str) -> None:
        """Makes this replica the master, and waits until the group has recovered."""
        call = ("epochmq", "admin-call", "promote")
        self._cluster.execute(self.groups.namespace, name, *call, container="broker")
        what = f"{name} is the master"
        self._cluster.wait(lambda: self.groups.state(name).get("role") == "master", what=what)
        self._cluster.wait(self.whole, READY_TIMEOUT_S, f"{what} of a whole group")

    def whole(self) -> bool:
        """Whether all pods are ready, and one replica is the master with all in sync."""
        for pod in self.pods():
            conditions = {one.type: one.status for one in pod.status.conditions or []}
            if pod.metadata.deletion_timestamp or conditions.get("Ready") != "True":
                return False
        states = [self.groups.state(name) for name in self.brokers]
        masters = [one for one in states if one.get("role") == "master"]
        return (
            len(masters) == 1
            and len(masters[0]["syncStateSet"]) == len(self.brokers)
            and all(one.get("ready") for one in states)
        )


def _restarts(pod: Any, container: str | None = None) -> int:
    statuses = pod.status.container_statuses or []
    return sum(one.restart_count for one in statuses if container in (None, one.name))
