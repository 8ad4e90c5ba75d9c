"""Tests that a group whose redundancy is reduced gets the phase Degraded, which an alert watches, whatever
plan it has, and that the restarts of an update alone do not make it degraded."""

from __future__ import annotations

import pytest

from epochmq_operator.plans.objects import Ref
from epochmq_operator.plans.progress_conditions import STEP_DEADLINE_S
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi, manifest_renderer
from tests.unit.operator.plans.updated_groups import CHANGED, ORDERS, ROUNDS, ready_group, run

QUORUM = Ref("ControllerGroup", NAMESPACE, "quorum")


def test_a_replica_that_stays_away_makes_the_group_degraded_until_it_is_back() -> None:
    api = ready_group()
    api.unready = {"orders-broker-2"}
    run(api, 3)
    assert api.status(ORDERS)["phase"] == "Degraded"
    api.unready = set()
    api.settle()
    assert api.status(ORDERS)["phase"] == "Ready"


def test_a_controller_that_stays_away_makes_its_group_degraded_until_it_is_back() -> None:
    api = FakeApi(renderer=manifest_renderer())
    api.put("ControllerGroup", "quorum", {"replicas": 3})
    api.settle()
    api.unready = {"quorum-controller-1"}
    run(api, 3)
    assert api.status(QUORUM)["phase"] == "Degraded"
    api.unready = set()
    api.settle()
    assert api.status(QUORUM)["phase"] == "Ready"


def test_a_ready_replica_that_is_not_in_sync_makes_the_group_degraded() -> None:
    api = ready_group()
    api.behind = {"orders-broker-2"}
    run(api, 3)
    assert api.status(ORDERS)["phase"] == "Degraded"
    assert "the SyncStateSet [1, 2] has fewer than 3 members" in api.condition(ORDERS, "Degraded")["message"]
    api.behind = set()
    api.settle()
    assert api.status(ORDERS)["phase"] == "Ready"


@pytest.mark.long
@pytest.mark.parametrize("change", [CHANGED, {"replicas": 5}, {"replicas": 2}], ids=["update", "up", "down"])
def test_an_orderly_change_has_its_own_phase(change: dict[str, object]) -> None:
    api = ready_group()
    api.put("BrokerGroup", "orders", change)
    phases = []
    for _ in range(2 * ROUNDS):
        api.tick()
        api.operate()
        phases.append(api.status(ORDERS)["phase"])
    api.settle()
    assert "Degraded" not in phases
    assert {"Updating", "Scaling"} & set(phases)
    assert api.status(ORDERS)["phase"] == "Ready"


@pytest.mark.parametrize(
    "change", [{"replicas": 3, "image": "bad:1"}, {"replicas": 5}], ids=["update", "scale-up"]
)
def test_a_change_that_is_stuck_makes_the_group_degraded(change: dict[str, object]) -> None:
    api = ready_group()
    api.put("BrokerGroup", "orders", change)
    api.unready = {"orders-broker-3"}
    run(api)
    before = api.status(ORDERS)["phase"]
    api.now += STEP_DEADLINE_S
    run(api, 2)
    assert (before, api.status(ORDERS)["phase"]) != ("Degraded", "Degraded")
    assert api.status(ORDERS)["phase"] == "Degraded"
    api.unready = set()
    api.put("BrokerGroup", "orders", {"replicas": 3})
    api.settle()
    assert api.status(ORDERS)["phase"] == "Ready"
