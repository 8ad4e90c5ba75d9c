"""Tests that a group is created although the operator is killed."""

from __future__ import annotations

import pytest

from epochmq_operator.plans.objects import Ref
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi

ORDERS = Ref("BrokerGroup", NAMESPACE, "orders")
OWN = Ref("ControllerGroup", NAMESPACE, "orders")


def test_three_lines_become_a_ready_group_with_controllers_of_its_own() -> None:
    api = FakeApi()
    api.put("BrokerGroup", "orders", {"replicas": 3})
    api.settle()
    assert api.pods() == [f"orders-{kind}-{n}" for kind in ("broker", "controller") for n in range(3)]
    status = api.status(ORDERS)
    assert (status["phase"], status["ready"], status["master"]) == ("Ready", "3/3", "orders-broker-0")
    assert (status["masterEpoch"], status["syncStateSet"], status["selector"]) == (
        1,
        [1, 2, 3],
        "app=orders-broker",
    )
    assert {one["type"]: one["status"] for one in status["conditions"]} == {
        "Ready": "True",
        "QuorumHealthy": "True",
        "InSync": "True",
        "Progressing": "False",
        "Degraded": "False",
        "Paused": "False",
        "Reconciling": "False",
        "Stalled": "False",
    }
    assert all(one["observedGeneration"] == 1 for one in status["conditions"])
    assert api.status(OWN)["leader"] == "orders-controller-0"


def test_an_idle_reconciliation_writes_nothing() -> None:
    api = FakeApi()
    api.put("BrokerGroup", "orders", {"replicas": 3})
    api.settle()
    writes = api.writes
    for _ in range(50):
        api.tick()
        assert api.operate() == 0
    assert api.writes == writes


def test_a_group_of_one_replica_has_controllers() -> None:
    api = FakeApi()
    api.put("BrokerGroup", "orders", {"replicas": 1})
    api.settle()
    assert api.status(ORDERS)["ready"] == "1/1"
    assert api.objects[OWN]["metadata"]["ownerReferences"][0]["uid"] == api.uid(ORDERS)


ROUNDS = 16


def _effects_of(scenario: list[tuple[int, dict[str, int]]]) -> int:
    """The number of effects in a scenario without kills."""
    api = FakeApi()
    total = 0
    for _, spec in scenario:
        api.put("BrokerGroup", "orders", spec)
        for _ in range(ROUNDS):
            api.tick()
            total += api.operate()
    return total


GROWTH = [(0, {"replicas": 1}), (1, {"replicas": 3}), (2, {"replicas": 5})]


def deeds(api: FakeApi) -> list[tuple[str, str]]:
    """The Events without those for waiting, which depend on when the operator runs."""
    events = [(event.reason, event.message) for event in api.events.values()]
    return sorted(one for one in events if not one[0].startswith("Awaiting"))


@pytest.mark.long
@pytest.mark.parametrize("stop", range(_effects_of(GROWTH)))
def test_an_operator_killed_after_any_effect_of_create_and_scale_up_finishes_once(stop: int) -> None:
    api, calm = FakeApi(), FakeApi()
    left: int | None = stop
    for _, spec in GROWTH:
        for cluster in (api, calm):
            cluster.put("BrokerGroup", "orders", spec)
        for _ in range(ROUNDS):
            api.tick()
            done = api.operate(limit=left)  # in the next round another operator runs, without any memory
            left = None if left is None or done >= left else left - done
        calm.settle()
    api.settle()
    assert api.status(ORDERS)["ready"] == "5/5"
    assert all(count == 1 for count in api.created.values()), api.created
    assert not api.deleted
    assert deeds(api) == deeds(calm)
    assert api.status(ORDERS)["plan"]["number"] == 3


@pytest.mark.long
def test_operators_killed_after_every_second_effect_finish_together() -> None:
    api = FakeApi()
    api.put("BrokerGroup", "orders", {"replicas": 3})
    for _ in range(200):
        api.tick()
        api.operate(limit=2)
    assert api.status(ORDERS)["phase"] == "Ready"
    assert set(api.created.values()) == {1}


def test_controllers_that_users_created_are_shared_and_not_changed() -> None:
    api = FakeApi()
    api.put("ControllerGroup", "quorum", {"replicas": 3})
    api.put("BrokerGroup", "orders", {"replicas": 3, "controllerGroup": "quorum"})
    api.put("BrokerGroup", "bills", {"replicas": 3, "controllerGroup": "quorum"})
    api.settle()
    assert api.status(ORDERS)["phase"] == "Ready"
    assert OWN not in api.objects
    assert "ControllerGroup quorum" not in api.created


def test_a_group_without_its_controllers_waits_and_says_so() -> None:
    api = FakeApi()
    api.put("BrokerGroup", "orders", {"replicas": 3, "controllerGroup": "quorum"})
    api.settle()
    assert api.status(ORDERS)["phase"] == "Blocked"
    assert "ControllerGroup quorum does not exist" in api.condition(ORDERS, "Progressing")["message"]
    assert not api.created
    api.put("ControllerGroup", "quorum", {"replicas": 3})
    api.settle()
    assert api.status(ORDERS)["phase"] == "Ready"


def test_a_foreign_object_is_not_taken_over() -> None:
    api = FakeApi()
    theirs = {
        "metadata": {"name": "orders-broker", "namespace": NAMESPACE},
        "kind": "Service",
        "spec": {"a": 1},
    }
    api._store(Ref("Service", NAMESPACE, "orders-broker"), dict(theirs))
    api.put("BrokerGroup", "orders", {"replicas": 3})
    api.settle()
    assert "was not made by the operator" in api.condition(ORDERS, "Degraded")["message"]
    assert api.objects[Ref("Service", NAMESPACE, "orders-broker")]["spec"] == {"a": 1}
    api.remove(Ref("Service", NAMESPACE, "orders-broker"))
    api.settle()
    assert api.status(ORDERS)["phase"] == "Ready"


def test_an_invalid_spec_is_reported_and_changes_nothing() -> None:
    api = FakeApi()
    api.put("BrokerGroup", "orders", {"replicas": 3})
    api.settle()
    api.put("BrokerGroup", "orders", {"replicas": "three", "unheard": 1})
    api.settle()
    assert "spec.replicas" in api.condition(ORDERS, "Degraded")["message"]
    assert api.status(ORDERS)["phase"] == "Invalid"
    assert len(api.pods()) == 6
    api.put("BrokerGroup", "orders", {"replicas": 3})
    api.settle()
    assert api.status(ORDERS)["phase"] == "Ready"


@pytest.mark.parametrize(
    "spec", [None, [], "x", {}, {"replicas": None}, {"replicas": 10**30}, {"config": []}]
)
def test_any_stored_resource_can_be_reconciled(spec: object) -> None:
    api = FakeApi()
    api.put("BrokerGroup", "orders", spec)  # type: ignore[arg-type]
    api.settle()
    assert api.status(ORDERS)["phase"] == "Invalid"


@pytest.mark.parametrize(
    "status", ["x", {"plan": 1}, {"plan": {"number": "1"}}, {"conditions": "x"}, {"conditions": [1]}]
)
def test_any_stored_status_can_be_reconciled(status: object) -> None:
    api = FakeApi()
    api.put("BrokerGroup", "orders", {"replicas": 1})
    api.objects[ORDERS]["status"] = status
    api.settle()
    assert api.status(ORDERS)["phase"] == "Ready"


@pytest.mark.long
def test_a_hundred_groups_converge_and_then_nothing_is_written_by_plans() -> None:
    api = FakeApi()
    for number in range(100):
        api.put("BrokerGroup", f"group-{number}", {"replicas": 1, "controllerGroup": "quorum"})
    api.put("ControllerGroup", "quorum", {"replicas": 3})
    for _ in range(12):
        api.tick()
        api.operate()
    assert api.operate() == 0
    assert all(api.status(ref)["phase"] == "Ready" for ref in api.resources())
