"""Tests changes of an existing group: it is scaled up, healed, repaired, paused and deleted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epochmq_operator.plans.effects import PatchStatus
from epochmq_operator.plans.objects import Ref
from epochmq_operator.plans.observed_state import ObservedState
from epochmq_operator.plans.reconciliation import reconcile
from tests.unit.operator.plans.fake_api import NAMESPACE, RENDERER, FakeApi

ORDERS = Ref("BrokerGroup", NAMESPACE, "orders")
OWN = Ref("ControllerGroup", NAMESPACE, "orders")
BROKERS = Ref("StatefulSet", NAMESPACE, "orders-broker")
CONTROLLERS = Ref("StatefulSet", NAMESPACE, "orders-controller")


def sizes_of_brokers(api: FakeApi, rounds: int = 40) -> list[int]:
    """The sizes that the brokers' StatefulSet gets, in order. AssertionError if a size changes before all
    replicas of the former size are ready."""
    sizes = []
    for _ in range(rounds):
        api.tick()
        before = api.objects[BROKERS]["spec"]["replicas"]
        api.operate()
        after = api.objects[BROKERS]["spec"]["replicas"]
        if after != before:
            assert len(api.members(api.objects[ORDERS])) == before
            sizes.append(after)
    return sizes


@pytest.fixture
def api() -> FakeApi:
    """A cluster with a ready group of three replicas."""
    made = FakeApi()
    made.put("BrokerGroup", "orders", {"replicas": 3})
    made.settle()
    made.writes = 0
    return made


def test_replicas_are_added_one_by_one_when_the_others_are_in_sync() -> None:
    api = FakeApi()
    api.put("BrokerGroup", "orders", {"replicas": 1})
    api.settle()
    api.put("BrokerGroup", "orders", {"replicas": 5})
    assert sizes_of_brokers(api) == [2, 3, 4, 5]
    assert (api.status(ORDERS)["ready"], api.status(ORDERS)["plan"]["name"]) == ("5/5", "scale-up")


def an_unready_replica(api: FakeApi) -> None:
    api.unready = {"orders-broker-1"}


def a_slow_replica(api: FakeApi) -> None:
    api.behind = {"orders-broker-1"}


def too_few_controllers(api: FakeApi) -> None:
    api.unready = {"orders-controller-0", "orders-controller-1"}


def silent_sidecars(api: FakeApi) -> None:
    api.silent = True


@pytest.mark.parametrize("replicas", [1, 5])
@pytest.mark.parametrize(
    "trouble", [an_unready_replica, a_slow_replica, too_few_controllers, silent_sidecars]
)
def test_an_unhealthy_group_does_not_scale(
    api: FakeApi, trouble: Callable[[FakeApi], None], replicas: int
) -> None:
    trouble(api)
    api.put("BrokerGroup", "orders", {"replicas": replicas})
    for _ in range(20):
        api.tick()
        api.operate()
    assert api.objects[BROKERS]["spec"]["replicas"] == 3
    assert api.condition(ORDERS, "Progressing")["status"] == "True"
    api.unready, api.behind, api.silent = set(), set(), False
    api.settle()
    status = api.status(ORDERS)
    assert (status["ready"], status["phase"]) == (f"{replicas}/{replicas}", "Ready")


def test_replicas_are_removed_one_by_one_and_their_volumes_stay(api: FakeApi) -> None:
    api.put("BrokerGroup", "orders", {"replicas": 5})
    api.settle()
    api.put("BrokerGroup", "orders", {"replicas": 2})
    assert sizes_of_brokers(api) == [4, 3, 2]
    assert (api.status(ORDERS)["syncStateSet"], api.status(ORDERS)["plan"]["name"]) == ([1, 2], "scale-down")
    claims = [ref.name for ref in api.objects if ref.name.startswith("store-orders-broker")]
    assert len(claims) == 5
    api.put("BrokerGroup", "orders", {"replicas": 5})
    api.settle()
    assert api.status(ORDERS)["ready"] == "5/5"


@pytest.mark.parametrize("kind", ["ConfigMap", "Service", "StatefulSet"])
def test_removed_and_changed_objects_are_restored_once(api: FakeApi, kind: str) -> None:
    ref = Ref(kind, NAMESPACE, "orders-broker")
    was = api.objects[ref].get("data") or api.objects[ref]["spec"]
    api.remove(ref)
    api.settle()
    changed = "data" if kind == "ConfigMap" else "spec"
    assert api.objects[ref][changed] == was
    if kind != "StatefulSet":
        api.objects[ref][changed] = {}
        api.settle()
        assert api.objects[ref][changed] == was
    assert api.status(ORDERS)["phase"] == "Ready"
    assert api.status(ORDERS)["plan"]["name"] == "repair"
    assert "RepairDone" in api.reasons()


def test_a_deleted_pod_is_reported_until_it_is_back(api: FakeApi) -> None:
    api.remove(Ref("Pod", NAMESPACE, "orders-broker-0"))
    api.operate()
    assert api.condition(ORDERS, "Degraded")["status"] == "True"
    assert "orders-broker-0" in api.condition(ORDERS, "Ready")["message"]
    assert api.status(ORDERS)["phase"] == "Degraded"
    api.settle()
    status = api.status(ORDERS)
    assert (status["phase"], status["master"], status["masterEpoch"]) == ("Ready", "orders-broker-1", 2)
    assert status["plan"]["name"] == "heal"
    assert "HealDone" in api.reasons()


def test_pods_of_a_bad_template_are_replaced_after_it_is_fixed() -> None:
    api = FakeApi()
    api.put("BrokerGroup", "orders", {"replicas": 3, "config": {"image": "bad"}})
    for _ in range(20):
        api.tick()
        api.operate()
    assert "does not run: ErrImagePull" in api.condition(ORDERS, "Ready")["message"]
    api.put("BrokerGroup", "orders", {"replicas": 3, "config": {"image": "good"}})
    api.settle()
    assert api.status(ORDERS)["phase"] == "Ready"
    assert sorted(api.deleted.items()) == [(f"Pod orders-broker-{n}", 1) for n in range(3)]
    assert api.reasons().count("RestartingPod") == 3


@pytest.mark.parametrize("how", ["spec", "annotation"])
def test_a_paused_group_is_observed_and_not_changed(api: FakeApi, how: str) -> None:
    if how == "annotation":
        api.annotate(ORDERS, paused="true")
    else:
        api.objects[ORDERS]["spec"] = {"replicas": 3, "paused": True}
    api.remove(Ref("Service", NAMESPACE, "orders-broker"))
    api.unready = {"orders-broker-2"}
    api.settle()
    assert Ref("Service", NAMESPACE, "orders-broker") not in api.objects
    assert api.condition(ORDERS, "Paused")["status"] == "True"
    assert (api.status(ORDERS)["phase"], api.status(ORDERS)["ready"]) == ("Paused", "2/3")
    api.annotate(ORDERS, paused="false")
    api.objects[ORDERS]["spec"] = {"replicas": 3}
    api.unready = set()
    api.settle()
    assert Ref("Service", NAMESPACE, "orders-broker") in api.objects
    assert api.condition(ORDERS, "Paused")["status"] == "False"


def test_an_unguarded_group_needs_no_operator_for_its_deletion(api: FakeApi) -> None:
    assert not api.objects[ORDERS]["metadata"].get("finalizers")
    api.remove(ORDERS)
    for _ in range(5):
        api.tick()  # the garbage collector alone
    assert {ref.kind for ref in api.objects} == {"PersistentVolumeClaim"}


def test_a_guarded_group_runs_until_its_deletion_is_confirmed() -> None:
    api = FakeApi()
    api.put("BrokerGroup", "orders", {"replicas": 3, "deletionGuard": True})
    api.settle()
    api.remove(ORDERS)
    api.settle()
    assert len(api.pods()) == 6
    assert api.status(ORDERS)["phase"] == "Deleting"
    assert api.status(ORDERS)["observedGeneration"] == api.objects[ORDERS]["metadata"]["generation"]
    message = api.condition(ORDERS, "Progressing")["message"]
    assert "kubectl annotate brokergroup orders epochmq.io/confirm-deletion=orders" in message
    api.annotate(ORDERS, confirm_deletion="another")
    api.settle()
    assert len(api.pods()) == 6
    api.annotate(ORDERS, confirm_deletion="orders")
    api.settle()
    assert {ref.kind for ref in api.objects} == {"PersistentVolumeClaim"}


def _deletion(limit: int | None) -> tuple[FakeApi, int]:
    api = FakeApi()
    api.put("BrokerGroup", "orders", {"replicas": 3, "deletionGuard": True})
    api.settle()
    api.annotate(ORDERS, confirm_deletion="orders")
    api.remove(ORDERS)
    total = 0
    for _ in range(12):
        api.tick()
        done = api.operate(limit=limit)
        limit = None if limit is None or done >= limit else limit - done
        total += done
    return api, total


@pytest.mark.parametrize("stop", range(_deletion(None)[1]))
def test_an_operator_killed_after_any_effect_of_a_deletion_finishes_once(stop: int) -> None:
    api, _ = _deletion(stop)
    assert {ref.kind for ref in api.objects} == {"PersistentVolumeClaim"}
    assert api.deleted == {"StatefulSet orders-broker": 1, "ControllerGroup orders": 1}


def test_brokers_are_deleted_before_their_controllers() -> None:
    api = FakeApi()
    api.put("BrokerGroup", "orders", {"replicas": 3, "deletionGuard": True})
    api.settle()
    api.annotate(ORDERS, confirm_deletion="orders")
    api.remove(ORDERS)
    seen = []
    for _ in range(12):
        api.operate()
        seen.append((BROKERS in api.objects, CONTROLLERS in api.objects))
        api.tick()
    assert (False, True) in seen
    assert (True, False) not in seen


def test_the_guard_can_be_removed_before_and_during_a_deletion(api: FakeApi) -> None:
    for off in (lambda: None, lambda: api.remove(ORDERS)):
        api.put("BrokerGroup", "orders", {"replicas": 3, "deletionGuard": True})
        api.settle()
        off()
        api.put(
            "BrokerGroup", "orders", {"replicas": 3, "deletionGuard": False}
        ) if ORDERS in api.objects else None
        api.objects[ORDERS]["metadata"].setdefault("finalizers", [])
        api.settle()
    assert not api.objects.get(ORDERS, {}).get("metadata", {}).get("finalizers")


def test_a_new_group_of_the_same_name_uses_the_retained_volumes(api: FakeApi) -> None:
    claims = {ref: found["metadata"]["uid"] for ref, found in api.objects.items() if "Claim" in ref.kind}
    api.remove(ORDERS)
    api.put("BrokerGroup", "orders", {"replicas": 3})  # while objects of the deleted group still exist
    api.operate()
    assert "belongs to a deleted group" in api.condition(ORDERS, "Progressing")["message"]
    api.settle()
    assert api.status(ORDERS)["phase"] == "Ready"
    assert claims == {
        ref: found["metadata"]["uid"] for ref, found in api.objects.items() if "Claim" in ref.kind
    }


def test_volumes_of_more_replicas_block_a_smaller_group(api: FakeApi) -> None:
    api.remove(ORDERS)
    for _ in range(5):
        api.tick()
    api.put("BrokerGroup", "orders", {"replicas": 2})
    api.settle()
    assert "orders-broker-0" not in api.pods()
    assert "set spec.replicas to 3" in api.condition(ORDERS, "Degraded")["message"]
    api.put("BrokerGroup", "orders", {"replicas": 3})
    api.settle()
    assert api.status(ORDERS)["phase"] == "Ready"


def test_volumes_of_another_number_of_controllers_block_a_group(api: FakeApi) -> None:
    api.remove(ORDERS)
    for _ in range(5):
        api.tick()
    api.put("ControllerGroup", "orders", {"replicas": 1})
    api.settle()
    assert "orders-controller-0" not in api.pods()
    assert "set spec.replicas to 3" in api.condition(OWN, "Degraded")["message"]


def test_an_object_without_its_owner_reference_is_restored(api: FakeApi) -> None:
    ref = Ref("Service", NAMESPACE, "orders-broker")
    api.objects[ref]["metadata"]["ownerReferences"] = []
    api.settle()
    assert api.objects[ref]["metadata"]["ownerReferences"][0]["uid"] == api.uid(ORDERS)


def test_transition_times_change_only_with_the_status(api: FakeApi) -> None:
    before = {one["type"]: one["lastTransitionTime"] for one in api.status(ORDERS)["conditions"]}
    api.unready = {"orders-broker-2"}
    api.tick()
    api.settle()
    after = {one["type"]: one["lastTransitionTime"] for one in api.status(ORDERS)["conditions"]}
    assert {kind for kind in before if before[kind] != after[kind]} == {
        "Ready",
        "InSync",
        "Progressing",
        "Degraded",
        "Reconciling",
    }


def test_changes_of_immutable_fields_are_reported_and_block_nothing_else(api: FakeApi) -> None:
    kept = 'spec.selector.matchLabels.app: "mine", should be "orders-broker"'
    api.objects[Ref("StatefulSet", NAMESPACE, "orders-broker")]["spec"]["selector"] = {
        "matchLabels": {"app": "mine"}
    }
    api.remove(Ref("Service", NAMESPACE, "orders-broker"))
    api.settle()
    assert Ref("Service", NAMESPACE, "orders-broker") in api.objects
    blocked = api.condition(ORDERS, "Progressing")
    assert (blocked["reason"], kept in blocked["message"]) == ("ChangeBlocked", True)
    assert api.condition(ORDERS, "Ready")["reason"] == "ChangeBlocked"
    assert api.status(ORDERS)["ready"] == "3/3"


def test_only_surplus_objects_of_the_group_are_deleted(api: FakeApi) -> None:
    name = "orders-broker-0"
    theirs = {"kind": "Service", "metadata": {"name": "orders-broker-1", "namespace": NAMESPACE}}
    api.put_owned("Service", name, ORDERS)
    api._store(Ref("Service", NAMESPACE, "orders-broker-1"), theirs)
    api.settle()
    services = sorted(ref.name for ref in api.objects if ref.kind == "Service")
    assert services == ["orders-broker", "orders-broker-1", "orders-controller"]
    assert api.deleted == {f"Service {name}": 1}


def test_a_rejection_by_the_api_server_is_reported(api: FakeApi) -> None:
    observed = ObservedState(
        api.objects[ORDERS], api.objects, api.states(), rejection="the API server refuses: no"
    )
    status = next(
        one for one in reconcile(RENDERER, observed, api.now).effects if isinstance(one, PatchStatus)
    ).status
    degraded = next(one for one in status["conditions"] if one["type"] == "Degraded")
    assert (degraded["status"], degraded["message"]) == ("True", "the API server refuses: no")
