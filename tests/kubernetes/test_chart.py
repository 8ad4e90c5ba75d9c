"""Tests the chart on a real cluster: its definitions are installed, upgraded and kept, its operator has
exactly the rights that it needs, and `helm test` passes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from epochmq_operator.crd import to_yaml
from tests.kubernetes.chart import CHART, TAKE, values
from tests.kubernetes.operator_process import READY_TIMEOUT_S, Groups
from tests.kubernetes.testbed.cluster import Cluster
from tests.kubernetes.testbed.processes import TestbedError

DEFINITION = "brokergroups.epochmq.io"


def columns(cluster: Cluster) -> list[str]:
    """The columns of the installed definition of BrokerGroup."""
    path = "jsonpath={.spec.versions[0].additionalPrinterColumns[*].name}"
    return cluster.kubectl("get", "crd", DEFINITION, f"--output={path}").split()


def test_definitions_are_upgraded_with_the_release_and_kept_after_it(
    cluster: Cluster, namespace: str, release: str, tmp_path: Path
) -> None:
    older = tmp_path / "older"
    shutil.copytree(CHART, older)
    file = older / "files" / "crds" / f"{DEFINITION}.yaml"
    definition = yaml.safe_load(file.read_text())
    del definition["spec"]["versions"][0]["additionalPrinterColumns"][2]
    file.write_text(to_yaml([definition]))
    chosen = [*values(namespace), "--set", "replicas=1"]
    cluster.helm("install", release, str(older), TAKE, *chosen)
    assert "Epoch" not in columns(cluster)
    cluster.helm("upgrade", release, str(CHART), *chosen)
    assert columns(cluster)[2] == "Epoch"
    group = {
        "apiVersion": "epochmq.io/v1alpha1",
        "kind": "ControllerGroup",
        "metadata": {"name": "kept"},
        "spec": {"paused": True},
    }
    cluster.apply(group, namespace=namespace)
    cluster.helm("uninstall", release, "--namespace", namespace)
    assert columns(cluster)[2] == "Epoch"
    assert "kept" in cluster.kubectl("-n", namespace, "get", "controllergroups", "--output=name")
    cluster.helm("install", release, str(CHART), *chosen)  # finds what the earlier release left
    cluster.delete(group, namespace=namespace)


MAY = [
    ("list", "brokergroups.epochmq.io"),
    ("create", "controllergroups.epochmq.io"),
    ("patch", "brokergroups.epochmq.io/status"),
    ("create", "statefulsets.apps"),
    ("create", "pods"),
    ("delete", "pods"),
    ("delete", "persistentvolumeclaims"),
    ("create", "roles.rbac.authorization.k8s.io"),
    ("create", "events"),
]
"""For audits: their pods, and the roles of their drivers. Claims: of replicas that a person replaces."""
MAY_NOT = [
    ("create", "pods/exec"),
    ("list", "secrets"),
    ("get", "secrets"),
    ("bind", "roles.rbac.authorization.k8s.io"),
    ("escalate", "roles.rbac.authorization.k8s.io"),
    ("create", "clusterroles.rbac.authorization.k8s.io"),
    ("create", "brokergroups.epochmq.io"),
    ("list", "nodes"),
]


def test_the_operator_has_its_rights_only_in_its_namespaces(
    cluster: Cluster, namespace: str, release: str
) -> None:
    cluster.helm("install", release, str(CHART), TAKE, *values(namespace))
    account = f"--as=system:serviceaccount:{namespace}:{release}-epochmq-operator"

    def may(verb: str, resource: str, where: str) -> bool:
        listed = cluster.kubectl("auth", "can-i", "--list", "--no-headers", account, "-n", where)
        for line in listed.splitlines():
            words = line.replace("[", " [").split(" [")
            if words[0].strip() == resource and verb in words[-1].rstrip("]").split():
                return True
        return False

    assert [pair for pair in MAY if not may(*pair, namespace)] == []
    assert [pair for pair in MAY_NOT if may(*pair, namespace)] == []
    assert [pair for pair in MAY if may(*pair, "default")] == []


def test_helm_test_passes(cluster: Cluster, namespace: str, release: str) -> None:
    wait = ("--wait", "--timeout=240s")
    cluster.helm("install", release, str(CHART), TAKE, *values(namespace), *wait)
    output = cluster.helm("test", release, "--namespace", namespace, "--timeout=240s")
    assert "Phase:          Succeeded" in output


def test_controllers_in_use_cannot_be_deleted_by_mistake(
    cluster: Cluster, namespace: str, release: str
) -> None:
    cluster.helm("install", release, str(CHART), TAKE, *values(namespace), "--set", "replicas=1")
    groups, place = Groups(cluster, namespace), f"--namespace={namespace}"
    groups.apply("ControllerGroup", "quorum", {"replicas": 1, "paused": True})
    groups.apply("BrokerGroup", "orders", {"replicas": 1, "paused": True, "controllerGroup": "quorum"})
    groups.wait("ControllerGroup", "quorum", READY_TIMEOUT_S, brokerGroups=["orders"])
    delete = ("delete", "controllergroup", "quorum", place)

    def refusal() -> str:
        try:  # a policy takes effect a moment after its creation
            cluster.kubectl(*delete, "--dry-run=server")
        except TestbedError as error:
            return str(error)
        return ""

    output = cluster.wait(refusal, what="the API server refuses")
    assert "BrokerGroup orders would have no controllers: delete it first, or confirm by: kubectl" in output
    with pytest.raises(TestbedError, match="would have no controllers"):
        cluster.kubectl(*delete)
    cluster.kubectl("delete", "brokergroup", "orders", place)
    groups.wait("ControllerGroup", "quorum", READY_TIMEOUT_S, brokerGroups=[])
    cluster.kubectl(*delete)
