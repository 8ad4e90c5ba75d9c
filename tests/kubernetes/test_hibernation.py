"""Tests on a real cluster that a group hibernates and resumes, and that its files stay as they are."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest

from epochmq_protocol.epoch_entries import parse_epoch_file
from tests.kubernetes.messages import received, send
from tests.kubernetes.operator_process import READY_TIMEOUT_S, Groups, run_epochmq

SPEC = {"replicas": 2, "controllerGroup": "orders"}
PODS = ("orders-broker-0", "orders-broker-1")
BEHIND_THE_LOG = 4096
"""Bytes behind the end of a log that are compared, too: nothing may be appended."""


class StoreFiles(NamedTuple):
    """The bytes of a replica's log up to an offset, and of its epoch file."""

    log: bytes
    epochs: str


def files_of(groups: Groups, pod: str, end: int) -> StoreFiles:
    """The files in the volume of a pod, which may be stopped."""
    store = groups.volume(f"store-{pod}")
    log = bytearray()
    for path in sorted((store / "commitlog").iterdir()):
        with path.open("rb") as file:
            log += file.read(max(end - int(path.name), 0))
    return StoreFiles(bytes(log), (store / "epochFileCheckpoint").read_text())


def end_of_logs(groups: Groups) -> int:
    """Waits until the logs of all replicas end at the same offset and are confirmed; returns it."""

    def end() -> int | None:
        states = [groups.state(pod) for pod in PODS]
        ends = {state.get(key) for state in states for key in ("maxOffset", "confirmOffset")}
        return ends.pop() if len(ends) == 1 else None

    found: int = groups.cluster.wait(end, timeout_s=READY_TIMEOUT_S, what="both logs end equally")
    return found


@pytest.mark.usefixtures("started")
def test_a_group_hibernates_and_resumes_with_all_messages(groups: Groups) -> None:
    there = ("--kubeconfig", str(groups.cluster.kubeconfig), "--namespace", groups.namespace)
    groups.apply("ControllerGroup", "orders", {"replicas": 1})
    groups.apply("BrokerGroup", "orders", SPEC)
    groups.ready("orders", 2)
    # Replica 0 stops last. As the master it hands no mastership over, which would begin an epoch.
    run_epochmq("promote", "orders/0", "--timeout", "60", *there)
    groups.ready("orders", 2)
    ids = groups.broker_ids("orders", 2)
    send(groups, "orders", ["a", "b"])
    end = end_of_logs(groups)
    before = {pod: files_of(groups, pod, end + BEHIND_THE_LOG) for pod in PODS}
    assert len(set(before.values())) == 1
    groups.apply("BrokerGroup", "orders", {**SPEC, "hibernate": True})
    groups.wait("BrokerGroup", "orders", phase="Hibernated", ready="0/2")
    for pod in PODS:
        assert not groups.get("Pod", pod)
        assert groups.get("PersistentVolumeClaim", f"store-{pod}")
    assert {pod: files_of(groups, pod, end + BEHIND_THE_LOG) for pod in PODS} == before
    (shown,) = json.loads(run_epochmq("status", "--output", "json", *there))["brokerGroups"]
    assert (shown["phase"], shown["replicas"]) == ("Hibernated", [])
    assert "orders: Hibernated" in run_epochmq("status", *there)
    groups.apply("BrokerGroup", "orders", {**SPEC, "hibernate": False})
    status = groups.ready("orders", 2)
    assert (status["master"], status["plan"]["name"]) == ("orders-broker-0", "resume")
    assert groups.broker_ids("orders", 2) == ids
    for pod in PODS:
        resumed = files_of(groups, pod, end)
        assert resumed.log == before[pod].log[:end]
        # The election of the master again begins an epoch behind the others.
        entries = parse_epoch_file(before[pod].epochs)
        assert parse_epoch_file(resumed.epochs)[: len(entries)] == entries
    assert received(groups, "orders", 2) == ["a", "b"]
