"""Tests that a group which does not fit into the cluster can be made smaller: a replica that has never run
has no message, so its removal waits for nothing."""

from __future__ import annotations

import pytest

from epochmq_operator.plans.objects import Ref
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi, manifest_renderer
from tests.unit.operator.plans.updated_groups import ORDERS, ready_group, run


def pod(number: int) -> str:
    """The name of a broker's pod."""
    return f"orders-broker-{number}"


def new_group(replicas: int, unschedulable: set[str]) -> FakeApi:
    """A cluster with a new group of which some pods find no node."""
    api = FakeApi(renderer=manifest_renderer(), unschedulable=unschedulable)
    api.put("BrokerGroup", "orders", {"replicas": replicas})
    run(api, 15)
    return api


@pytest.mark.parametrize("fit", [1, 2])
def test_a_new_group_that_does_not_fit_can_be_made_smaller(fit: int) -> None:
    api = new_group(5, {pod(n) for n in range(fit, 5)})
    assert api.status(ORDERS)["ready"] == f"{fit}/5"
    api.put("BrokerGroup", "orders", {"replicas": fit})
    api.settle()
    assert (api.status(ORDERS)["phase"], api.status(ORDERS)["ready"]) == ("Ready", f"{fit}/{fit}")
    assert api.reasons().count("RemovingReplica") == 5 - fit


def test_a_new_group_of_which_no_pod_ever_ran_can_be_made_smaller() -> None:
    api = new_group(5, {pod(n) for n in range(5)})
    api.put("BrokerGroup", "orders", {"replicas": 3})
    run(api, 15)
    assert [name for name in api.pods() if "broker" in name] == [pod(n) for n in range(3)]
    api.unschedulable = set()
    api.settle()
    assert (api.status(ORDERS)["phase"], api.status(ORDERS)["ready"]) == ("Ready", "3/3")


def test_a_replica_added_to_a_running_group_that_does_not_fit_can_be_taken_back() -> None:
    api = ready_group()
    api.unschedulable = {pod(3)}
    api.put("BrokerGroup", "orders", {"replicas": 5})
    run(api, 15)
    assert api.status(ORDERS)["targetReplicas"] == 4
    api.put("BrokerGroup", "orders", {"replicas": 3})
    api.settle()
    assert (api.status(ORDERS)["phase"], api.status(ORDERS)["ready"]) == ("Ready", "3/3")


@pytest.mark.parametrize("created", [True, False])
def test_a_replica_that_ran_before_is_not_removed_at_once(created: bool) -> None:
    """Its volume has messages, which may be the only copy."""
    api = ready_group() if created else FakeApi(renderer=manifest_renderer())
    if not created:
        api.unready = {pod(0)}
        api.put("BrokerGroup", "orders", {"replicas": 3})
        run(api, 10)
    api.unschedulable = {pod(2)}
    api.remove(Ref("Pod", NAMESPACE, pod(2)))
    run(api, 3)
    api.put("BrokerGroup", "orders", {"replicas": 2})
    run(api, 20)
    assert pod(2) in api.pods()
    assert api.status(ORDERS)["targetReplicas"] == 3


def test_a_replica_with_a_new_volume_stays_while_the_group_counts_on_it() -> None:
    api = ready_group()
    claim = Ref("PersistentVolumeClaim", NAMESPACE, f"store-{pod(2)}")
    api.unschedulable = {pod(2)}
    api.remove(claim)
    api.remove(Ref("Pod", NAMESPACE, pod(2)))
    api.silent = True  # neither controllers nor brokers say what the group counts on
    api.put("BrokerGroup", "orders", {"replicas": 2})
    run(api, 20)
    assert api.status(ORDERS)["targetReplicas"] == 3
    api.silent = False
    api.settle()
    assert api.status(ORDERS)["targetReplicas"] == 2
