"""Tests on a real cluster that volumes get a larger size without a restart, and what a StorageClass that does
not allow it causes."""

from __future__ import annotations

import pytest

from tests.kubernetes.messages import received, send
from tests.kubernetes.operator_process import READY_TIMEOUT_S, Groups

SPEC = {"replicas": 1, "controllerGroup": "orders"}


@pytest.mark.usefixtures("started")
def test_a_volume_grows_under_its_pod_or_a_condition_says_why_not(groups: Groups) -> None:
    cluster = groups.cluster
    groups.apply("ControllerGroup", "orders", {"replicas": 1})
    groups.apply("BrokerGroup", "orders", {**SPEC, "storage": {"size": "1Gi"}})
    groups.ready("orders", 1)
    send(groups, "orders", ["a"])
    claim = groups.get("PersistentVolumeClaim", "store-orders-broker-0")
    pod = cluster.core.read_namespaced_pod("orders-broker-0", groups.namespace).metadata.uid
    name = claim["spec"]["storageClassName"]
    allowed = cluster.kubectl(
        "get", "storageclass", name, "--output=jsonpath={.allowVolumeExpansion}"
    ).strip()

    groups.apply("BrokerGroup", "orders", {**SPEC, "storage": {"size": "2Gi"}})

    def requested() -> bool:
        found = groups.get("PersistentVolumeClaim", "store-orders-broker-0")
        return bool(found["spec"]["resources"]["requests"]["storage"] == "2Gi")

    def rejected() -> bool:
        condition = groups.condition("BrokerGroup", "orders", "Degraded")
        return condition.get("reason") == "Refused" and "resize" in condition.get("message", "")

    reached = requested if allowed == "true" else rejected
    cluster.wait(reached, READY_TIMEOUT_S, "the claim is larger, or the condition has the reason")
    groups.wait("BrokerGroup", "orders", ready="1/1")
    if allowed != "true":
        cluster.kubectl("patch", "storageclass", name, '--patch={"allowVolumeExpansion": true}')
        try:
            cluster.wait(requested, READY_TIMEOUT_S, "the claim is larger")
        finally:
            cluster.kubectl("patch", "storageclass", name, '--patch={"allowVolumeExpansion": false}')
    assert cluster.core.read_namespaced_pod("orders-broker-0", groups.namespace).metadata.uid == pod
    assert received(groups, "orders", 1) == ["a"]
