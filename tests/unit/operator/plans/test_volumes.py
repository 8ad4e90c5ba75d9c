"""Tests that volumes grow online. The manifests are those of a real cluster."""

from __future__ import annotations

from typing import Any

import pytest

from epochmq_operator.plans.objects import Ref
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi
from tests.unit.operator.plans.updated_groups import BROKERS, CONTROLLERS, ORDERS, ready_group, restarts, run

LARGER = {"replicas": 3, "storage": {"size": "20Gi"}}
QUORUM = Ref("ControllerGroup", NAMESPACE, "quorum")


def sizes(api: FakeApi, volume: str = "store-orders-broker") -> list[str]:
    """The sizes that the claims of brokers request, by ordinal."""
    claims = sorted(ref for ref in api.objects if ref.name.startswith(f"{volume}-"))
    return [api.objects[claim]["spec"]["resources"]["requests"]["storage"] for claim in claims]


def everything_but_claims(api: FakeApi) -> dict[Ref, str]:
    """The uids of StatefulSets and pods."""
    return {ref: api.uid(ref) for ref in api.objects if ref.kind in ("StatefulSet", "Pod")}


def test_volumes_grow_without_a_restart_and_the_statefulset_stays() -> None:
    api = ready_group()
    before = everything_but_claims(api)
    api.put("BrokerGroup", "orders", LARGER)
    run(api, 10)
    assert sizes(api) == ["20Gi"] * 3
    waits = api.condition(ORDERS, "Progressing")
    assert (waits["status"], waits["reason"]) == ("True", "AwaitingVolumes")
    assert "store-orders-broker-0" in waits["message"]
    assert api.condition(ORDERS, "Ready")["reason"] == "AwaitingVolumes"
    assert api.status(ORDERS)["ready"] == "3/3"
    api.grow_volumes()
    api.settle()
    status = api.status(ORDERS)
    assert (status["phase"], status["plan"]["name"]) == ("Ready", "expand-volumes")
    assert (everything_but_claims(api), restarts(api)) == (before, [])
    assert api.reasons().count("ExpandingVolume") == 3
    template = api.objects[BROKERS]["spec"]["volumeClaimTemplates"][0]
    assert template["spec"]["resources"]["requests"]["storage"] == "10Gi"


def test_the_claims_of_later_and_of_removed_replicas_grow_too() -> None:
    api = ready_group()
    api.put("BrokerGroup", "orders", {"replicas": 2})
    api.settle()
    api.put("BrokerGroup", "orders", {**LARGER, "replicas": 2})
    run(api, 10)
    assert sizes(api) == ["20Gi"] * 3
    api.grow_volumes()
    api.put("BrokerGroup", "orders", {**LARGER, "replicas": 4})
    run(api, 40)
    assert sizes(api) == ["20Gi"] * 4
    api.grow_volumes()
    api.settle()
    assert api.status(ORDERS)["ready"] == "4/4"


def test_the_volumes_of_controllers_grow() -> None:
    api = ready_group()
    api.put("ControllerGroup", "quorum", {"replicas": 1})
    api.settle()
    before = api.uid(CONTROLLERS)
    api.put("ControllerGroup", "quorum", {"replicas": 1, "storage": {"size": "15Gi"}})
    run(api, 5)
    assert sizes(api, "data-quorum-controller") == ["15Gi"]
    assert sizes(api, "data-orders-controller") == ["10Gi"] * 3
    api.grow_volumes()
    api.settle()
    assert (api.status(QUORUM)["phase"], api.uid(CONTROLLERS)) == ("Ready", before)


def test_a_claim_that_a_person_made_larger_stays() -> None:
    api = ready_group()
    claim = Ref("PersistentVolumeClaim", NAMESPACE, "store-orders-broker-1")
    api.objects[claim]["spec"]["resources"]["requests"]["storage"] = "30Gi"
    api.put("BrokerGroup", "orders", LARGER)
    run(api, 10)
    assert sizes(api) == ["20Gi", "30Gi", "20Gi"]


def test_the_condition_of_a_volume_that_does_not_grow_is_shown() -> None:
    api = ready_group()
    api.put("BrokerGroup", "orders", LARGER)
    run(api, 10)
    api.grow_volumes()
    claim = api.objects[Ref("PersistentVolumeClaim", NAMESPACE, "store-orders-broker-1")]
    failed: dict[str, Any] = {"type": "ControllerResizeError", "status": "True", "message": "quota exceeded"}
    claim["status"] = {"capacity": {"storage": "10Gi"}, "conditions": [failed]}
    run(api, 3)
    message = api.condition(ORDERS, "Progressing")["message"]
    assert message.endswith("store-orders-broker-1 (ControllerResizeError: quota exceeded)")


@pytest.mark.parametrize("full", [(2,), (0,), (0, 1, 2)])
def test_the_volumes_of_replicas_grow_that_are_not_ready_because_they_are_full(full: tuple[int, ...]) -> None:
    api = ready_group()
    for ordinal in full:
        api.unready.add(f"orders-broker-{ordinal}")
        api.not_ready[f"orders-broker-{ordinal}"] = ["the disk is full, 96% used"]
    run(api, 5)
    api.put("BrokerGroup", "orders", LARGER)
    run(api, 5)
    assert sizes(api) == ["20Gi"] * 3
    assert api.status(ORDERS)["plan"]["step"] == "ready"
    api.unready.clear()
    api.not_ready.clear()
    api.grow_volumes()
    api.settle()
    assert (api.status(ORDERS)["phase"], restarts(api)) == ("Ready", [])


def test_the_volumes_of_controllers_grow_that_are_not_ready() -> None:
    api = ready_group()
    api.put("ControllerGroup", "quorum", {"replicas": 3})
    api.settle()
    api.unready.add("quorum-controller-1")
    run(api, 5)
    api.put("ControllerGroup", "quorum", {"replicas": 3, "storage": {"size": "20Gi"}})
    run(api, 5)
    assert sizes(api, "data-quorum-controller") == ["20Gi"] * 3
    assert api.status(QUORUM)["plan"]["step"] == "ready"


def test_the_volume_of_a_replica_grows_that_cannot_resume() -> None:
    api = ready_group()
    api.put("BrokerGroup", "orders", {"replicas": 3, "hibernate": True})
    api.settle()
    full = "orders-broker-1"
    api.unready.add(full)
    api.put("BrokerGroup", "orders", {"replicas": 3})
    run(api, 10)
    assert api.status(ORDERS)["plan"]["step"] == f"started-{full}"
    api.put("BrokerGroup", "orders", LARGER)
    run(api, 5)
    assert sizes(api) == ["20Gi"] * 3
    assert api.status(ORDERS)["plan"]["step"] == f"started-{full}"


def test_a_rejected_size_holds_no_other_step_up() -> None:
    """The API server rejects a larger size if the StorageClass does not let volumes grow."""
    api = ready_group()
    api.fixed_volumes = True
    api.put("BrokerGroup", "orders", {**LARGER, "replicas": 4})
    api.remove(Ref("Pod", NAMESPACE, "orders-broker-1"))
    run(api, 20)
    assert api.status(ORDERS)["ready"] == "4/4"
    assert "must support resize" in api.condition(ORDERS, "Degraded")["message"]
    assert sizes(api) == ["10Gi"] * 4
    api.fixed_volumes = False
    run(api, 10)
    assert sizes(api) == ["20Gi"] * 4
    assert api.condition(ORDERS, "Degraded")["status"] == "False"


def growth(stop: int | None) -> tuple[FakeApi, int]:
    """A group whose volumes an operator grows that is killed after `stop` effects; the number of effects."""
    api = ready_group()
    api.put("BrokerGroup", "orders", LARGER)
    total = 0
    for _ in range(10):
        api.tick()
        done = api.operate(limit=stop)
        stop = None if stop is None or done >= stop else stop - done
        total += done
    return api, total


@pytest.mark.long
@pytest.mark.parametrize("stop", range(growth(None)[1]))
def test_an_operator_killed_after_any_effect_of_a_growth_finishes_it(stop: int) -> None:
    api, _ = growth(stop)
    run(api, 5)
    api.grow_volumes()
    api.settle()
    claims = [ref for ref in api.applied if ref.kind == "PersistentVolumeClaim"]
    assert [len(api.applied[ref]) for ref in claims] == [1, 1, 1]
    assert (sizes(api), restarts(api), api.status(ORDERS)["phase"]) == (["20Gi"] * 3, [], "Ready")
