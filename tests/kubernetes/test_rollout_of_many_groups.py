"""Tests that a rollout over many groups with real pods updates a few of them at a time."""

from __future__ import annotations

import itertools
import math
import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.operator_process import Groups, operator
from tests.kubernetes.testbed.cluster import Cluster
from tests.kubernetes.write_limit_proxy import WriteLimitProxy, write_limit_proxy

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]

MANY = int(os.environ.get("EPOCHMQ_MANY_GROUPS", "40"))
"""On two cores. A group has one pod, whose broker and sidecar take 100 MB."""
PARALLEL = 5
FIXED_KEY = "serverChannelMaxIdleTimeSeconds"
"""A key whose change restarts brokers."""
TIMEOUT_S = 3000
IDLE_S = 60


def specs(groups: Groups, idle_s: int) -> list[dict[str, Any]]:
    """All broker groups, under the same controller."""
    spec = {
        "imagePullPolicy": "Never",
        "replicas": 1,
        "controllerGroup": "quorum",
        "resources": {"requests": {"cpu": "5m", "memory": "64Mi"}},
        "config": {FIXED_KEY: idle_s},
    }
    return [
        {
            "apiVersion": "epochmq.io/v1alpha1",
            "kind": "BrokerGroup",
            "metadata": {"name": f"group-{number}", "namespace": groups.namespace},
            "spec": spec,
        }
        for number in range(MANY)
    ]


def ready(groups: Groups, generation: int) -> bool:
    """Whether all groups are ready as this generation of their resources says."""
    place = ("epochmq.io", "v1alpha1", groups.namespace, "brokergroups")
    found = groups.cluster.custom.list_namespaced_custom_object(*place)["items"]
    states = [one.get("status") or {} for one in found]
    return len(found) == MANY and all(
        (one.get("observedGeneration"), one.get("phase"), bool((one.get("plan") or {}).get("finished")))
        == (generation, "Ready", True)
        for one in states
    )


def ready_since_s(groups: Groups) -> dict[str, float]:
    """When each broker's pod became ready, in seconds since 1970."""
    found = groups.cluster.core.list_namespaced_pod(
        groups.namespace, label_selector="epochmq.io/component=broker"
    ).items
    return {
        pod.metadata.name: one.last_transition_time.timestamp()
        for pod in found
        for one in pod.status.conditions
        if (one.type, one.status) == ("Ready", "True")
    }


def deleted_s(groups: Groups) -> dict[str, list[float]]:
    """When the operator deleted each broker's pod, in seconds since 1970."""
    found: dict[str, list[float]] = {}
    for one in groups.writes():
        if (one["verb"], one["objectRef"]["resource"]) == ("delete", "pods"):
            at_s = datetime.fromisoformat(one["requestReceivedTimestamp"]).timestamp()
            found.setdefault(one["objectRef"]["name"], []).append(at_s)
    return found


def requests(proxy: WriteLimitProxy, since: dict[str, int]) -> dict[str, int]:
    """The operator's requests since the counts were as in `since`, by method."""
    return {method: count - since.get(method, 0) for method, count in proxy.requests.items()}


def test_a_changed_configuration_restarts_five_groups_at_a_time(
    cluster: Cluster, groups: Groups, tmp_path: Path
) -> None:
    """Every pod is restarted once. From the deletion of its pod until the new one is ready a group counts as
    being restarted."""
    with (
        write_limit_proxy(cluster.kubeconfig, tmp_path, math.inf) as (proxy, kubeconfig),
        operator(cluster, groups.namespace, tmp_path, kubeconfig=kubeconfig) as running,
    ):
        groups.apply("ControllerGroup", "quorum", {"replicas": 1})
        begun_s = time.monotonic()
        cluster.apply(specs(groups, 121))
        cluster.wait(lambda: ready(groups, 1), TIMEOUT_S, "all groups are ready")
        print(f"{MANY} groups: ready after {time.monotonic() - begun_s:.0f} s", flush=True)
        print(f"requests of their creation: {requests(proxy, {})}", flush=True)

        before, begun_s = dict(proxy.requests), time.monotonic()
        cluster.apply(specs(groups, 122))
        cluster.wait(lambda: ready(groups, 2), TIMEOUT_S, "all groups are updated")
        print(f"updated after {time.monotonic() - begun_s:.0f} s; requests: {requests(proxy, before)}")

        deleted, back = deleted_s(groups), ready_since_s(groups)
        assert sorted(deleted) == sorted(f"group-{number}-broker-0" for number in range(MANY))
        assert all(len(times) == 1 for times in deleted.values())
        # The API server gives whole seconds, rounded down.
        changes = [(times[0], 1) for times in deleted.values()]
        changes += [(max(back[name], times[0]), -1) for name, times in deleted.items()]
        at_a_time = max(itertools.accumulate(step for _, step in sorted(changes)))
        print(f"restarted at a time: {at_a_time}")
        assert at_a_time == PARALLEL

        before, written = dict(proxy.requests), groups.settled()
        begun_s = time.monotonic()
        time.sleep(IDLE_S)  # the test is that nothing happens for this time
        took_s, idle = time.monotonic() - begun_s, requests(proxy, before)
        print(f"idle for {took_s:.0f} s: {idle}; memory: {running.memory_bytes / 2**20:.0f} MiB")
        assert groups.writes()[written:] == []
