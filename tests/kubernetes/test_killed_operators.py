"""Tests an operator that is killed after every single write of a creation, a scale-up and a deletion: the
next one continues from the cluster's state, and in the end each step was done once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiException

from tests.kubernetes.messages import received, send
from tests.kubernetes.operator_process import READY_TIMEOUT_S, Groups, operator
from tests.kubernetes.testbed.cluster import Cluster
from tests.kubernetes.write_limit_proxy import write_limit_proxy

pytestmark = pytest.mark.soak

DEATHS_MAX = 150
CONFIRM = "epochmq.io/confirm-deletion"


class KilledOperators:
    """A sequence of operators of a namespace. Each is killed after its first write other than to a lease."""

    def __init__(self, groups: Groups, folder: Path) -> None:
        self.groups = groups
        self.died: list[str] = []
        """The last write of each operator."""
        self._folder = folder

    def until(self, over: Callable[[], bool]) -> list[str]:
        """Runs operators until the condition holds; returns their writes."""
        before = len(self.died)
        while not over():
            assert len(self.died) - before < DEATHS_MAX, self.died
            self._live_and_die(over)
        died = self.died[before:]
        print(f"{len(died)} deaths: {dict(Counter(map(_kind, died)))}", flush=True)
        return died

    def _live_and_die(self, over: Callable[[], bool]) -> None:
        cluster, place = self.groups.cluster, self.groups.namespace
        with (
            write_limit_proxy(cluster.kubeconfig, self._folder, 1) as (way, kubeconfig),
            operator(cluster, place, self._folder, kubeconfig=kubeconfig) as victim,
        ):
            way.on_limit = victim.kill
            cluster.wait(lambda: victim.ended or over(), READY_TIMEOUT_S, f"a write after {self.died[-3:]}")
        if way.last:
            self.died.append(way.last)
        self.groups.forget_lease()

    def died_each_time(self) -> None:
        """Fails if an operator wrote more than once."""
        writes = self.groups.writes()
        assert len(writes) == len(self.died), [f"{one['verb']} {one['requestURI']}" for one in writes]


def repeated(died: list[str]) -> list[str]:
    """The objects that were written more than once, without Events, which have unique names, and statuses."""
    counts = Counter(one for one in died if one.startswith("PATCH") and not one.endswith("/status"))
    return [write for write, count in counts.items() if count > 1]


def _kind(write: str) -> str:
    """The kind of write: the method, the plural of the resource, and the subresource."""
    method, _, path = write.partition(" ")
    parts = path.partition("/namespaces/")[2].split("/")
    return f"{method} {'/'.join((*parts[1:2], *parts[3:]))}"


def resource(groups: Groups, kind: str, name: str) -> dict[str, Any]:
    """A group, {} if it does not exist; by the client library, without kubectl."""
    ask = groups.cluster.custom.get_namespaced_custom_object
    try:
        found: dict[str, Any] = ask("epochmq.io", "v1alpha1", groups.namespace, f"{kind.lower()}s", name)
    except ApiException as error:
        if error.status != 404:
            raise
        return {}
    return found


def ready(groups: Groups, count: int, controllers: str) -> Callable[[], bool]:
    """Whether the group `orders` has this number of replicas, and it and its controllers are ready with
    finished plans."""

    def done(found: dict[str, Any]) -> bool:
        status = found.get("status") or {}
        return (
            status.get("observedGeneration") == found["metadata"]["generation"]
            and status.get("phase") == "Ready"
            and bool((status.get("plan") or {}).get("finished"))
        )

    def both() -> bool:
        group = resource(groups, "BrokerGroup", "orders")
        quorum = resource(groups, "ControllerGroup", controllers)
        return bool(
            group
            and quorum
            and done(group)
            and done(quorum)
            and group["status"].get("ready") == f"{count}/{count}"
        )

    return both


def delete(groups: Groups) -> None:
    """kubectl delete, confirmed."""
    place = f"--namespace={groups.namespace}"
    groups.cluster.kubectl("delete", "brokergroup", "orders", place, "--wait=false")
    groups.cluster.kubectl("annotate", "brokergroup", "orders", f"{CONFIRM}=orders", place)


def pods_made(groups: Groups) -> dict[str, int]:
    """How often each broker's pod was created, by the API server's audit log."""
    return dict(
        Counter(
            one["objectRef"]["name"]
            for one in groups.cluster.writes()
            if one["verb"] == "create"
            and one["objectRef"].get("resource") == "pods"
            and one["objectRef"].get("namespace") == groups.namespace
            and "subresource" not in one["objectRef"]
            and str(one["objectRef"].get("name", "")).startswith("orders-broker-")
            and one.get("responseStatus", {}).get("code") == 201
        )
    )


def deleted(groups: Groups) -> list[str]:
    """The objects that the operators deleted, once for each time."""
    return sorted(
        f"{one['objectRef']['resource']}/{one['objectRef']['name']}"
        for one in groups.writes()
        if one["verb"] == "delete"
    )


@pytest.fixture
def killed_operators(groups: Groups, tmp_path: Path) -> KilledOperators:
    """Operators of the test's namespace."""
    return KilledOperators(groups, tmp_path)


def test_each_step_of_a_scale_up_and_a_deletion_is_done_once(
    cluster: Cluster, groups: Groups, killed_operators: KilledOperators
) -> None:
    groups.apply("ControllerGroup", "quorum", {"replicas": 1})
    spec = {"controllerGroup": "quorum", "deletionGuard": True}
    groups.apply("BrokerGroup", "orders", {**spec, "replicas": 1})
    died = killed_operators.until(ready(groups, 1, "quorum"))
    assert repeated(died) == []
    groups.made_once()
    assert groups.get("StatefulSet", "orders-broker")["metadata"]["generation"] == 1
    send(groups, "orders", ["a", "b"])

    groups.apply("BrokerGroup", "orders", {**spec, "replicas": 3})
    died = killed_operators.until(ready(groups, 3, "quorum"))
    assert sum(one.endswith("/statefulsets/orders-broker") for one in died) == 2, "a replica at a time"
    assert groups.get("StatefulSet", "orders-broker")["metadata"]["generation"] == 3
    # The earlier replicas restart, because three replicas keep two copies of a message.
    restarted = ["orders-broker-0", "orders-broker-1"]
    made = {f"orders-broker-{n}": 1 for n in range(3)}
    assert pods_made(groups) == made | dict.fromkeys(restarted, 2)
    assert len(groups.status("BrokerGroup", "orders")["syncStateSet"]) == 3
    groups.made_once()
    send(groups, "orders", ["c"])
    assert received(groups, "orders", 3) == ["a", "b", "c"]
    configuration, *pods = deleted(groups)
    assert configuration.startswith("configmaps/orders-broker-")
    assert pods == [f"pods/{name}" for name in restarted]

    delete(groups)
    killed_operators.until(
        lambda: (
            not resource(groups, "BrokerGroup", "orders")
            and not resource(groups, "ControllerGroup", "quorum")["status"].get("brokerGroups")
        )
    )
    assert deleted(groups) == [configuration, *pods, "statefulsets/orders-broker"]
    groups.made_once()
    killed_operators.died_each_time()
    assert groups.get("PersistentVolumeClaim", "store-orders-broker-2")


def test_each_step_for_a_group_with_its_own_controllers_is_done_once(
    cluster: Cluster, groups: Groups, killed_operators: KilledOperators
) -> None:
    groups.apply("BrokerGroup", "orders", {"replicas": 1, "deletionGuard": True})
    died = killed_operators.until(ready(groups, 1, "orders"))
    assert any(one.endswith("/controllergroups/orders") for one in died)
    assert repeated(died) == []
    groups.made_once()
    delete(groups)
    killed_operators.until(lambda: not resource(groups, "BrokerGroup", "orders"))
    assert deleted(groups) == ["controllergroups/orders", "statefulsets/orders-broker"]
    groups.made_once()
    killed_operators.died_each_time()
    cluster.wait(lambda: not groups.get("StatefulSet", "orders-controller"), 120, "its controllers are gone")
