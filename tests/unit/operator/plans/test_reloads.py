"""Tests that keys which running brokers accept are applied without a restart. The manifests are those of a
real cluster."""

from __future__ import annotations

from typing import Any

import pytest

from epochmq_operator.plans.objects import Ref
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi
from tests.unit.operator.plans.updated_groups import (
    BROKERS,
    CHANGED,
    ORDERS,
    files_of,
    pods_of,
    ready_group,
    restarts,
    run,
)

PODS = [f"orders-broker-{n}" for n in range(3)]
FIXED = {"replicas": 3, "config": {"enableLmq": True}}
BOTH = {"replicas": 3, "config": {"enableLmq": True, "fileReservedTime": 48}}
BAD = {"replicas": 3, "config": {"fileReservedTime": "bad"}}


def reloading_group(**spec: Any) -> FakeApi:
    """A ready group of three replicas whose sidecars accept changes from the operator."""
    api = ready_group(**spec)
    api.can_reload = True
    return api


def uids(api: FakeApi) -> dict[str, str]:
    """The uids of all brokers' pods."""
    return {pod: api.uid(Ref("Pod", NAMESPACE, pod)) for pod in PODS}


def in_force(api: FakeApi) -> list[str | None]:
    """The value of the changed key that each broker applied while it ran; None if it applied nothing."""
    applied = [api.reloaded.get(uid) for uid in uids(api).values()]
    return [None if one is None else one[1].get("fileReservedTime", "the default") for one in applied]


def mounted(api: FakeApi) -> list[bool]:
    """Whether each pod started with the changed key."""
    return ["fileReservedTime=48" in files_of(api, pod) for pod in pods_of(api, BROKERS)]


def test_keys_that_running_brokers_accept_are_applied_without_a_restart() -> None:
    api = reloading_group()
    before = uids(api)
    api.put("BrokerGroup", "orders", CHANGED)
    api.settle()
    assert (restarts(api), uids(api)) == ([], before)
    assert in_force(api) == ["48"] * 3
    messages = [one.message for one in api.events.values() if one.reason == "ReloadingConfiguration"]
    assert messages == [
        f"applies the configuration to orders-broker-{n} without a restart: fileReservedTime"
        for n in (2, 1, 0)
    ]
    status = api.status(ORDERS)
    assert (status["phase"], status["plan"]["name"]) == ("Ready", "update")
    assert status["reloads"]["pods"] == [{"pod": pod, "state": "Applied"} for pod in PODS]
    assert api.condition(ORDERS, "Progressing")["reason"] == "AsWanted"


def test_a_pod_that_starts_later_has_the_applied_configuration() -> None:
    api = reloading_group()
    api.put("BrokerGroup", "orders", CHANGED)
    api.settle()
    assert mounted(api) == [False] * 3
    api.remove(Ref("Pod", NAMESPACE, "orders-broker-1"))
    api.settle()
    assert mounted(api) == [False, True, False]
    assert [one["pod"] for one in api.status(ORDERS)["reloads"]["pods"]] == [PODS[0], PODS[2]]
    assert restarts(api) == []


def test_a_container_that_restarts_in_its_pod_gets_the_configuration_again() -> None:
    api = reloading_group()
    api.put("BrokerGroup", "orders", CHANGED)
    api.settle()
    api.restart_container("orders-broker-1")
    assert in_force(api) == ["48", None, "48"]
    api.settle()
    assert in_force(api) == ["48"] * 3
    assert restarts(api) == []


def test_a_key_that_is_removed_again_gets_its_default_value() -> None:
    api = reloading_group()
    api.put("BrokerGroup", "orders", CHANGED)
    api.settle()
    api.put("BrokerGroup", "orders", {"replicas": 3})
    api.settle()
    assert in_force(api) == ["the default"] * 3
    assert restarts(api) == []
    assert "reloads" not in api.status(ORDERS)


@pytest.mark.long
def test_a_rejected_key_is_a_condition_and_no_pod_starts_with_it() -> None:
    api = reloading_group()
    api.put("BrokerGroup", "orders", BAD)
    run(api)
    assert in_force(api) == [None] * 3
    blocked = api.condition(ORDERS, "Progressing")
    assert (blocked["status"], blocked["reason"]) == ("False", "ReloadingConfigurationBlocked")
    assert "orders-broker-2 rejects the configuration: fileReservedTime=bad" in blocked["message"]
    assert api.condition(ORDERS, "Ready")["reason"] == "ReloadingConfigurationBlocked"
    assert api.status(ORDERS)["ready"] == "3/3"
    assert api.condition(ORDERS, "Degraded")["status"] == "False"
    states = [one["state"] for one in api.status(ORDERS)["reloads"]["pods"]]
    assert states == ["Pending", "Pending", "Rejected"]
    api.remove(Ref("Pod", NAMESPACE, "orders-broker-1"))
    run(api)
    assert api.status(ORDERS)["ready"] == "3/3"
    assert restarts(api) == []
    api.put("BrokerGroup", "orders", CHANGED)
    api.settle()
    assert (in_force(api), restarts(api)) == (["48"] * 3, [])


@pytest.mark.parametrize("spec", [FIXED, BOTH])
def test_a_key_that_is_fixed_at_the_start_restarts_the_pods(spec: dict[str, Any]) -> None:
    api = reloading_group()
    api.put("BrokerGroup", "orders", spec)
    api.settle()
    assert restarts(api) == ["orders-broker-2", "orders-broker-1", "orders-broker-0"]
    assert in_force(api) == [None] * 3


def test_a_restart_for_another_change_starts_pods_with_the_applied_configuration() -> None:
    api = reloading_group()
    api.put("BrokerGroup", "orders", CHANGED)
    api.settle()
    api.put("BrokerGroup", "orders", {**CHANGED, "podLabels": {"team": "a"}})
    api.settle()
    assert len(restarts(api)) == 3
    assert mounted(api) == [True] * 3


@pytest.mark.long
def test_a_silent_sidecar_delays_the_change_and_restarts_nothing() -> None:
    api = reloading_group()
    api.silent = True
    api.put("BrokerGroup", "orders", CHANGED)
    run(api)
    assert (in_force(api), restarts(api)) == ([None] * 3, [])
    assert "does not respond" in api.condition(ORDERS, "Progressing")["message"]
    api.silent = False
    api.settle()
    assert (in_force(api), restarts(api)) == (["48"] * 3, [])


def test_pods_stay_when_the_operator_loses_its_credentials() -> None:
    api = reloading_group()
    api.put("BrokerGroup", "orders", CHANGED)
    api.settle()
    api.can_reload = False
    api.settle()
    assert restarts(api) == []
    assert api.status(ORDERS)["phase"] == "Ready"


@pytest.mark.long
def test_a_broker_that_cannot_run_with_the_former_value_is_restarted_with_the_new_one() -> None:
    api = ready_group()
    api.put("BrokerGroup", "orders", BAD)
    run(api)
    assert restarts(api) == ["orders-broker-2"]
    api.can_reload = True
    api.put("BrokerGroup", "orders", CHANGED)
    api.settle()
    assert restarts(api) == ["orders-broker-2"] * 2
    assert (in_force(api), mounted(api)) == (["48", "48", None], [False, False, True])


def test_a_change_without_a_restart_waits_for_no_window() -> None:
    policy = {"updatePolicy": {"windows": [{"schedule": "0 3 * * *", "minutes": 60}]}}
    api = reloading_group(**policy)  # at 8:00
    api.put("BrokerGroup", "orders", {**CHANGED, **policy})
    api.settle()
    assert (in_force(api), restarts(api)) == (["48"] * 3, [])
    assert api.status(ORDERS)["phase"] == "Ready"


def test_a_group_that_scales_up_gets_its_second_copy_without_a_restart() -> None:
    api = reloading_group(replicas=1)
    api.put("BrokerGroup", "orders", {"replicas": 3})
    api.settle()
    copies = {pod: api.reloaded[uid][1] for pod, uid in uids(api).items() if uid in api.reloaded}
    started = {
        pod["metadata"]["name"]
        for pod in pods_of(api, BROKERS)
        if "minInSyncReplicas=2" in files_of(api, pod)
    }
    assert (restarts(api), set(copies) | started) == ([], set(PODS))
    assert {one["minInSyncReplicas"] for one in copies.values()} == {"2"}


def reload(stop: int | None) -> tuple[FakeApi, int]:
    """A group whose key is changed by an operator that is killed after `stop` effects; the number of
    effects."""
    api = reloading_group()
    api.put("BrokerGroup", "orders", CHANGED)
    total = 0
    for _ in range(15):
        api.tick()
        done = api.operate(limit=stop)
        stop = None if stop is None or done >= stop else stop - done
        total += done
    return api, total


@pytest.mark.long
@pytest.mark.parametrize("stop", range(reload(None)[1]))
def test_an_operator_killed_after_any_effect_of_a_reload_finishes_without_a_restart(stop: int) -> None:
    api, _ = reload(stop)
    api.settle()
    assert (in_force(api), restarts(api)) == (["48"] * 3, [])
    assert [one.reason for one in api.events.values()].count("ReloadingConfiguration") == 3
