"""Tests many groups and several operators. No pod is scheduled: the tests are about the operator and the API
server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest

from tests.kubernetes.operator_process import Groups, Operator, operator
from tests.kubernetes.testbed.cluster import Cluster

pytestmark = pytest.mark.usefixtures("no_pods")

MANY = 100
IDLE_S = 300
MEMORY_MAX_BYTES = 250 * 1024 * 1024


@pytest.fixture
def no_pods(cluster: Cluster) -> Iterator[None]:
    """Cordons all nodes, so that the groups' pods cost nothing."""
    names = [node.name for node in cluster.nodes]
    cluster.kubectl("cordon", *names)
    yield
    cluster.kubectl("uncordon", *names)


def group(name: str, namespace: str) -> dict[str, object]:
    """A minimal broker group."""
    return {
        "apiVersion": "epochmq.io/v1alpha1",
        "kind": "BrokerGroup",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": 3},
    }


def create(resources: list[dict[str, object]], groups: Groups) -> None:
    """Creates all of them, several at a time."""
    ask = groups.cluster.custom.create_namespaced_custom_object
    with ThreadPoolExecutor(8) as workers:
        where = ("epochmq.io", "v1alpha1", groups.namespace, "brokergroups")
        list(workers.map(lambda one: ask(*where, one), resources))


def stateful_sets(groups: Groups) -> int:
    """The number of StatefulSets."""
    found = groups.cluster.apps.list_namespaced_stateful_set(groups.namespace)
    return len(found.items)


def test_a_standby_takes_over_from_a_killed_operator(
    cluster: Cluster, groups: Groups, tmp_path: Path
) -> None:
    """The standby makes what was added; no object is created twice. When it may take over is a rule with
    tests of its own (`unit/operator/kube/test_lease_rules.py`)."""
    with operator(cluster, groups.namespace, tmp_path) as first:
        cluster.apply(group("orders", groups.namespace))
        cluster.wait(lambda: stateful_sets(groups) >= 1, what="the first operator works")
        with operator(cluster, groups.namespace, tmp_path) as second:
            cluster.wait(lambda: "waiting for the lease" in second.log.read_text(), what="one stands by")
            first.kill()
            killed = time.time()
            cluster.apply(group("bills", groups.namespace))
            cluster.wait(lambda: stateful_sets(groups) == 4, timeout_s=300, what="both groups are made")
            took_s = led_since(second) - killed
    print(f"taken over after {took_s:.1f} s")
    groups.made_once()


def led_since(running: Operator) -> float:
    """When it acquired the Lease, in seconds since 1970, by its log."""
    line = next(one for one in running.log.read_text().splitlines() if '"event": "acquired the lease"' in one)
    return _seconds(json.loads(line)["timestamp"])


def last_write(groups: Groups) -> float:
    """When the API server received the operator's last write, in seconds since 1970."""
    return max(_seconds(one["requestReceivedTimestamp"]) for one in groups.writes())


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


@pytest.mark.soak
def test_an_operator_that_is_stopped_releases_the_lease(
    cluster: Cluster, groups: Groups, tmp_path: Path
) -> None:
    first = Operator(cluster, groups.namespace, tmp_path)
    try:
        cluster.wait(lambda: "acquired the lease" in first.log.read_text(), what="it leads")
        assert first.end() == 0
    finally:
        first.kill()
    lease = groups.get("lease", "epochmq-operator")
    assert "holderIdentity" not in lease["spec"]


@pytest.mark.soak
def test_a_hundred_groups_converge_and_then_nothing_is_written(
    cluster: Cluster, groups: Groups, tmp_path: Path
) -> None:
    """Each group has its own controllers. Converged: all objects of all groups exist."""
    with operator(cluster, groups.namespace, tmp_path) as running:
        cluster.wait(lambda: "acquired the lease" in running.log.read_text(), what="it leads")
        begun = time.time()
        create([group(f"group-{number}", groups.namespace) for number in range(MANY)], groups)
        cluster.wait(lambda: stateful_sets(groups) == 2 * MANY, timeout_s=600, what="all groups are made")
        made_s = time.time() - begun

        before = groups.settled()
        last_s = last_write(groups) - begun
        time.sleep(IDLE_S)  # the test is that nothing happens for this time
        assert not running.ended, "it is there, and has nothing to do"
        memory = running.memory_bytes
        print(
            f"{MANY} groups: all objects there after {made_s:.0f} s, the last of {before} writes after "
            f"{last_s:.0f} s; {memory / 2**20:.0f} MiB"
        )
        assert groups.writes()[before:] == []
        assert memory < MEMORY_MAX_BYTES
        groups.made_once()
        assert not running.ended
