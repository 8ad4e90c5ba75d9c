"""Tests an operator that is killed after every single write of a creation, a scale-up and a deletion: the
next one continues from the cluster's state, and in the end each step was done once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.kubernetes.killed_operators import KilledOperators, ready, resource
from tests.kubernetes.messages import received, send
from tests.kubernetes.operator_process import Groups
from tests.kubernetes.testbed.cluster import Cluster

pytestmark = pytest.mark.soak

CONFIRM = "epochmq.io/confirm-deletion"


def repeated(died: list[str]) -> list[str]:
    """The objects that were written more than once, without Events, which have unique names, and statuses."""
    counts = Counter(one for one in died if one.startswith("PATCH") and not one.endswith("/status"))
    return [write for write, count in counts.items() if count > 1]


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
