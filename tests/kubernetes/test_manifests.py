"""Tests that a real API server accepts a group's objects and returns them without differences. No operator
runs here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from epochmq_operator.crd import to_yaml
from epochmq_operator.manifests import JsonObject, ManifestSettings, differences, render_manifests
from epochmq_operator.resources import API_VERSION, BrokerGroup, ControllerGroup, GroupResource
from tests.kubernetes.testbed.cluster import Cluster

SETTINGS = ManifestSettings(
    "epochmq/broker:1", "epochmq/controller:1", "epochmq-system", monitoring_namespaces=("watch",)
)
APPLY = ("apply", "--server-side", "--field-manager=epochmq-operator", "--force-conflicts", "--filename=-")
EVERYTHING = {
    "storage": {"size": "1024Mi", "storageClassName": "fast", "retention": "Delete"},
    "resources": {"requests": {"cpu": 2, "memory": "1024Mi"}, "limits": {"cpu": "2500m", "memory": "2048Mi"}},
    "hostSpread": "Required",
    "zoneSpread": "Required",
    "nodeSelector": {"disk": "nvme"},
    "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}],
    "podLabels": {"team": "orders"},
    "podAnnotations": {"note": ""},
    "admin": {"tokenSecret": "token", "tlsSecret": "tls"},
    "clientTlsSecret": "client-tls",
}
GROUPS = [
    ("BrokerGroup", {"replicas": 3}),
    ("BrokerGroup", {"replicas": 1, "externalServices": True, **EVERYTHING}),
    ("ControllerGroup", {}),
    ("ControllerGroup", {"replicas": 1, "nameserver": {"embedded": False}, **EVERYTHING}),
]


def made(kind: str, spec: dict[str, Any], namespace: str) -> tuple[JsonObject, ...]:
    head = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": "a-b", "namespace": namespace}}
    group: GroupResource
    if kind == "ControllerGroup":
        group = ControllerGroup.model_validate(head | {"spec": spec})
        return render_manifests(group, None, SETTINGS)
    group = BrokerGroup.model_validate(head | {"spec": spec})
    return render_manifests(group, group.default_controllers(), SETTINGS)


def stored(cluster: Cluster, manifest: JsonObject) -> JsonObject:
    meta = manifest["metadata"]
    found = cluster.kubectl("-n", meta["namespace"], "get", manifest["kind"], meta["name"], "--output=json")
    return json.loads(found)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("kind", "spec"), GROUPS)
def test_stored_objects_have_no_difference(
    cluster: Cluster, namespace: str, kind: str, spec: dict[str, Any]
) -> None:
    objects = made(kind, spec, namespace)
    text = to_yaml(objects)
    output = cluster.kubectl(*APPLY, stdin=text)
    assert len(output.splitlines()) == len(objects)
    before = [stored(cluster, one) for one in objects]
    assert [differences(one, there) for one, there in zip(objects, before, strict=True)] == [()] * len(
        objects
    )
    cluster.kubectl(*APPLY, stdin=text)
    after = [stored(cluster, one) for one in objects]
    assert [version(there) for there in after] == [version(there) for there in before]


def version(there: JsonObject) -> object:
    """The part of an object that changes with its desired state, and not with its status."""
    return there["metadata"].get("generation") or there["metadata"]["resourceVersion"]


@pytest.mark.parametrize(
    ("kind", "patch", "where"),
    [
        ("StatefulSet", {"spec": {"replicas": 7}}, "spec.replicas"),
        ("StatefulSet", {"spec": {"updateStrategy": {"type": "RollingUpdate"}}}, "spec.updateStrategy.type"),
        ("Service", {"spec": {"selector": {"epochmq.io/group": "x"}}}, "spec.selector.epochmq.io/group"),
        ("ConfigMap", {"metadata": {"labels": {"epochmq.io/group": None}}}, "metadata.labels"),
        ("NetworkPolicy", {"spec": {"ingress": [{}]}}, "spec.ingress"),
        ("PodDisruptionBudget", {"spec": {"maxUnavailable": 3}}, "spec.maxUnavailable"),
        ("ServiceAccount", {"metadata": {"labels": {"epochmq.io/group": None}}}, "metadata.labels"),
    ],
)
def test_a_change_is_a_difference_and_applying_reverts_it(
    cluster: Cluster, namespace: str, kind: str, patch: dict[str, Any], where: str
) -> None:
    manifest = next(one for one in made("BrokerGroup", {"replicas": 3}, namespace) if one["kind"] == kind)
    cluster.kubectl(*APPLY, stdin=json.dumps(manifest))
    name = manifest["metadata"]["name"]
    cluster.kubectl("-n", namespace, "patch", kind, name, "--type=merge", f"--patch={json.dumps(patch)}")
    (line,) = differences(manifest, stored(cluster, manifest))
    assert line.startswith(where)
    cluster.kubectl(*APPLY, stdin=json.dumps(manifest))
    assert differences(manifest, stored(cluster, manifest)) == ()


@pytest.mark.parametrize(("kind", "spec"), GROUPS)
def test_pods_are_accepted_under_the_restricted_standard(
    cluster: Cluster, namespace: str, kind: str, spec: dict[str, Any]
) -> None:
    objects = made(kind, spec, namespace)
    for manifest in objects:
        if manifest["kind"] == "ServiceAccount":
            cluster.kubectl(*APPLY, stdin=json.dumps(manifest))
    for manifest in objects:
        if manifest["kind"] == "StatefulSet":
            template = manifest["spec"]["template"]
            pod_spec = dict(template["spec"])
            volumes = [one["metadata"]["name"] for one in manifest["spec"]["volumeClaimTemplates"]]
            claims = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in volumes]
            pod_spec["volumes"] = [*pod_spec["volumes"], *claims]
            meta = {**template["metadata"], "name": "a", "namespace": namespace}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod_spec}
            output = cluster.kubectl("create", "--dry-run=server", "--filename=-", stdin=json.dumps(pod))
            assert "created" in output
