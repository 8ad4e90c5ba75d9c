"""Tests a group in the mode MasterSlave on a real cluster: the operator creates it, its status says which
replica acts for a master that is down, consumers read on, and the master returns."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kubernetes.messages import received, send
from tests.kubernetes.operator_process import READY_TIMEOUT_S, Groups, run_epochmq


@contextlib.contextmanager
def unschedulable(groups: Groups) -> Iterator[None]:
    """No new pod runs for the length of a block."""
    names = [node.metadata.name for node in groups.cluster.core.list_node().items]
    try:
        for name in names:
            groups.cluster.kubectl("cordon", name)
        yield
    finally:
        for name in names:
            groups.cluster.kubectl("uncordon", name)


@pytest.mark.usefixtures("started")
def test_a_slave_acts_for_a_master_that_is_down_and_hands_back(groups: Groups) -> None:
    cluster, namespace = groups.cluster, groups.namespace
    groups.apply("ControllerGroup", "names", {"replicas": 1})
    groups.apply("BrokerGroup", "pair", {"mode": "MasterSlave", "replicas": 2, "controllerGroup": "names"})
    groups.ready("pair", 2)
    status = groups.wait("BrokerGroup", "pair", master="pair-broker-0", syncStateSet=[0, 1])
    assert "actingMaster" not in status
    assert groups.condition("BrokerGroup", "pair", "QuorumHealthy")["reason"] == "NotUsed"
    assert groups.broker_ids("pair", 2) == {"pair-broker-0": 0, "pair-broker-1": 1}
    send(groups, "pair", ["a", "b", "c"])

    def copied() -> bool:
        ends = [groups.state(f"pair-broker-{number}").get("maxOffset") for number in range(2)]
        return ends[0] == ends[1] is not None

    cluster.wait(copied, timeout_s=READY_TIMEOUT_S, what="the slave has the log")
    with unschedulable(groups):
        cluster.kubectl("delete", "pod", "pair-broker-0", "--namespace", namespace, "--wait=false")

        def acting() -> dict[str, Any] | None:
            found: dict[str, Any] = groups.status("BrokerGroup", "pair")
            return found if found.get("actingMaster") else None

        status = cluster.wait(acting, timeout_s=READY_TIMEOUT_S, what="the status names the acting master")
        assert status["actingMaster"]["pod"] == "pair-broker-1"
        assert (status["actingMaster"]["escaped"], status["actingMaster"]["waiting"]) == (0, 0)
        assert status["master"] == ""
        assert groups.condition("BrokerGroup", "pair", "Ready")["status"] == "False"
        assert received(groups, "pair", 3, pod="pair-broker-1") == ["a", "b", "c"]
        report = json.loads(
            run_epochmq(
                "status", "-o", "json", "--kubeconfig", str(cluster.kubeconfig), "--namespace", namespace
            )
        )
        (pair,) = report["brokerGroups"]
        assert (pair["mode"], pair["actingMaster"]["pod"]) == ("MasterSlave", "pair-broker-1")
        assert {one["pod"]: one["role"] for one in pair["replicas"]}["pair-broker-1"] == "acting"
    groups.wait("BrokerGroup", "pair", phase="Ready", ready="2/2", master="pair-broker-0")
    assert "actingMaster" not in groups.status("BrokerGroup", "pair")
    assert groups.state("pair-broker-1")["group"]["role"] == "slave"
    send(groups, "pair", ["d"])
    assert received(groups, "pair", 4, pod="pair-broker-0") == ["a", "b", "c", "d"]
