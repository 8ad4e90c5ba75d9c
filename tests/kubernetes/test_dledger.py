"""Tests a group in the mode DLedger on a real cluster: the operator creates it, a deleted leader is replaced,
an update restarts the leader last, replicas are added and removed, and no acknowledged message is missing."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest

from tests.kubernetes.messages import received, send
from tests.kubernetes.operator_process import READY_TIMEOUT_S, Groups, run_epochmq
from tests.kubernetes.traffic import Traffic

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
    cluster.wait(
        lambda: groups.condition("BrokerGroup", "ledger", "QuorumHealthy")["reason"] == "Leads",
        READY_TIMEOUT_S,
        "the status says that a leader leads",
    )
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

    def shown() -> bool:
        (ledger,) = json.loads(run_epochmq("status", "-o", "json", *options))["brokerGroups"]
        return {one["pod"]: one["role"] for one in ledger["replicas"]}[other] == "master"

    cluster.wait(shown, READY_TIMEOUT_S, f"the command shows that {other} is the master")

    # An update restarts the leader last.
    groups.apply("BrokerGroup", "ledger", {**SPEC, "podAnnotations": {"note": "second"}})
    led_by_another(groups, other)
    groups.wait("BrokerGroup", "ledger", phase="Ready", ready="3/3")
    assert received(groups, "ledger", 4) == ["a", "b", "c", "d"]


def members(groups: Groups) -> list[str]:
    """The members of the group, as its leader knows them."""
    leader = groups.status("BrokerGroup", "ledger").get("master") or "ledger-broker-0"
    return sorted(one["id"] for one in (groups.state(leader).get("dledger") or {}).get("peers", ()))


def uids(groups: Groups, count: int) -> list[str]:
    """The uids of the first pods of brokers."""
    return [groups.get("Pod", f"ledger-broker-{n}")["metadata"]["uid"] for n in range(count)]


@pytest.mark.soak
@pytest.mark.usefixtures("started")
def test_replicas_are_added_and_removed_one_by_one_while_a_producer_sends(
    groups: Groups, clients: str
) -> None:
    """Before the group shrinks, a replica that is to go becomes the leader."""
    cluster, namespace = groups.cluster, groups.namespace
    token = base64.b64encode(b"a-token-of-good-length").decode()
    name = {"name": "token", "namespace": namespace}
    cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": name, "data": {"token": token}})
    own = {"controllers": {"replicas": 1}, "admin": {"tokenSecret": "token"}}
    groups.apply("BrokerGroup", "ledger", {"mode": "DLedger", "replicas": 3, **own})
    groups.ready("ledger", 3)
    before = uids(groups, 3)
    traffic = Traffic(groups, clients, "ledger")
    traffic.start()
    for count in (5, 3):
        begun_s = time.monotonic()
        cluster.kubectl("scale", "brokergroup/ledger", f"--replicas={count}", f"--namespace={namespace}")
        status = groups.wait("BrokerGroup", "ledger", phase="Ready", ready=f"{count}/{count}")
        done_s = time.monotonic()
        assert (status["targetReplicas"], status["founders"]) == (count, 0)
        wanted = [f"n{n}" for n in range(count)]
        cluster.wait(lambda wanted=wanted: members(groups) == wanted, READY_TIMEOUT_S, "the members")
        traffic.wait_acks(20)
        silence_s = traffic.silence_s(begun_s, done_s)
        print(
            f"{count} replicas after {done_s - begun_s:.1f} s, no message acknowledged for {silence_s:.2f} s"
        )
        if count == 5:
            options = ("--kubeconfig", str(cluster.kubeconfig), "--namespace", namespace)
            run_epochmq("promote", "ledger/4", *options)
            groups.wait("BrokerGroup", "ledger", master="ledger-broker-4")
    assert groups.status("BrokerGroup", "ledger")["master"] in {f"ledger-broker-{n}" for n in range(3)}
    traffic.stop()
    print(traffic.summary())
    traffic.check(epochs=False)
    assert uids(groups, 3) == before
    assert groups.get("PersistentVolumeClaim", "store-ledger-broker-4")
