"""Tests that a broker group changes the number of its own controllers, one at a time, and that a group whose
resource does not give the number is left as earlier releases made it. The manifests are those of a real
cluster."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from epochmq_operator.plans.objects import Ref
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi, manifest_renderer
from tests.unit.operator.plans.updated_groups import restarts, run
from tests.unit.operator.plans.watched_api import WatchedApi

ORDERS = Ref("BrokerGroup", NAMESPACE, "orders")
QUORUM = Ref("ControllerGroup", NAMESPACE, "orders")
CONTROLLERS = Ref("StatefulSet", NAMESPACE, "orders-controller")
STRIDE = 5
ADMIN = {"admin": {"tokenSecret": "token"}}


def spec(count: int | None, **fields: Any) -> dict[str, Any]:
    """The spec of a group with this number of controllers of its own; None: the spec does not say it."""
    controllers = {} if count is None else {"controllers": {"replicas": count}}
    return {"replicas": 3, **ADMIN, **controllers, **fields}


def ready_group(count: int | None, **fields: Any) -> FakeApi:
    """A cluster with a ready group that has controllers of its own."""
    api = WatchedApi(renderer=manifest_renderer(), can_reload=True)
    api.put("BrokerGroup", "orders", spec(count, **fields))
    api.settle(200)
    return api


def sizes(api: FakeApi) -> list[int]:
    """The sizes of the controllers' StatefulSet, in order."""
    found = [one["spec"]["replicas"] for one in api.applied[CONTROLLERS]]
    return [size for size, before in zip(found, [0, *found], strict=False) if size != before]


def is_at(api: FakeApi, count: int) -> bool:
    """Whether exactly this number of controllers runs, they are the members, and the brokers list them."""
    group, quorum = api.status(ORDERS), api.status(QUORUM)
    return (
        (group["phase"], group["ready"], group["knownControllers"]) == ("Ready", "3/3", count)
        and (quorum["phase"], quorum["ready"], quorum["targetReplicas"])
        == ("Ready", f"{count}/{count}", count)
        and api.quorums["orders"] == set(range(count))
    )


@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_new_group_has_as_many_controllers_as_it_asks_for(count: int) -> None:
    api = ready_group(count)
    assert is_at(api, count)
    assert sizes(api) == [count]
    assert api.objects[QUORUM]["spec"] == {"replicas": count, **ADMIN}


@pytest.mark.long
def test_a_group_changes_the_number_one_by_one_and_restarts_no_pod() -> None:
    api = ready_group(3)
    before = {pod: api.uid(Ref("Pod", NAMESPACE, pod)) for pod in api.pods()}
    for count in (5, 3, 1, 3):
        api.put("BrokerGroup", "orders", spec(count))
        api.settle()
        assert is_at(api, count)
        assert api.status(ORDERS)["plan"]["name"] == "update"
    assert sizes(api) == [3, 4, 5, 4, 3, 2, 1, 2, 3]
    assert restarts(api) == []
    stay = ["orders-controller-0", *(f"orders-broker-{n}" for n in range(3))]
    assert {name: before[name] for name in stay} == {
        name: api.uid(Ref("Pod", NAMESPACE, name)) for name in stay
    }


@pytest.mark.long
def test_the_resource_says_that_the_change_goes_on_until_the_controllers_are_members() -> None:
    api = ready_group(3)
    api.unready = {"orders-controller-3"}
    api.put("BrokerGroup", "orders", spec(5))
    run(api)
    assert api.status(ORDERS)["phase"] == "Updating"
    message = api.condition(ORDERS, "Progressing")["message"]
    assert "waiting for: ControllerGroup orders: waits until n3 responds" in message
    api.unready = set()
    api.settle()
    assert is_at(api, 5)


@pytest.mark.parametrize("fields", [{}, ADMIN, {"updatePolicy": {"approval": "Supervised"}}])
def test_a_group_that_an_earlier_release_stored_is_not_changed(fields: dict[str, Any]) -> None:
    """It has no number of controllers in its spec, and its controllers no credentials."""
    api = WatchedApi(renderer=manifest_renderer(), can_reload=True)
    api.put("BrokerGroup", "orders", {"replicas": 3, **fields})
    api.settle()
    policy = {key: value for key, value in fields.items() if key == "updatePolicy"}
    assert api.objects[QUORUM]["spec"] == {"replicas": 3, **policy}
    assert sizes(api) == [3]
    assert "members" not in str(api.status(ORDERS)["plan"])


def test_the_first_change_of_an_earlier_group_gives_its_controllers_the_credentials() -> None:
    """They restart one by one for it, the leader last, before the first one is added. No broker restarts."""
    api = ready_group(None)
    api.put("BrokerGroup", "orders", spec(5))
    api.settle(200)
    assert is_at(api, 5)
    names = [f"orders-controller-{n}" for n in range(3)]
    assert sorted(restarts(api)) == names
    assert restarts(api)[-1] == "orders-controller-0"
    assert sizes(api) == [3, 4, 5]


@pytest.mark.long
def test_an_operator_killed_during_a_change_finishes_it() -> None:
    """After every so many-th effect: the steps of the members are tested after each one in
    `test_controller_members`."""
    writes, before = 0, ready_group(3)
    while True:
        api = copy.deepcopy(before)
        epoch = api.status(ORDERS)["masterEpoch"]
        api.put("BrokerGroup", "orders", spec(5))
        done = 0
        while done < writes and (count := api.operate(limit=writes - done)):
            done += count
            api.tick()
        reached = done >= writes
        api.replace_operator()
        api.settle(200)
        assert is_at(api, 5), writes
        assert (sizes(api), restarts(api)) == ([3, 4, 5], []), writes
        assert api.status(ORDERS)["masterEpoch"] == epoch
        if not reached:
            break
        writes += STRIDE
    assert writes > 5 * STRIDE


def test_without_credentials_the_group_says_what_to_do() -> None:
    api = ready_group(3)
    api.can_reload = False
    api.put("BrokerGroup", "orders", spec(5))
    run(api)
    condition = api.condition(ORDERS, "Progressing")
    assert condition["reason"] == "MembershipBlocked"
    assert "ControllerGroup orders: the sidecars accept no change" in condition["message"]
    assert api.condition(ORDERS, "Degraded")["status"] == "False"
    assert api.condition(ORDERS, "Ready")["reason"] == "MembershipBlocked"
    assert api.status(ORDERS)["ready"] == "3/3"
    api.put("BrokerGroup", "orders", spec(3))
    api.settle()
    assert is_at(api, 3)


@pytest.mark.long
def test_a_controller_group_of_a_user_is_used_and_not_changed() -> None:
    api = WatchedApi(renderer=manifest_renderer(), can_reload=True)
    api.put("ControllerGroup", "orders", {"replicas": 3})
    api.put("BrokerGroup", "orders", spec(5))
    run(api)
    assert api.objects[QUORUM]["spec"] == {"replicas": 3}
    condition = api.condition(ORDERS, "Progressing")
    assert condition["reason"] == "MembershipBlocked"
    assert "was created by a user" in condition["message"]
    api.put("ControllerGroup", "orders", {"replicas": 5})
    api.settle()
    assert is_at(api, 5)


def test_a_controller_group_that_is_scaled_by_hand_is_scaled_back() -> None:
    api = ready_group(3)
    for count in (1, 5):
        found = {**api.objects[QUORUM]["spec"], "replicas": count}
        api.objects[QUORUM]["spec"] = found
        api.objects[QUORUM]["metadata"]["generation"] += 1
        api.settle()
        assert is_at(api, 3)
