"""Tests updates of a group on a real cluster: a changed configuration, and an image that does not exist."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.kubernetes.messages import received, send
from tests.kubernetes.operator_process import READY_TIMEOUT_S, Groups

THREE = {"replicas": 3, "controllerGroup": "orders"}


def restarts(groups: Groups) -> list[str]:
    """The messages of the Events about restarts, in order."""
    text = groups.cluster.kubectl(
        "get",
        "events",
        "--field-selector=reason=RestartingPod",
        "--output=json",
        f"--namespace={groups.namespace}",
    )
    found: list[dict[str, Any]] = json.loads(text)["items"]
    return [one["message"] for one in sorted(found, key=lambda one: one["metadata"]["creationTimestamp"])]


def revisions(groups: Groups) -> set[str]:
    """The revisions of the templates of the group's brokers."""
    pods = groups.cluster.core.list_namespaced_pod(
        groups.namespace, label_selector="epochmq.io/component=broker"
    )
    return {pod.metadata.labels["controller-revision-hash"] for pod in pods.items}


@pytest.mark.usefixtures("started")
def test_an_update_restarts_the_replicas_and_then_the_master_and_a_bad_one_stops_at_the_first_pod(
    groups: Groups,
) -> None:
    groups.apply("ControllerGroup", "orders", {"replicas": 1})
    groups.apply("BrokerGroup", "orders", THREE)
    before = groups.ready("orders", 3)
    send(groups, "orders", ["a"])
    old = revisions(groups)

    groups.apply("BrokerGroup", "orders", {**THREE, "config": {"fileReservedTime": 48}})
    groups.cluster.wait(
        lambda: len(restarts(groups)) == 3 and groups.status("BrokerGroup", "orders")["phase"] == "Ready",
        READY_TIMEOUT_S,
        "the group is updated",
    )
    after = groups.status("BrokerGroup", "orders")
    assert len(revisions(groups)) == 1
    assert revisions(groups) != old
    names = [message.split()[1].rstrip(":") for message in restarts(groups)]
    assert names[2] == before["master"]
    assert sorted(names) == [f"orders-broker-{ordinal}" for ordinal in range(3)]
    assert all("the configuration changes: fileReservedTime" in message for message in restarts(groups))
    assert after["masterEpoch"] == before["masterEpoch"] + 1
    send(groups, "orders", ["b"])
    assert received(groups, "orders", 2) == ["a", "b"]

    groups.apply("BrokerGroup", "orders", {**THREE, "image": "example.org/there-is/no-such:image"})

    def stopped() -> bool:
        return "does not run" in groups.condition("BrokerGroup", "orders", "Ready").get("message", "")

    groups.cluster.wait(stopped, READY_TIMEOUT_S, "the first pod cannot run")
    assert len(restarts(groups)) == 4
    send(groups, "orders", ["c"])
    groups.apply("BrokerGroup", "orders", {**THREE, "config": {"fileReservedTime": 48}})
    reverted = groups.ready("orders", 3)
    assert len(restarts(groups)) == 5
    assert (reverted["master"], reverted["masterEpoch"]) == (after["master"], after["masterEpoch"])
    assert received(groups, "orders", 3) == ["a", "b", "c"]
