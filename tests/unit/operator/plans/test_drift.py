"""Tests that a StatefulSet that somebody else scaled is scaled back, and that no configuration follows its
number of replicas. The manifests are those of a real cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from epochmq_operator.plans.objects import Ref
from epochmq_protocol import properties
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi, manifest_renderer

ORDERS = Ref("BrokerGroup", NAMESPACE, "orders")
OWN = Ref("ControllerGroup", NAMESPACE, "orders")
BROKERS = Ref("StatefulSet", NAMESPACE, "orders-broker")
CONTROLLERS = Ref("StatefulSet", NAMESPACE, "orders-controller")
WRONG = [0, 1, 2, 5, 9]


def ready_group(replicas: int = 3) -> FakeApi:
    """A cluster with a ready group and its controllers."""
    api = FakeApi(renderer=manifest_renderer())
    api.put("BrokerGroup", "orders", {"replicas": replicas})
    api.settle()
    return api


def configurations(api: FakeApi) -> list[str]:
    """All configuration files that the operator ever wrote."""
    return [
        text
        for ref, applied in api.applied.items()
        if ref.kind == "ConfigMap"
        for one in applied
        for text in one["data"].values()
    ]


def configured(api: FakeApi, key: str) -> set[str]:
    """The values of a key in all configurations that the operator ever wrote."""
    lines = [line.partition("=") for text in configurations(api) for line in text.splitlines()]
    return {value for name, _, value in lines if name == key}


def voters(api: FakeApi) -> set[int]:
    """The numbers of members in all configurations with which a controller may vote before its log names the
    members."""
    found = [properties.parse(text) for text in configurations(api) if "joinControllerGroup" not in text]
    return {
        len(keys["controllerDLegerPeers"].split(";")) for keys in found if "controllerDLegerPeers" in keys
    }


def replicas(manifest: Mapping[str, Any]) -> int:
    """The number of replicas of a StatefulSet."""
    count: int = manifest["spec"]["replicas"]
    return count


@pytest.mark.long
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("scaled", [BROKERS, CONTROLLERS], ids=["brokers", "controllers"])
@pytest.mark.parametrize("delay", [0, 3])
def test_a_statefulset_that_was_scaled_by_hand_is_scaled_back(scaled: Ref, wrong: int, delay: int) -> None:
    api = ready_group()
    api.scale(scaled, wrong)
    for _ in range(delay):
        api.tick()  # without an operator
    api.settle()
    assert {replicas(one) for one in api.applied[scaled]} == {3}
    assert replicas(api.objects[scaled]) == 3
    assert not api.deleted
    assert api.status(ORDERS)["phase"] == api.status(OWN)["phase"] == "Ready"
    event = next(one for one in api.events.values() if one.reason == "RevertingDrift")
    assert f"spec.replicas: {wrong}, should be 3" in event.message


@pytest.mark.long
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("scaled", [BROKERS, CONTROLLERS], ids=["brokers", "controllers"])
def test_no_configuration_follows_a_statefulset_that_was_scaled_by_hand(scaled: Ref, wrong: int) -> None:
    api = ready_group()
    api.scale(scaled, wrong)
    api.tick()
    api.put("BrokerGroup", "orders", {"replicas": 3, "config": {"fileReservedTime": 48}})
    api.settle()
    assert voters(api) == {3}
    assert {len(peers.split(";")) for peers in configured(api, "controllerAddr")} == {3}
    assert configured(api, "minInSyncReplicas") == {"2"}
    assert configured(api, "fileReservedTime") == {"48"}


@pytest.mark.long
@pytest.mark.parametrize("wrong", [0, 1, 4, 5])
def test_a_group_that_waits_to_scale_up_is_scaled_back_to_its_target(wrong: int) -> None:
    api = ready_group()
    api.unready = {"orders-broker-1"}
    api.put("BrokerGroup", "orders", {"replicas": 5})
    for _ in range(10):
        api.tick()
        api.operate()
    api.scale(BROKERS, wrong)
    for _ in range(10):
        api.tick()
        api.operate()
    assert replicas(api.objects[BROKERS]) == api.status(ORDERS)["targetReplicas"] == 3
    api.unready = set()
    api.settle()
    assert api.status(ORDERS)["ready"] == "5/5"


def test_controllers_whose_number_is_not_changed_keep_it_although_their_statefulset_is_deleted() -> None:
    api = ready_group()
    api.objects[OWN]["spec"] = {"replicas": 5}
    api.settle()
    api.remove(CONTROLLERS)
    api.settle()
    assert replicas(api.objects[CONTROLLERS]) == 3
    assert voters(api) == {3}


def test_a_deleted_statefulset_is_restored_although_somebody_had_added_pods() -> None:
    api = ready_group()
    for stateful_set in (BROKERS, CONTROLLERS):
        api.scale(stateful_set, 5)
        api.tick()
        api.remove(stateful_set)
    api.settle()
    assert replicas(api.objects[BROKERS]) == replicas(api.objects[CONTROLLERS]) == 3
    assert api.status(ORDERS)["phase"] == "Ready"


@pytest.mark.parametrize("scaled", [0, 1, 3])
@pytest.mark.parametrize("record", ["none", "of another type", "out of bounds"])
def test_a_status_without_a_target_gets_the_number_of_replicas_that_exist(scaled: int, record: str) -> None:
    """As the status of an earlier release, while its StatefulSets are scaled to a wrong number."""
    api = ready_group()
    for ref, stateful_set in ((ORDERS, BROKERS), (OWN, CONTROLLERS)):
        values: dict[str, object] = {"of another type": "1", "out of bounds": 0}
        api.objects[ref]["status"] = {
            key: values.get(record) if key == "targetReplicas" else value
            for key, value in api.status(ref).items()
            if key != "targetReplicas" or record != "none"
        }
        api.scale(stateful_set, scaled)
    api.settle()
    assert api.status(ORDERS)["targetReplicas"] == api.status(OWN)["targetReplicas"] == 3
    assert voters(api) == {3}
    assert configured(api, "minInSyncReplicas") == {"2"}
    assert not api.deleted
