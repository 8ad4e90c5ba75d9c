"""Many groups, and several operators. The groups' pods are given no node: what is tried here is the operator
and the API server."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.kubernetes.operator_process import NO_NODE, Groups, Operator, operator
from tests.kubernetes.testbed.cluster import Cluster

MANY = 100
CONVERGED_WITHIN_S = 120
IDLE_S = 300
MEMORY_MAX_BYTES = 250 * 1024 * 1024
TAKEN_OVER_WITHIN_S = 30


def group(name: str, namespace: str) -> dict[str, object]:
    """A broker group whose pods are given no node."""
    return {
        "apiVersion": "epochmq.io/v1alpha1",
        "kind": "BrokerGroup",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": 3, **NO_NODE},
    }


def stateful_sets(groups: Groups) -> int:
    """How many there are."""
    found = groups.cluster.apps.list_namespaced_stateful_set(groups.namespace)
    return len(found.items)


def test_a_standby_takes_over_and_the_former_leader_writes_no_more(
    cluster: Cluster, groups: Groups, tmp_path: Path
) -> None:
    """The standby's first step comes within the time; the API server's log has no step of the former leader
    after it."""
    with operator(cluster, groups.namespace, tmp_path) as first:
        cluster.apply(group("orders", groups.namespace))
        cluster.wait(lambda: stateful_sets(groups) >= 1, timeout_s=120, what="the first operator works")
        with operator(cluster, groups.namespace, tmp_path) as second:
            cluster.wait(
                lambda: "waits for the lease" in second.log.read_text(), timeout_s=60, what="one stands by"
            )
            first.kill()
            killed = time.monotonic()
            cluster.apply(group("bills", groups.namespace))
            cluster.wait(lambda: "leads" in second.log.read_text(), timeout_s=120, what="it took over")
            assert time.monotonic() - killed < TAKEN_OVER_WITHIN_S
            cluster.wait(lambda: stateful_sets(groups) == 4, timeout_s=120, what="both groups are made")
    made = groups.made()
    assert made == sorted(set(made))


def test_an_operator_that_is_told_to_end_gives_the_lease_back(
    cluster: Cluster, groups: Groups, tmp_path: Path
) -> None:
    first = Operator(cluster, groups.namespace, tmp_path)
    try:
        cluster.wait(lambda: '"leads"' in first.log.read_text(), timeout_s=60, what="it leads")
        assert first.end() == 0
    finally:
        first.kill()
    lease = groups.get("lease", "epochmq-operator")
    assert "holderIdentity" not in lease["spec"]


@pytest.mark.soak
def test_a_hundred_groups_converge_and_then_nothing_is_written(
    cluster: Cluster, groups: Groups, tmp_path: Path
) -> None:
    with operator(cluster, groups.namespace, tmp_path) as running:
        cluster.wait(lambda: '"leads"' in running.log.read_text(), timeout_s=60, what="it leads")
        begun = time.monotonic()
        cluster.apply([group(f"group-{number}", groups.namespace) for number in range(MANY)])
        cluster.wait(lambda: stateful_sets(groups) == 2 * MANY, timeout_s=600, what="all groups are made")
        took_s = time.monotonic() - begun

        before = groups.settled()
        time.sleep(IDLE_S)  # what is promised is that nothing happens for so long
        print(f"{MANY} groups made in {took_s:.0f} s, {running.memory_bytes / 2**20:.0f} MiB")
        assert groups.writes()[before:] == []
        assert running.memory_bytes < MEMORY_MAX_BYTES
        assert took_s < CONVERGED_WITHIN_S
