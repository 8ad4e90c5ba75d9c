"""Tests how groups get the secret by which members authenticate each other, and lose it again. The manifests
are those of a real cluster."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from epochmq_operator.manifests.names import MEMBERS_ANNOTATION
from epochmq_operator.plans.member_modes import wanted_secret
from epochmq_operator.plans.objects import Ref
from epochmq_operator.plans.observed_state import ObservedState
from epochmq_protocol import properties
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi, manifest_renderer
from tests.unit.operator.plans.updated_groups import files_of, ready_group, restarts

QUORUM = Ref("ControllerGroup", NAMESPACE, "quorum")
ORDERS = Ref("BrokerGroup", NAMESPACE, "orders")
SHARED = {"replicas": 3, "controllerGroup": "quorum"}
ROUNDS_MAX = 200


def put_controllers(api: FakeApi, mode: str | None) -> None:
    """Controllers with separate nameservers, which want this."""
    wanted = {} if mode is None else {"memberAuthentication": mode}
    api.put(
        "ControllerGroup",
        "quorum",
        {"replicas": 3, "nameserver": {"embedded": False, "replicas": 1}, **wanted},
    )


def shared_controllers(mode: str | None) -> FakeApi:
    """A cluster with two broker groups under them."""
    api = FakeApi(renderer=manifest_renderer())
    put_controllers(api, mode)
    api.put("BrokerGroup", "orders", SHARED)
    api.put("BrokerGroup", "ledger", {**SHARED, "mode": "DLedger"})
    api.settle()
    return api


def modes(api: FakeApi) -> dict[str, str]:
    """What each pod does."""
    return {
        ref.name: found["metadata"]["annotations"].get(MEMBERS_ANNOTATION, "Disabled")
        for ref, found in api.objects.items()
        if ref.kind == "Pod"
    }


def templates(api: FakeApi) -> dict[Ref, Any]:
    """The pod templates."""
    found = {ref: one["spec"]["template"] for ref, one in api.objects.items() if ref.kind == "StatefulSet"}
    return copy.deepcopy(found)


def settle(api: FakeApi) -> None:
    """Runs cluster and operator until neither has anything to do. At no time a member that requires a proof
    meets one that has none."""
    for _ in range(ROUNDS_MAX):
        api.tick()
        writes = api.operate()
        assert not {"Require", "Disabled"} <= set(modes(api).values()), modes(api)
        if writes == 0:
            break
    api.settle()


def test_new_groups_get_the_secret_of_their_controllers_without_a_restart() -> None:
    api = shared_controllers("Require")
    assert set(modes(api).values()) == {"Require"}
    assert len(modes(api)) == 3 + 1 + 3 + 3
    assert restarts(api) == []
    assert [api.status(ref)["memberAuthentication"] for ref in (QUORUM, ORDERS)] == ["Require"] * 2
    for ref, pod in api.objects.items():
        if ref.kind != "Pod":
            continue
        config = properties.parse(files_of(api, pod))
        assert config["memberSecretPath"] == "/etc/epochmq-members/secret"
        assert "allowUnauthenticatedMembers" not in config
        (volume,) = (one for one in pod["spec"]["volumes"] if one["name"] == "members")
        (source,) = volume["projected"]["sources"]
        assert (source["secret"]["name"], volume["projected"]["defaultMode"]) == ("quorum-members", 0o440)
        main, sidecar = pod["spec"]["containers"]
        mounted = [[one["name"] for one in container["volumeMounts"]] for container in (main, sidecar)]
        assert ["members" in one for one in mounted] == [True, False]


def earlier_release(mode: str | None = None) -> FakeApi:
    """The cluster as a release left it whose groups had no secret unless they asked for it."""
    api = shared_controllers(mode or "Disabled")
    if mode is None:
        put_controllers(api, None)
        for ref, found in api.objects.items():
            if ref.kind in ("ControllerGroup", "BrokerGroup"):
                found["status"].pop("memberAuthentication")
    return api


def test_a_new_group_that_says_nothing_requires_a_proof() -> None:
    api = shared_controllers(None)
    assert set(modes(api).values()) == {"Require"}
    assert restarts(api) == []
    assert [api.status(ref)["memberAuthentication"] for ref in (QUORUM, ORDERS)] == ["Require"] * 2
    api.put("BrokerGroup", "more", {"replicas": 2})
    api.settle()
    assert set(modes(api).values()) == {"Require"}
    assert len(modes(api)) == 10 + 3 + 2


@pytest.mark.long
def test_groups_of_an_earlier_release_stay_without_a_secret_and_their_status_says_so() -> None:
    api = earlier_release()
    before = templates(api)
    api.replace_operator()
    settle(api)
    assert (restarts(api), templates(api)) == ([], before)
    assert [api.status(ref)["memberAuthentication"] for ref in (QUORUM, ORDERS)] == ["Disabled"] * 2
    assert wanted_secret(ObservedState(api.objects[QUORUM], api.objects)) is None

    api.put("BrokerGroup", "more", SHARED)
    settle(api)
    assert {mode for pod, mode in modes(api).items() if pod.startswith("more")} == {"Disabled"}
    put_controllers(api, "Require")
    settle(api)
    assert set(modes(api).values()) == {"Require"}


@pytest.mark.parametrize("of", ["quorum", ""], ids=["controllers", "all"])
def test_groups_of_an_earlier_release_stay_without_a_secret_when_their_pods_are_gone(of: str) -> None:
    api = earlier_release()
    for ref in [one for one in api.objects if one.kind in ("StatefulSet", "Pod") and of in one.name]:
        api.remove(ref)
    settle(api)
    assert set(modes(api).values()) == {"Disabled"}
    assert len(modes(api)) == 10


def test_controllers_that_come_to_brokers_without_a_secret_have_none() -> None:
    api = earlier_release()
    gone = [ref for ref in api.objects if ref.name.startswith("quorum") and "Claim" not in ref.kind]
    for ref in gone:
        api.objects[ref]["metadata"].pop("finalizers", None)
        api.remove(ref)
    put_controllers(api, None)
    settle(api)
    assert set(modes(api).values()) == {"Disabled"}
    assert len(modes(api)) == 10


@pytest.mark.long
@pytest.mark.parametrize("former", ["Require", "Accept"])
def test_a_group_that_had_a_secret_requires_it_when_it_says_nothing_any_more(former: str) -> None:
    api = earlier_release(former)
    put_controllers(api, None)
    settle(api)
    assert set(modes(api).values()) == {"Require"}
    assert len(restarts(api)) == (0 if former == "Require" else 10)


@pytest.mark.long
def test_existing_groups_change_by_two_updates_there_and_back() -> None:
    api = earlier_release()
    before = templates(api)
    assert set(modes(api).values()) == {"Disabled"}

    put_controllers(api, "Require")
    settle(api)
    assert set(modes(api).values()) == {"Require"}
    assert api.status(ORDERS)["memberAuthentication"] == "Require"
    assert sorted(restarts(api)) == sorted([*modes(api)] * 2)

    put_controllers(api, "Disabled")
    settle(api)
    assert templates(api) == before
    assert api.status(QUORUM)["memberAuthentication"] == "Disabled"
    assert sorted(restarts(api)) == sorted([*modes(api)] * 4)
    put_controllers(api, None)
    settle(api)
    assert templates(api) == before


def test_members_without_a_proof_are_accepted_where_the_group_says_so() -> None:
    api = shared_controllers("Accept")
    assert set(modes(api).values()) == {"Accept"}
    assert all(
        properties.parse(files_of(api, pod))["allowUnauthenticatedMembers"] == "true"
        for ref, pod in api.objects.items()
        if ref.kind == "Pod"
    )


@pytest.mark.long
def test_a_group_without_a_secret_keeps_its_members_waiting_for_it() -> None:
    """An update that a person has to approve does not begin; the others do not require a proof meanwhile."""
    api = earlier_release()
    api.put("BrokerGroup", "orders", {**SHARED, "updatePolicy": {"approval": "Supervised"}})
    api.settle()
    put_controllers(api, "Require")
    settle(api)
    found = modes(api)
    assert {found[f"orders-broker-{n}"] for n in range(3)} == {"Disabled"}
    assert {mode for pod, mode in found.items() if not pod.startswith("orders")} == {"Accept"}
    assert api.status(QUORUM)["memberAuthentication"] == "Accept"


def test_a_groups_own_controllers_have_what_the_group_wants() -> None:
    api = ready_group()
    api.put("BrokerGroup", "orders", {"replicas": 3, "memberAuthentication": "Require"})
    settle(api)
    assert set(modes(api).values()) == {"Require"}
    own = api.objects[Ref("ControllerGroup", NAMESPACE, "orders")]
    assert own["spec"]["memberAuthentication"] == "Require"


def test_only_controllers_that_need_a_secret_get_one_and_it_belongs_to_them() -> None:
    api = shared_controllers("Require")

    def secret_of(ref: Ref) -> Any:
        return wanted_secret(ObservedState(api.objects[ref], api.objects))

    meta = secret_of(QUORUM)["metadata"]
    assert meta["name"] == "quorum-members"
    assert [(one["kind"], one["uid"]) for one in meta["ownerReferences"]] == [
        ("ControllerGroup", api.uid(QUORUM))
    ]
    assert secret_of(ORDERS) is None
    api.annotate(QUORUM, paused="true")
    assert secret_of(QUORUM) is None
    without = shared_controllers("Disabled")
    assert wanted_secret(ObservedState(without.objects[QUORUM], without.objects)) is None
