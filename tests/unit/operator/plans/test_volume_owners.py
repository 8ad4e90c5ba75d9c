"""Tests what happens to the volumes of a group when the group or its StatefulSet is deleted."""

from __future__ import annotations

import pytest

from epochmq_operator.plans.objects import Ref
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi
from tests.unit.operator.plans.updated_groups import BROKERS, CONTROLLERS, ORDERS, ready_group, restarts, run

DELETED = {"storage": {"size": "10Gi", "retention": "Delete"}}
RETAINED = {"storage": {"size": "10Gi", "retention": "Retain"}}


def claims(api: FakeApi) -> dict[str, str]:
    """The uids of the brokers' volume claims, by name."""
    return {
        ref.name: api.uid(ref) for ref in api.objects if ref.kind.endswith("Claim") and "broker" in ref.name
    }


@pytest.mark.parametrize("storage", [DELETED, RETAINED], ids=["Delete", "Retain"])
def test_a_deleted_stateful_set_leaves_the_volumes_of_a_living_group(storage: dict[str, object]) -> None:
    api = ready_group(**storage)
    before = claims(api)
    assert len(before) == 3
    api.remove(BROKERS)
    api.settle()
    assert claims(api) == before
    assert (api.status(ORDERS)["phase"], BROKERS in api.objects) == ("Ready", True)


def test_volumes_that_are_not_retained_are_deleted_with_the_group() -> None:
    api = ready_group(**DELETED)
    api.remove(ORDERS)
    for _ in range(5):
        api.tick()  # no operator runs any more
    assert claims(api) == {}


def test_retained_volumes_stay_when_the_group_is_deleted() -> None:
    api = ready_group(**RETAINED)
    before = claims(api)
    api.remove(ORDERS)
    for _ in range(5):
        api.tick()
    assert claims(api) == before


@pytest.mark.parametrize(("first", "then", "stay"), [(DELETED, RETAINED, True), (RETAINED, DELETED, False)])
def test_another_retention_counts_for_volumes_that_exist(
    first: dict[str, object], then: dict[str, object], stay: bool
) -> None:
    api = ready_group(**first)
    api.put("BrokerGroup", "orders", {"replicas": 3, **then})
    api.settle()
    assert (restarts(api), api.status(ORDERS)["phase"]) == ([], "Ready")
    api.remove(ORDERS)
    for _ in range(5):
        api.tick()
    assert bool(claims(api)) is stay


def test_volumes_of_replicas_that_came_later_and_that_left_are_deleted_with_the_group() -> None:
    api = ready_group(**DELETED)
    for count in (5, 3):
        api.put("BrokerGroup", "orders", {"replicas": count, **DELETED})
        api.settle()
    assert len(claims(api)) == 5
    api.remove(ORDERS)
    for _ in range(5):
        api.tick()
    assert claims(api) == {}


def test_volumes_that_are_not_retained_grow_and_keep_their_owner() -> None:
    api = ready_group(**DELETED)
    api.put("BrokerGroup", "orders", {"replicas": 3, "storage": {"size": "20Gi", "retention": "Delete"}})
    run(api, 10)
    api.grow_volumes()
    api.settle()
    for name in claims(api):
        claim = api.objects[Ref("PersistentVolumeClaim", NAMESPACE, name)]
        assert claim["spec"]["resources"]["requests"]["storage"] == "20Gi"
        assert [one["uid"] for one in claim["metadata"]["ownerReferences"]] == [api.uid(ORDERS)]


def test_the_policy_of_a_former_release_is_changed_without_a_restart() -> None:
    api = ready_group(**DELETED)
    for stateful_set in (BROKERS, CONTROLLERS):
        policy = {"whenDeleted": "Delete", "whenScaled": "Retain"}
        api.objects[stateful_set]["spec"]["persistentVolumeClaimRetentionPolicy"] = policy
    api.settle()
    assert restarts(api) == []
    before = claims(api)
    api.remove(BROKERS)
    api.settle()
    assert claims(api) == before
