"""Tests on a real cluster that members authenticate each other by a secret of the operator's: new groups from
the beginning, unless they say otherwise, and an existing group by updates, which keep its messages."""

from __future__ import annotations

from typing import Any

import pytest

from epochmq_operator.manifests.names import MEMBERS_ANNOTATION
from tests.kubernetes.messages import received, send
from tests.kubernetes.operator_process import READY_TIMEOUT_S, Groups
from tests.kubernetes.testbed.processes import TestbedError

REQUIRE = {"memberAuthentication": "Require"}
SECRET_FILE = "/etc/epochmq-members/secret"


def modes(groups: Groups, *pods: str) -> list[str]:
    """What these pods do; "gone" for those that do not exist."""
    listed = groups.cluster.core.list_namespaced_pod(groups.namespace).items  # all at one moment
    found = {one.metadata.name: one.metadata.annotations or {} for one in listed}
    return [found[pod].get(MEMBERS_ANNOTATION, "Disabled") if pod in found else "gone" for pod in pods]


def order(groups: Groups, *environment: str) -> str:
    """Gives the controllers an order from a broker's pod, with this environment."""
    controller = "quorum-controller-0.quorum-controllers:9878"
    setting = "scanNotActiveBrokerInterval=5000"
    command = ("env", *environment, "epochmq", "controller", "configure", controller, setting)
    return groups.cluster.execute(groups.namespace, "orders-broker-0", *command, container="broker")


@pytest.mark.usefixtures("started")
def test_groups_under_shared_controllers_prove_their_membership_from_the_beginning(groups: Groups) -> None:
    groups.apply("ControllerGroup", "quorum", {"replicas": 1})
    shared = {"controllerGroup": "quorum"}
    groups.apply("BrokerGroup", "orders", {"replicas": 2, **shared})
    groups.apply("BrokerGroup", "ledger", {"replicas": 3, "mode": "DLedger", **shared})
    for name, replicas in (("orders", 2), ("ledger", 3)):
        assert groups.ready(name, replicas)["memberAuthentication"] == "Require"
    send(groups, "orders", ["a", "b"])
    assert received(groups, "orders", 2) == ["a", "b"]

    (owner,) = groups.get("Secret", "quorum-members")["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("ControllerGroup", "quorum")
    with pytest.raises(TestbedError, match="no proof of membership"):
        order(groups)
    order(groups, f"EPOCHMQ_MEMBER_SECRET={SECRET_FILE}")


@pytest.mark.soak
@pytest.mark.usefixtures("started")
def test_an_existing_group_gets_a_secret_by_updates(groups: Groups) -> None:
    spec: dict[str, Any] = {"replicas": 2, "controllers": {"replicas": 1}}
    groups.apply("BrokerGroup", "orders", {**spec, "memberAuthentication": "Disabled"})
    assert groups.ready("orders", 2)["memberAuthentication"] == "Disabled"
    pods = ("orders-controller-0", "orders-broker-0", "orders-broker-1")
    assert modes(groups, *pods) == ["Disabled"] * 3
    send(groups, "orders", ["a"])

    # A group that had no secret, as those of earlier releases, gets none by saying nothing.
    before = groups.get("StatefulSet", "orders-broker")["metadata"]["generation"]
    groups.apply("BrokerGroup", "orders", spec)
    groups.settled()
    assert groups.get("StatefulSet", "orders-broker")["metadata"]["generation"] == before
    assert groups.ready("orders", 2)["memberAuthentication"] == "Disabled"
    assert modes(groups, *pods) == ["Disabled"] * 3
    assert groups.get("Secret", "orders-members") == {}

    groups.apply("BrokerGroup", "orders", {**spec, **REQUIRE})
    seen: list[list[str]] = []

    def required() -> bool:
        found = modes(groups, *pods)
        seen.append(found)
        # Members that require a proof meet none that has no secret.
        assert not {"Disabled", "Require"} <= set(found)
        return found == ["Require"] * 3

    groups.cluster.wait(required, 2 * READY_TIMEOUT_S, "all pods require a proof")
    assert any("Accept" in one for one in seen)
    groups.ready("orders", 2)
    send(groups, "orders", ["b"])
    assert received(groups, "orders", 2) == ["a", "b"]
