"""Tests on a real cluster that keys which running brokers accept are applied without a restart."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.kubernetes.messages import received, send
from tests.kubernetes.operator_process import READY_TIMEOUT_S, Groups

TOKEN = "a-token-of-good-length"


def uids(groups: Groups) -> list[str]:
    """The uids of the brokers' pods."""
    read = groups.cluster.core.read_namespaced_pod
    return [read(f"orders-broker-{n}", groups.namespace).metadata.uid for n in range(2)]


def apply(groups: Groups, **config: Any) -> None:
    """Applies the group with this configuration."""
    spec = {"replicas": 2, "controllerGroup": "orders", "admin": {"tokenSecret": "token"}, "config": config}
    groups.apply("BrokerGroup", "orders", spec)


@pytest.mark.usefixtures("started")
def test_a_changed_key_is_in_force_without_a_restart_and_a_wrong_one_is_a_condition(groups: Groups) -> None:
    cluster = groups.cluster
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "token", "namespace": groups.namespace},
            "data": {"token": base64.b64encode(TOKEN.encode()).decode()},
        }
    )
    groups.apply("ControllerGroup", "orders", {"replicas": 1})
    apply(groups)
    groups.ready("orders", 2)
    before = uids(groups)
    send(groups, "orders", ["a"])

    apply(groups, fileReservedTime=48)

    def applied() -> bool:
        pods = (groups.status("BrokerGroup", "orders").get("reloads") or {}).get("pods") or []
        return [one["state"] for one in pods] == ["Applied", "Applied"]

    cluster.wait(applied, READY_TIMEOUT_S, "both brokers have applied the key")
    groups.ready("orders", 2)
    for pod in ("orders-broker-0", "orders-broker-1"):
        shown = cluster.execute(groups.namespace, pod, "epochmq", "admin-call", "config", container="broker")
        assert '"fileReservedTime":"48"' in shown.replace(" ", "")
    events = cluster.kubectl(
        "get",
        "events",
        "--field-selector=reason=ReloadingConfiguration",
        "--output=name",
        f"--namespace={groups.namespace}",
    )
    assert len(events.split()) == 2

    apply(groups, fileReservedTime="soon")

    def rejected() -> bool:
        condition = groups.condition("BrokerGroup", "orders", "Progressing")
        return "fileReservedTime=soon" in condition.get("message", "")

    cluster.wait(rejected, READY_TIMEOUT_S, "the condition has the broker's reason")
    assert groups.condition("BrokerGroup", "orders", "Stalled")["status"] == "True"
    groups.wait("BrokerGroup", "orders", ready="2/2")

    apply(groups, fileReservedTime=24)
    cluster.wait(applied, READY_TIMEOUT_S, "both brokers have applied the corrected key")
    groups.ready("orders", 2)
    assert uids(groups) == before
    assert received(groups, "orders", 1) == ["a"]
