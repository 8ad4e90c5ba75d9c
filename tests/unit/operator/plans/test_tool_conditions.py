"""Tests that tools which wait for a resource, such as kubectl, Flux and Helm, learn the truth from the
status of groups: whether a change is done, on its way, or waits for a person."""

from __future__ import annotations

from typing import Any

import pytest

from epochmq_operator.plans.objects import Ref
from epochmq_operator.plans.progress_conditions import STEP_DEADLINE_S
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi, manifest_renderer
from tests.unit.operator.plans.updated_groups import (
    BROKERS,
    CHANGED,
    CONTROLLERS,
    ORDERS,
    ROUNDS,
    pods_of,
    ready_group,
    restarts,
    run,
)

QUORUM = Ref("ControllerGroup", NAMESPACE, "quorum")
SUPERVISED = {"updatePolicy": {"approval": "Supervised"}}
NIGHTS = {"updatePolicy": {"windows": [{"schedule": "0 3 * * *", "minutes": 60}]}}


def tool_state(api: FakeApi, ref: Ref) -> str:
    """What kstatus computes of a resource: `InProgress`, `Current` or `Failed`."""
    status = api.status(ref)
    found = {one["type"]: one["status"] for one in status.get("conditions", ())}
    if status.get("observedGeneration") != api.objects[ref]["metadata"]["generation"]:
        return "InProgress"
    if found.get("Reconciling") == "True":
        return "InProgress"
    if found.get("Stalled") == "True":
        return "Failed"
    return "Current" if found.get("Ready") == "True" else "InProgress"


def is_new(api: FakeApi, stateful_set: Ref) -> bool:
    """Whether all pods are ready with the present template."""
    revision = api.objects[stateful_set]["status"]["updateRevision"]
    return all(
        pod["metadata"]["labels"]["controller-revision-hash"] == revision and api._ready(ref.name)
        for ref, pod in (
            (Ref("Pod", NAMESPACE, one["metadata"]["name"]), one) for one in pods_of(api, stateful_set)
        )
    )


def stalled(api: FakeApi, ref: Ref = ORDERS) -> tuple[str, str]:
    """Status and message of the condition Stalled."""
    found = api.condition(ref, "Stalled")
    return found["status"], found["message"]


@pytest.mark.parametrize(
    "change",
    [
        {"image": "epochmq/broker:2"},
        {"config": {"fileReservedTime": 48}},
        {"replicas": 5},
        {"replicas": 2},
        {"resources": {"requests": {"cpu": "2"}}},
    ],
)
def test_a_changed_group_is_current_only_when_every_pod_has_the_change(change: dict[str, Any]) -> None:
    api = ready_group()
    assert tool_state(api, ORDERS) == "Current"
    api.put("BrokerGroup", "orders", {"replicas": 3, **change})
    states = [tool_state(api, ORDERS)]
    for _ in range(2 * ROUNDS):
        api.tick()
        api.operate()
        states.append(tool_state(api, ORDERS))
        if states[-1] == "Current":
            break
    assert states[:-1] == ["InProgress"] * (len(states) - 1)
    assert states[-1] == "Current"
    assert len(states) > 3
    assert is_new(api, BROKERS)
    assert api.status(ORDERS)["ready"] == f"{change.get('replicas', 3)}/{change.get('replicas', 3)}"
    api.settle()
    assert api.status(ORDERS)["phase"] == "Ready"


def test_a_changed_controller_group_is_current_only_when_every_pod_has_the_change() -> None:
    api = FakeApi(renderer=manifest_renderer())
    api.put("ControllerGroup", "quorum", {"replicas": 3})
    api.settle()
    assert tool_state(api, QUORUM) == "Current"
    api.put("ControllerGroup", "quorum", {"replicas": 3, "image": "epochmq/controller:2"})
    for _ in range(ROUNDS):
        api.tick()
        api.operate()
        if tool_state(api, QUORUM) == "Current":
            break
        assert api.condition(QUORUM, "Ready")["status"] == "False"
    assert is_new(api, Ref("StatefulSet", NAMESPACE, "quorum-controller"))
    assert len(restarts(api)) == 3


def test_a_new_group_is_in_progress_until_it_serves() -> None:
    api = FakeApi(renderer=manifest_renderer())
    api.put("BrokerGroup", "orders", {"replicas": 3})
    for _ in range(ROUNDS):
        assert tool_state(api, ORDERS) == "InProgress"
        api.tick()
        api.operate()
        if tool_state(api, ORDERS) == "Current":
            break
    assert is_new(api, BROKERS)
    assert is_new(api, CONTROLLERS)


def test_a_supervised_update_is_stalled_with_the_command_that_starts_it() -> None:
    api = ready_group(**SUPERVISED)
    api.put("BrokerGroup", "orders", {**CHANGED, **SUPERVISED})
    api.settle()
    assert tool_state(api, ORDERS) == "Failed"
    assert api.condition(ORDERS, "Ready")["reason"] == "UpdateBlocked"
    status, message = stalled(api)
    name = message.rpartition("=")[2]
    assert (status, name != "") == ("True", True)
    assert f"kubectl annotate --overwrite brokergroup orders epochmq.io/approve-update={name}" in message
    api.annotate(ORDERS, approve_update=name)
    api.operate()
    assert tool_state(api, ORDERS) == "InProgress"
    api.settle()
    assert tool_state(api, ORDERS) == "Current"


def test_an_update_that_a_window_will_start_is_in_progress() -> None:
    api = ready_group(**NIGHTS)
    api.put("BrokerGroup", "orders", {**CHANGED, **NIGHTS})
    api.settle()
    assert api.status(ORDERS)["phase"] == "UpdatePending"
    assert tool_state(api, ORDERS) == "InProgress"
    assert "the next maintenance window begins at" in api.condition(ORDERS, "Reconciling")["message"]


def test_a_change_of_a_paused_group_is_stalled_until_the_group_goes_on() -> None:
    api = ready_group()
    api.annotate(ORDERS, paused="true")
    api.settle()
    assert tool_state(api, ORDERS) == "Current"
    api.objects[ORDERS]["spec"] = CHANGED
    api.objects[ORDERS]["metadata"]["generation"] += 1
    api.settle()
    assert tool_state(api, ORDERS) == "Failed"
    assert "remove the annotation epochmq.io/paused" in stalled(api)[1]
    assert restarts(api) == []
    api.annotate(ORDERS, paused="false")
    api.settle()
    assert (tool_state(api, ORDERS), len(restarts(api))) == ("Current", 3)


def test_a_change_that_cannot_be_made_is_stalled() -> None:
    api = ready_group()
    api.put("BrokerGroup", "orders", {"replicas": 3, "storage": {"storageClassName": "fast"}})
    api.settle()
    assert tool_state(api, ORDERS) == "Failed"
    assert "cannot be changed while the group exists" in stalled(api)[1]
    api.put("BrokerGroup", "orders", {"replicas": 3})
    api.settle()
    assert tool_state(api, ORDERS) == "Current"


def test_an_invalid_group_is_stalled() -> None:
    api = ready_group()
    api.put("BrokerGroup", "orders", {"replicas": "three"})
    api.settle()
    assert tool_state(api, ORDERS) == "Failed"
    assert "replicas" in stalled(api)[1]


def test_an_update_to_a_bad_image_is_stalled_after_the_deadline_and_not_before() -> None:
    api = ready_group()
    api.put("BrokerGroup", "orders", {"replicas": 3, "image": "bad:1"})
    run(api)
    assert tool_state(api, ORDERS) == "InProgress"
    api.now += STEP_DEADLINE_S
    run(api, 2)
    assert tool_state(api, ORDERS) == "Failed"
    assert "orders-broker-2 does not run: ErrImagePull" in stalled(api)[1]
    api.put("BrokerGroup", "orders", {"replicas": 3, "image": "good:2"})
    api.settle()
    assert (tool_state(api, ORDERS), is_new(api, BROKERS)) == ("Current", True)


def test_a_replica_that_copies_for_hours_is_not_stalled() -> None:
    api = ready_group()
    api.unready = {"orders-broker-2"}
    api.tick()
    api.operate()
    api.now += 10 * STEP_DEADLINE_S
    run(api, 2)
    assert tool_state(api, ORDERS) == "InProgress"
    assert stalled(api)[0] == "False"


def test_drift_that_is_reverted_leaves_a_group_ready() -> None:
    api = ready_group()
    api.remove(Ref("Service", NAMESPACE, "orders-brokers"))
    api.operate(limit=2)
    assert api.condition(ORDERS, "Ready")["status"] == "True"
    assert tool_state(api, ORDERS) == "InProgress"
    api.settle()
    assert tool_state(api, ORDERS) == "Current"


def test_an_unconfirmed_deletion_is_stalled_with_the_command_that_confirms_it() -> None:
    api = ready_group(deletionGuard=True)
    api.remove(ORDERS)
    api.settle()
    assert api.condition(ORDERS, "Ready")["reason"] == "Deleting"
    status, message = stalled(api)
    assert (status, "epochmq.io/confirm-deletion=orders" in message) == ("True", True)


def test_an_operator_of_a_former_release_left_no_time_of_the_step() -> None:
    api = ready_group()
    api.put("BrokerGroup", "orders", {"replicas": 3, "image": "bad:1"})
    run(api)
    del api.objects[ORDERS]["status"]["plan"]["stepSince"]
    api.now += STEP_DEADLINE_S
    run(api, 2)
    assert stalled(api)[0] == "True"
