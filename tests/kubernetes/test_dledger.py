"""Tests a group in the mode DLedger on a real cluster: the operator creates it, a deleted leader is replaced,
an update restarts the leader last, and no acknowledged message is missing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.kubernetes.messages import received, send
from tests.kubernetes.operator_process import READY_TIMEOUT_S, Groups, run_epochmq
from tests.kubernetes.testbed.processes import TestbedError

SPEC = {"mode": "DLedger", "replicas": 3, "controllerGroup": "names"}


def led_by_another(groups: Groups, former: str) -> dict[str, Any]:
    """The group's status, once another replica is the master and all are ready."""

    def found() -> dict[str, Any] | None:
        status: dict[str, Any] = groups.status("BrokerGroup", "ledger")
        changed = status.get("master") not in (None, "", former)
        return status if changed and status.get("ready") == "3/3" else None

    return groups.cluster.wait(  # type: ignore[no-any-return]
        found, timeout_s=READY_TIMEOUT_S, what=f"a replica other than {former} is the master"
    )


@pytest.mark.usefixtures("started")
def test_a_dledger_group_is_created_healed_and_updated_without_a_loss(groups: Groups) -> None:
    cluster, namespace = groups.cluster, groups.namespace
    groups.apply("ControllerGroup", "names", {"replicas": 1})
    groups.apply("BrokerGroup", "ledger", SPEC)
    groups.ready("ledger", 3)
    status = groups.wait("BrokerGroup", "ledger", phase="Ready", syncStateSet=[1, 2, 3])
    assert groups.condition("BrokerGroup", "ledger", "QuorumHealthy")["reason"] == "Leads"
    send(groups, "ledger", ["a", "b", "c"])

    # A deleted leader hands the leadership over, and its pod returns.
    leader, term = status["master"], status["masterEpoch"]
    cluster.kubectl("delete", "pod", leader, "--namespace", namespace, "--wait=false")
    status = led_by_another(groups, leader)
    assert status["masterEpoch"] > term
    send(groups, "ledger", ["d"])

    # A planned transfer by the command.
    other = next(f"ledger-broker-{n}" for n in range(3) if f"ledger-broker-{n}" != status["master"])
    options = ("--kubeconfig", str(cluster.kubeconfig), "--namespace", namespace)
    run_epochmq("promote", f"ledger/{other.rpartition('-')[2]}", *options)
    groups.wait("BrokerGroup", "ledger", master=other)
    report = json.loads(run_epochmq("status", "-o", "json", *options))
    (ledger,) = report["brokerGroups"]
    assert {one["pod"]: one["role"] for one in ledger["replicas"]}[other] == "master"

    # An update restarts the leader last.
    groups.apply("BrokerGroup", "ledger", {**SPEC, "podAnnotations": {"note": "second"}})
    led_by_another(groups, other)
    groups.wait("BrokerGroup", "ledger", phase="Ready", ready="3/3")
    assert received(groups, "ledger", 4) == ["a", "b", "c", "d"]

    # Another number of replicas is rejected by the API server.
    with pytest.raises(TestbedError, match="replicas cannot change in the mode DLedger yet"):
        groups.apply("BrokerGroup", "ledger", {**SPEC, "replicas": 5})
