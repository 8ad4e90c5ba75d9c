"""Tests the resources on a real API server: defaults, rejections with advice, columns, scale. The same table
tests the rules in Python."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from kubernetes.client import ApiException

from epochmq_operator.crd import definition
from epochmq_operator.crd.schema import OWNED_KEYS
from epochmq_operator.resources import API_GROUP, KINDS, VERSION, BrokerGroup, rejected_changes
from epochmq_operator.resources.owned_keys import OPERATOR_OWNED_KEYS
from tests.kubernetes.testbed.cluster import Cluster

PLURALS = {kind: definition(kind)["spec"]["names"]["plural"] for kind in KINDS}


@pytest.fixture(scope="module", autouse=True)
def definitions(cluster: Cluster) -> None:
    """Installs the CustomResourceDefinitions, unless a release installed them."""
    known = cluster.kubectl("get", "crd", "--output=name")
    names = [definition(kind)["metadata"]["name"] for kind in KINDS]
    for kind, name in zip(KINDS, names, strict=True):
        if f"/{name}" not in known:
            cluster.apply(definition(kind))
    for name in names:
        cluster.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=60s")


@pytest.fixture
def api(cluster: Cluster, namespace: str) -> Api:
    """The namespace's resources."""
    return Api(cluster, namespace)


class Api:
    """One namespace's resources, through the Kubernetes library."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._custom = cluster.custom
        self._namespace = namespace

    def _place(self, kind: str) -> tuple[str, str, str, str]:
        return API_GROUP, VERSION, self._namespace, PLURALS[kind]

    def create(self, kind: str, spec: Mapping[str, Any], name: str = "a", *, dry: bool = True) -> Any:
        """Creates a resource, by default as a dry run."""
        body = {
            "apiVersion": f"{API_GROUP}/{VERSION}",
            "kind": kind,
            "metadata": {"name": name},
            **({"spec": spec} if spec else {}),
        }
        more = {"dry_run": "All"} if dry else {}
        return self._custom.create_namespaced_custom_object(*self._place(kind), body, **more)

    def replace(self, kind: str, found: Mapping[str, Any], spec: Mapping[str, Any]) -> Any:
        """Replaces a resource as a dry run."""
        body = {**found, "spec": dict(spec)}
        name = found["metadata"]["name"]
        return self._custom.replace_namespaced_custom_object(*self._place(kind), name, body, dry_run="All")


def refusal(error: ApiException) -> str:
    """The message of a rejection."""
    assert error.status == 422, error
    return str(json.loads(error.body)["message"])


THREE: dict[str, Any] = {"replicas": 3}


def test_a_minimal_resource_gets_the_models_defaults(api: Api) -> None:
    for kind, spec in (("BrokerGroup", THREE), ("ControllerGroup", {})):
        found = api.create(kind, spec)
        head = {"apiVersion": f"{API_GROUP}/{VERSION}", "kind": kind, "metadata": {"name": "a"}}
        shaped = head | {"spec": found["spec"]}
        assert KINDS[kind].model_validate(shaped) == KINDS[kind].model_validate(
            head | ({"spec": spec} if spec else {})
        )
        assert found["spec"]["storage"] == {"size": "10Gi", "retention": "Retain"}


S3: dict[str, Any] = {"url": "s3://backups/orders"}
REFUSED = [
    ("BrokerGroup", {**THREE, "mode": "DLedger", "restoreFrom": S3}, "a", "not for the mode DLedger"),
    ("BrokerGroup", {**THREE, "restoreFrom": {"url": "file:///backups/a"}}, "a", "belong together"),
    ("BrokerGroup", {**THREE, "restoreFrom": {"url": "file:///etc"}}, "a", "begins with file:///backups/"),
    ("BrokerGroup", {**THREE, "restoreFrom": {"url": "s3://a:b@c/d"}}, "a", "into a Secret"),
    ("BrokerGroup", {**THREE, "restoreFrom": {**S3, "backup": "newest"}}, "a", "spec.restoreFrom.backup"),
    (
        "BrokerGroup",
        {**THREE, "restoreFrom": {**S3, "offset": 1, "time": "2030-01-31T14:00:00Z"}},
        "a",
        "offset and time both say",
    ),
    ("BrokerGroup", {"replicas": 2, "minInSyncReplicas": 3}, "a", "minInSyncReplicas is above replicas"),
    ("BrokerGroup", {"replicas": 3, "mode": "DLedger", "hibernate": True}, "a", "remove hibernate"),
    ("BrokerGroup", {**THREE, "mode": "Slave"}, "a", "spec.mode"),
    ("BrokerGroup", {**THREE, "controllers": {"replicas": 2}}, "a", "take one fewer or one more"),
    ("BrokerGroup", {**THREE, "controllers": {"replicas": 7}}, "a", "spec.controllers.replicas"),
    ("BrokerGroup", {**THREE, "controllers": {}, "controllerGroup": "b"}, "a", "remove controllers"),
    (
        "BrokerGroup",
        {**THREE, "memberAuthentication": "Require", "controllerGroup": "b"},
        "a",
        "set it on the ControllerGroup",
    ),
    ("BrokerGroup", {**THREE, "memberAuthentication": "Sometimes"}, "a", "spec.memberAuthentication"),
    ("BrokerGroup", {**THREE, "actingMaster": True}, "a", "actingMaster is for the mode MasterSlave"),
    ("ControllerGroup", {"replicas": 2}, "a", "take one fewer or one more"),
    ("ControllerGroup", {"replicas": 4}, "a", "take one fewer or one more"),
    ("BrokerGroup", THREE, "a" * 41, "choose a name of at most 40 characters"),
    ("ControllerGroup", {}, "a" * 41, "choose a name of at most 40 characters"),
    ("BrokerGroup", THREE, "1a", "begins with a letter"),
    ("BrokerGroup", THREE, "a.b", "begins with a letter"),
    ("BrokerGroup", {"replicas": 0}, "a", "spec.replicas"),
    ("BrokerGroup", {"replicas": 10}, "a", "spec.replicas"),
    ("ControllerGroup", {"replicas": 7}, "a", "spec.replicas"),
    ("BrokerGroup", {}, "a", "spec: Required value"),
    ("BrokerGroup", {**THREE, "storage": {"size": "10"}}, "a", "spec.storage.size"),
    ("BrokerGroup", {**THREE, "zoneSpread": "Often"}, "a", "spec.zoneSpread"),
    ("BrokerGroup", {**THREE, "external": {"type": "LoadBalancer"}}, "a", "give external.host"),
    ("ControllerGroup", {"external": {"type": "NodePort"}}, "a", "give external.nodePort"),
    (
        "BrokerGroup",
        {**THREE, "external": {"type": "HostPort"}, "externalServices": True},
        "a",
        "remove one of them",
    ),
]


@pytest.mark.parametrize(("kind", "spec", "name", "message"), REFUSED)
def test_the_api_server_rejects_invalid_resources_with_advice(
    api: Api, kind: str, spec: dict[str, Any], name: str, message: str
) -> None:
    with pytest.raises(ApiException) as caught:
        api.create(kind, spec, name)
    assert message in refusal(caught.value)


def test_every_owned_key_is_rejected_by_name(api: Api) -> None:
    for kind, keys in OWNED_KEYS.items():
        spec = THREE if kind == "BrokerGroup" else {}
        for key in keys:
            value: object = True if key.startswith(("enable", "fetch", "isIn", "skip")) else 1
            with pytest.raises(ApiException) as caught:
                api.create(kind, {**spec, "config": {key: value}})
            text = refusal(caught.value)
            assert "remove" in text, key
            assert key in text
    assert set(OPERATOR_OWNED_KEYS) <= set(OWNED_KEYS["BrokerGroup"])


def test_other_keys_accept_values_of_any_type(api: Api) -> None:
    config = {"flushDiskType": "SYNC_FLUSH", "maxMessageSize": 65536, "slaveReadEnable": True, "ratio": 0.5}
    assert api.create("BrokerGroup", {**THREE, "config": config})["spec"]["config"] == config


@pytest.mark.parametrize("name", ["a" * 40, "a-b--c", "a-broker-0"])
def test_names_with_dashes_and_of_maximal_length_are_accepted(api: Api, name: str) -> None:
    assert api.create("BrokerGroup", THREE, name)["metadata"]["name"] == name


CHANGES = [
    ("BrokerGroup", {}, {"restoreFrom": S3}, "restoreFrom cannot change"),
    ("BrokerGroup", {"restoreFrom": S3}, {}, "restoreFrom cannot change"),
    ("BrokerGroup", {"restoreFrom": S3}, {"restoreFrom": {**S3, "offset": 1}}, "restoreFrom cannot change"),
    ("BrokerGroup", {"restoreFrom": S3}, {"restoreFrom": S3}, ""),
    ("BrokerGroup", {"storage": {"size": "2Gi"}}, {"storage": {"size": "1Gi"}}, "size cannot shrink"),
    ("BrokerGroup", {"storage": {"size": "1Gi"}}, {"storage": {"size": "1G"}}, "size cannot shrink"),
    ("BrokerGroup", {}, {"storage": {"size": "1Gi"}}, "size cannot shrink"),
    ("BrokerGroup", {}, {"storage": {"storageClassName": "b"}}, "storageClassName cannot change"),
    (
        "BrokerGroup",
        {"storage": {"storageClassName": "a"}},
        {"storage": {"storageClassName": "b"}},
        "storageClassName cannot change",
    ),
    ("BrokerGroup", {"storage": {"storageClassName": "a"}}, {}, "storageClassName cannot change"),
    ("BrokerGroup", {}, {"brokerName": "b"}, "brokerName cannot change"),
    ("BrokerGroup", {"brokerName": "a"}, {"brokerName": "b"}, "brokerName cannot change"),
    ("BrokerGroup", {}, {"cluster": "b"}, "cluster cannot change"),
    ("BrokerGroup", {"controllerGroup": "a"}, {"controllerGroup": "b"}, "controllerGroup cannot change"),
    ("BrokerGroup", {"controllers": {"replicas": 5}}, {}, "controllers cannot be removed"),
    ("BrokerGroup", {}, {"controllers": {"replicas": 5}}, ""),
    ("BrokerGroup", {"controllers": {}}, {"controllers": {"storage": {"size": "1Gi"}}}, "size cannot shrink"),
    (
        "BrokerGroup",
        {"controllers": {}},
        {"controllers": {"storage": {"storageClassName": "b"}}},
        "storageClassName cannot change",
    ),
    ("BrokerGroup", {"controllers": {}}, {"controllers": {"storage": {"size": "20Gi"}}}, ""),
    ("BrokerGroup", {"controllers": {"replicas": 5}}, {"controllers": {}}, ""),
    ("BrokerGroup", {}, {"mode": "MasterSlave"}, "mode cannot change"),
    ("BrokerGroup", {"mode": "MasterSlave"}, {}, "mode cannot change"),
    ("BrokerGroup", {"mode": "MasterSlave"}, {"mode": "MasterSlave", "actingMaster": False}, ""),
    ("BrokerGroup", {"mode": "DLedger"}, {"mode": "DLedger", "replicas": 5}, ""),
    ("BrokerGroup", {"mode": "DLedger"}, {"mode": "DLedger", "replicas": 4}, "take one fewer or one more"),
    ("ControllerGroup", {}, {"nameserver": {"embedded": False}}, "embedded cannot change"),
    ("ControllerGroup", {}, {"replicas": 4}, "take one fewer or one more"),
    ("BrokerGroup", {"storage": {"size": "1Gi"}}, {"storage": {"size": "1024Mi"}}, ""),
    ("BrokerGroup", {}, {"storage": {"size": "11Gi"}, "paused": True, "image": "a"}, ""),
    ("ControllerGroup", {"replicas": 3}, {"replicas": 5}, ""),
]


@pytest.mark.parametrize(("kind", "old", "new", "message"), CHANGES)
def test_changes_of_immutable_fields_are_rejected(
    api: Api, kind: str, old: dict[str, Any], new: dict[str, Any], message: str
) -> None:
    base = THREE if kind == "BrokerGroup" else {}
    found = api.create(kind, {**base, **old}, dry=False)
    if not message:
        api.replace(kind, found, {**base, **new})
        return
    with pytest.raises(ApiException) as caught:
        api.replace(kind, found, {**base, **new})
    assert message in refusal(caught.value)


def test_the_model_rejects_the_same_changes() -> None:
    head = {"apiVersion": f"{API_GROUP}/{VERSION}", "metadata": {"name": "a"}}
    for kind, old, new, message in CHANGES:
        if "take one" in message:
            continue  # the message about the new resource alone
        base = THREE if kind == "BrokerGroup" else {}
        before, after = (
            KINDS[kind].model_validate(head | {"kind": kind, "spec": {**base, **spec}}) for spec in (old, new)
        )
        lines = rejected_changes(before, after)
        assert bool(lines) == bool(message)
        assert not message or message in lines[0]


def test_columns_scale_and_conditions_work(cluster: Cluster, api: Api, namespace: str) -> None:
    api.create("BrokerGroup", {**THREE, "minInSyncReplicas": 2}, dry=False)
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "AllReplicasReady",
        "message": "",
        "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = {
        "ready": "3/3",
        "replicas": 3,
        "readyReplicas": 3,
        "selector": "epochmq.io/group=a",
        "master": "a-broker-1",
        "masterEpoch": 4,
        "syncStateSet": [1, 2, 3],
        "phase": "Ready",
        "conditions": [condition],
        "plan": {"name": "create", "anything": {"of": ["any", 1]}},
    }
    cluster.custom.patch_namespaced_custom_object_status(
        API_GROUP, VERSION, namespace, PLURALS["BrokerGroup"], "a", {"status": status}
    )
    cluster.kubectl("-n", namespace, "wait", "--for=condition=Ready", "bg/a", "--timeout=60s")
    head, row = cluster.kubectl("-n", namespace, "get", "bg", "a").splitlines()
    assert head.split() == ["NAME", "READY", "MASTER", "EPOCH", "SYNCSTATESET", "PHASE", "AGE"]
    assert row.split()[:6] == ["a", "3/3", "a-broker-1", "4", "[1,2,3]", "Ready"]
    cluster.kubectl("-n", namespace, "scale", "bg/a", "--replicas=5")
    scale = cluster.custom.get_namespaced_custom_object_scale(
        API_GROUP, VERSION, namespace, PLURALS["BrokerGroup"], "a"
    )
    assert scale["spec"]["replicas"] == 5
    assert scale["status"] == {"replicas": 3, "selector": "epochmq.io/group=a"}
    found = cluster.custom.get_namespaced_custom_object(
        API_GROUP, VERSION, namespace, PLURALS["BrokerGroup"], "a"
    )
    assert found["status"]["plan"] == status["plan"]


def test_the_model_rejects_values_that_the_schema_accepts() -> None:
    head = {"apiVersion": f"{API_GROUP}/{VERSION}", "kind": "BrokerGroup", "metadata": {"name": "a"}}
    with pytest.raises(ValueError, match="config"):
        BrokerGroup.model_validate(head | {"spec": {**THREE, "config": {"flushDiskType": [1]}}})
