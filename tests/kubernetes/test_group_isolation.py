"""Tests that groups do not affect each other, whatever their names and namespaces are."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq_operator.resources.model import BROKER_NAME_LENGTH_MAX, NAME_LENGTH_MAX, NAMES_LENGTH_MAX
from tests.kubernetes.conftest import namespace_for
from tests.kubernetes.messages import everything, send
from tests.kubernetes.operator_process import Groups, operator
from tests.kubernetes.testbed.cluster import Cluster

pytestmark = pytest.mark.soak

LONGEST = "a-broker-0" + "-b" * 15
"""A name of maximal length that begins like the name of the first replica of a group `a`."""
BROKER_NAMES = {"a": "a", LONGEST: "b" * BROKER_NAME_LENGTH_MAX}
NAMESPACE_LENGTH_MAX = NAMES_LENGTH_MAX - NAME_LENGTH_MAX


def pods(groups: Groups, name: str) -> dict[str, str]:
    """The addresses of all pods of the group and its controllers."""
    label = f"epochmq.io/group={name}"
    found = groups.cluster.core.list_namespaced_pod(groups.namespace, label_selector=label).items
    return {pod.metadata.name: pod.status.pod_ip for pod in found}


def known(groups: Groups, name: str) -> dict[str, list[str]]:
    """The addresses of the brokers that the group's controllers know, by broker name."""
    kept = groups.state(f"{name}-controller-0")["groups"]
    return {one["brokerName"]: sorted(each["address"] for each in one["replicas"]) for one in kept}


def test_two_groups_in_each_of_two_namespaces_share_nothing(
    cluster: Cluster, definitions: None, tmp_path: Path
) -> None:
    """The names are the same in both namespaces; every name has dashes or maximal length."""
    assert len(LONGEST) == NAME_LENGTH_MAX
    with (
        namespace_for(cluster, "first") as first,
        namespace_for(cluster, "second", length=NAMESPACE_LENGTH_MAX) as second,
        operator(cluster, first, tmp_path, second),
    ):
        four = [(Groups(cluster, place), name) for place in (first, second) for name in BROKER_NAMES]
        for groups, name in four:
            groups.apply("ControllerGroup", name, {"replicas": 1})
            spec = {"replicas": 2, "controllerGroup": name, "brokerName": BROKER_NAMES[name]}
            groups.apply("BrokerGroup", name, spec)
        for groups, name in four:
            groups.ready(name, 2)
        for groups, name in four:
            send(groups, name, [f"{groups.namespace}/{name}"])
        for groups, name in four:
            body = f"{groups.namespace}/{name}"
            assert everything(groups, name, [body]) == [body]
            own = [f"{name}-broker-{n}.{name}-brokers.{groups.namespace}.svc:10911" for n in range(2)]
            assert known(groups, name) == {BROKER_NAMES[name]: own}
            peers = groups.state(f"{name}-controller-0")["peers"]
            host = f"{name}-controller-0.{name}-controllers.{groups.namespace}.svc"
            assert [one["address"] for one in peers] == [f"{host}:9878"]
            assert sorted(pods(groups, name)) == sorted(
                [f"{name}-broker-0", f"{name}-broker-1", f"{name}-controller-0"]
            )
        assert len({ip for groups, name in four for ip in pods(groups, name).values()}) == 12
