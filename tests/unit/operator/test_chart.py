"""Tests the chart as helm renders it: rights, objects, and the operator's configuration. `helm` is taken from
the PATH or from the build of the tests on Kubernetes."""

from __future__ import annotations

import itertools
import json
import re
import runpy
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubernetes
import pytest
import yaml
from kubernetes.client import ApiException

from epochmq_operator.crd import all_definitions
from epochmq_operator.kube import config
from epochmq_operator.manifests import ManifestSettings
from tests.unit.operator.rendered_chart import (
    CHART,
    NAMESPACE,
    PROMETHEUS,
    ROOT,
    Right,
    aggregated_to,
    hook,
    kinds,
    rejection,
    rendered,
    rights,
    run,
)

DOCUMENT = (ROOT / "docs" / "kubernetes.md").read_text()


def test_helm_lint_finds_no_fault() -> None:
    found = run("lint", "--strict", str(CHART))
    assert found.returncode == 0, found.stdout


# rights


def documented() -> list[set[Right]]:
    """The rights in each table of rights in the document."""
    tables: list[set[Right]] = []
    for line in DOCUMENT.splitlines():
        if line.startswith("| API group |"):
            tables.append(set())
        row = re.match(r"\| (core|`[a-z0-9.]+`) \| (`[^|]+`[^|]*) \| ([a-z ]+) \|", line)
        if row is not None:
            group = "" if row[1] == "core" else row[1].strip("`")
            tables[-1] |= {
                (group, one, verb) for one in re.findall(r"`([^`]+)`", row[2]) for verb in row[3].split()
            }
    return tables


def test_both_scopes_grant_exactly_the_documented_rights() -> None:
    groups, leader, cluster, release = documented()
    whole = rendered("features.backups=true")
    (wide,) = kinds(whole, "ClusterRole")
    (own,) = kinds(whole, "Role")
    assert rights(wide) == groups | cluster
    assert rights(own) == leader
    (after,) = kinds(whole, "ClusterRole", "post-delete")
    assert rights(after) == release
    narrow = rendered("scope=namespaced", "watchNamespaces={shop,other}", "features.backups=true")
    roles = {one["metadata"]["namespace"]: rights(one) for one in kinds(narrow, "Role")}
    assert roles == {"shop": groups, "other": groups, NAMESPACE: leader}
    roles = {one["metadata"]["namespace"]: rights(one) for one in kinds(narrow, "Role", "post-delete")}
    assert roles == {"shop": release, "other": release}


def test_no_right_is_a_wildcard_runs_commands_in_pods_or_lists_secrets() -> None:
    for objects in (rendered(), rendered("scope=namespaced"), rendered("adminSecrets={orders-tls}")):
        roles = [one for one in objects if one["kind"] in ("Role", "ClusterRole")]
        assert roles
        for role in roles:
            for group, resource, verb in rights(role):
                assert "*" not in (group, resource, verb)
                assert resource not in (
                    "pods/exec",
                    "pods/attach",
                    "pods/portforward",
                    "pods/ephemeralcontainers",
                )
                assert resource != "secrets" or verb in ("get", "create")
            for rule in role["rules"]:
                if "secrets" in rule["resources"] and rule["verbs"] != ["create"]:
                    assert rule["resourceNames"] == ["orders-tls"]
    secrets = {
        verb
        for role in kinds(rendered(), "ClusterRole")
        for _, resource, verb in rights(role)
        if resource == "secrets"
    }
    assert secrets == {"create"}


def test_a_feature_that_is_off_has_no_rights(tmp_path: Path) -> None:
    off = [f"features.{name}=false" for name in ("audits", "restores", "topics", "users", "replaceReplicas")]
    assert "brokergroupbackups" not in {
        resource for _, resource, _ in rights(kinds(rendered(), "ClusterRole")[0])
    }
    (wide,) = kinds(rendered(*off), "ClusterRole")
    granted = rights(wide)
    resources = {resource.partition("/")[0] for _, resource, _ in granted}
    optional = {"brokergroupaudits", "brokergroupbackups", "topics", "users"}
    optional |= {"roles", "rolebindings", "volumesnapshots", "nodes"}
    assert not optional & resources
    assert not {("", "persistentvolumeclaims", verb) for verb in ("create", "delete")} & granted
    assert ("", "pods", "create") not in granted
    assert loaded(tmp_path / "off", *off).kinds == ("BrokerGroup", "ControllerGroup")
    (wide,) = kinds(rendered("features.audits=false"), "ClusterRole")
    needed = {("", "pods", "create"), ("", "pods", "patch"), ("", "persistentvolumeclaims", "create")}
    assert needed <= rights(wide), "restores need no other feature"
    (wide,) = kinds(rendered("features.users=false"), "ClusterRole")
    assert ("epochmq.io", "topics/status", "patch") in rights(wide)
    assert not any("users" in resource for _, resource, _ in rights(wide))


def reading(role: dict[str, Any]) -> dict[str, Any]:
    """The rule by which the operator reads Secrets."""
    (rule,) = (one for one in role["rules"] if one["resources"] == ["secrets"] and "get" in one["verbs"])
    return rule  # type: ignore[no-any-return]


def test_secrets_of_users_are_read_by_name_and_never_listed() -> None:
    (wide,) = kinds(rendered("readSecrets={shop,orders-auth}"), "ClusterRole")
    rule = reading(wide)
    assert (rule["resourceNames"], rule["verbs"]) == (["shop", "orders-auth"], ["get"])
    (wide,) = kinds(rendered("readSecrets={*}"), "ClusterRole")
    rule = reading(wide)
    assert (rule.get("resourceNames"), rule["verbs"]) == (None, ["get"])


def test_kubernetes_own_roles_get_the_resources() -> None:
    def granted(*values: str) -> list[tuple[set[str], set[Right]]]:
        return [(to, rights(one)) for one in rendered(*values) if (to := aggregated_to(one))]

    (editors, edit), (viewers, view) = granted()
    assert (editors, viewers) == ({"admin", "edit"}, {"view"})
    plurals = {one["spec"]["names"]["plural"] for one in all_definitions()}
    assert view == {("epochmq.io", plural, verb) for plural in plurals for verb in ("get", "list", "watch")}
    assert {("epochmq.io", plural, "create") for plural in plurals} <= edit
    assert ("epochmq.io", "brokergroups/scale", "patch") in edit
    assert not {resource for _, resource, _ in edit if resource.endswith("/status")}
    assert granted("aggregatedRoles=false") == []
    assert granted("scope=namespaced", "crds.install=false") == []


def test_a_namespaced_operator_needs_no_cluster_role() -> None:
    objects = rendered("scope=namespaced", "crds.install=false", *PROMETHEUS)
    assert {one["kind"] for one in objects if "namespace" not in one["metadata"]} == set()
    (own,) = {one["metadata"]["namespace"] for one in kinds(objects, "RoleBinding")}
    assert own == NAMESPACE
    (monitor,) = (one for one in kinds(objects, "PodMonitor") if one["metadata"]["name"].endswith("-groups"))
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": [NAMESPACE]}


def test_controllers_in_use_are_protected_in_the_managed_namespaces() -> None:
    (wide,) = kinds(rendered(), "ValidatingAdmissionPolicy")
    assert "namespaceSelector" not in wide["spec"]["matchConstraints"]
    assert f"system:serviceaccount:{NAMESPACE}:epochmq" in wide["spec"]["matchConditions"][0]["expression"]
    narrow = rendered("scope=namespaced", "watchNamespaces={shop}")
    (policy,) = kinds(narrow, "ValidatingAdmissionPolicy")
    (served,) = policy["spec"]["matchConstraints"]["namespaceSelector"]["matchExpressions"]
    assert served["values"] == ["shop"]
    (binding,) = kinds(narrow, "ValidatingAdmissionPolicyBinding")
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert not kinds(rendered("protectControllers=false"), "ValidatingAdmissionPolicy")


def test_a_cluster_without_admission_policies_is_rejected() -> None:
    """Kubernetes has ValidatingAdmissionPolicy v1 from 1.30 on."""
    for version, accepted in (("1.29.9", False), ("1.30.0", True)):
        found = run("template", "epochmq", str(CHART), "-n", NAMESPACE, "--kube-version", version)
        assert (found.returncode == 0) is accepted, found.stderr
    assert "1.30" in DOCUMENT


def test_every_role_is_bound_to_the_operator() -> None:
    for values in ((), ("scope=namespaced", "watchNamespaces={shop}")):
        objects = rendered(*values)
        (account,) = kinds(objects, "ServiceAccount")
        bound = {
            (one["metadata"].get("namespace"), one["roleRef"]["kind"], one["roleRef"]["name"])
            for one in (*kinds(objects, "RoleBinding"), *kinds(objects, "ClusterRoleBinding"))
            if one["subjects"]
            == [{"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": NAMESPACE}]
        }
        assert bound == {
            (one["metadata"].get("namespace"), one["kind"], one["metadata"]["name"])
            for one in (*kinds(objects, "Role"), *kinds(objects, "ClusterRole"))
        }


# objects


def test_the_release_installs_the_definitions_and_keeps_them() -> None:
    found = {one["metadata"]["name"]: one for one in kinds(rendered(), "CustomResourceDefinition")}
    for wanted in all_definitions():
        there = found.pop(wanted["metadata"]["name"])
        assert there["spec"] == wanted["spec"]
        assert there["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert found == {}
    assert kinds(rendered("crds.install=false"), "CustomResourceDefinition") == []
    assert "annotations" not in kinds(rendered("crds.keep=false"), "CustomResourceDefinition")[0]["metadata"]


def test_operator_pods_are_restricted_and_prefer_different_nodes() -> None:
    objects = rendered()
    (deployment,), (test,) = kinds(objects, "Deployment"), kinds(objects, "Pod", "test")
    assert deployment["spec"]["replicas"] == 2
    (job,) = kinds(objects, "Job", "post-delete")
    for spec in (deployment["spec"]["template"]["spec"], job["spec"]["template"]["spec"], test["spec"]):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
    assert "podAntiAffinity" in deployment["spec"]["template"]["spec"]["affinity"]
    assert kinds(objects, "PodDisruptionBudget")[0]["spec"]["maxUnavailable"] == 1
    assert kinds(rendered("replicas=1"), "PodDisruptionBudget") == []


def test_all_pods_run_as_the_given_user_or_as_the_one_that_the_cluster_assigns(tmp_path: Path) -> None:
    def users(*values: str) -> set[Any]:
        objects = rendered(*values)
        (deployment,), (job,) = kinds(objects, "Deployment"), kinds(objects, "Job", "post-delete")
        pods = (deployment["spec"]["template"]["spec"], job["spec"]["template"]["spec"])
        settings = loaded(tmp_path / "users", *values).settings(NAMESPACE)
        contexts = [*(pod["securityContext"] for pod in pods), settings.pod_security]
        return {context.get(key) for context in contexts for key in ("runAsUser", "runAsGroup", "fsGroup")}

    assert users() == {10001}
    assert users("podUser=1000680000") == {1000680000}
    assert users("podUser=assigned") == {None}
    (deployment,) = kinds(rendered("podSecurityContext.supplementalGroups={7}"), "Deployment")
    context = deployment["spec"]["template"]["spec"]["securityContext"]
    assert (context["supplementalGroups"], context["runAsNonRoot"]) == ([7], True)


def test_an_image_by_digest_and_more_environment() -> None:
    digest = "sha256:" + "0123456789abcdef" * 4
    objects = rendered(f"image.digest={digest}", "extraEnv[0].name=A", "extraEnv[0].value=b")
    (deployment,) = kinds(objects, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"epochmq/operator@{digest}"
    assert {"name": "A", "value": "b"} in container["env"]
    assert "digest" in rejection("image.digest=latest")


def test_only_monitoring_reaches_the_operators_port() -> None:
    (policy,) = kinds(rendered("monitoring.namespaces={watch}"), "NetworkPolicy")
    (deployment,) = kinds(rendered(), "Deployment")
    selected = policy["spec"]["podSelector"]["matchLabels"].items()
    assert selected <= deployment["spec"]["template"]["metadata"]["labels"].items()
    (rule,) = policy["spec"]["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": 8080}]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "watch"}}}]
    (policy,) = kinds(rendered(), "NetworkPolicy")
    assert policy["spec"]["ingress"] == []
    assert kinds(rendered("networkPolicies=false"), "NetworkPolicy") == []


def test_the_test_pod_has_the_operators_rights_and_no_others() -> None:
    (test,) = kinds(rendered(), "Pod", "test")
    assert test["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert test["spec"]["serviceAccountName"] == kinds(rendered(), "ServiceAccount")[0]["metadata"]["name"]
    (container,) = test["spec"]["containers"]
    compile(container["args"][0], "test.py", "exec")
    assert container["args"][0].strip() == (CHART / "files" / "test.py").read_text().strip()


def test_uninstalling_removes_deletion_guards_unless_turned_off() -> None:
    (job,) = kinds(rendered("scope=namespaced", "watchNamespaces={shop,other}"), "Job", "post-delete")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["operator", "--release", "--set", "namespaces=shop,other"]
    assert [one for one in rendered("releaseGuards=false") if hook(one) == "post-delete"] == []


def test_names_are_valid_for_any_release_name() -> None:
    for one in rendered(release="r" * 53):
        long = "Role" in one["kind"] or "Policy" in one["kind"]
        assert len(one["metadata"]["name"]) <= (253 if long else 63)


# the operator's configuration


def loaded(path: Path, *values: str) -> config.OperatorConfig:
    (found,) = kinds(rendered(*values), "ConfigMap")
    path.write_text(found["data"]["operator.conf"])
    return config.load_config(str(path))


def test_the_operator_accepts_the_rendered_configuration(tmp_path: Path) -> None:
    plain = loaded(tmp_path / "a")
    assert plain.namespaces == []
    assert plain.settings(NAMESPACE) == ManifestSettings(
        "epochmq/broker:0.1.0", "epochmq/controller:0.1.0", NAMESPACE, audit_image="epochmq/spark:0.1.0"
    )
    other = loaded(
        tmp_path / "b",
        "scope=namespaced",
        "watchNamespaces={shop,other}",
        "groupImages.broker=mine:1",
        "image.tag=v2",
        "imagePullSecrets={pull}",
        "networkPolicies=false",
        "monitoring.namespaces={watch}",
        "logLevel=debug",
    )
    assert other.namespaces == ["shop", "other"]
    assert other.log_level == "debug"
    assert other.settings(NAMESPACE) == ManifestSettings(
        "mine:1",
        "epochmq/controller:v2",
        NAMESPACE,
        monitoring_namespaces=("watch",),
        network_policies=False,
        image_pull_secrets=("pull",),
        audit_image="epochmq/spark:v2",
    )


def test_the_lease_probes_and_labels_are_those_that_the_operator_uses(tmp_path: Path) -> None:
    objects = rendered(release="other")
    (deployment,) = kinds(objects, "Deployment")
    template = deployment["spec"]["template"]
    (found,) = kinds(objects, "ConfigMap")
    (tmp_path / "c").write_text(found["data"]["operator.conf"])
    loaded = config.load_config(str(tmp_path / "c"))
    (role,) = kinds(objects, "Role")
    assert [rule["resourceNames"] for rule in role["rules"] if "resourceNames" in rule] == [
        [loaded.lease_name]
    ]
    (container,) = template["spec"]["containers"]
    assert [port["containerPort"] for port in container["ports"]] == [loaded.metrics_port]
    assert loaded.operator_labels.items() <= template["metadata"]["labels"].items()
    assert container["args"] == ["operator", "--config", "/etc/epochmq/operator.conf"]


def test_a_changed_configuration_restarts_the_operators() -> None:
    def checksum(*values: str) -> str:
        (deployment,) = kinds(rendered(*values), "Deployment")
        return str(deployment["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    assert checksum() != checksum("logLevel=debug")


# values


def test_unknown_values_are_rejected_by_name() -> None:
    assert "replicas" in rejection("replicas=0")
    assert "scope" in rejection("scope=some")
    assert "replicaCount" in rejection("replicaCount=3")
    assert "image" in rejection("image.name=a")
    assert "watchNamespaces needs scope: namespaced" in rejection("watchNamespaces={a}")


def test_the_schema_has_exactly_the_values() -> None:
    def keys(schema: Any, values: Any, path: str = "") -> None:
        for name, part in schema.get("properties", {}).items():
            if name in ("global", "nameOverride", "fullnameOverride"):
                continue
            assert name in values, f"{path}{name}"
            if "properties" in part:
                keys(part, values[name], f"{path}{name}.")
        assert set(values) <= set(schema["properties"]), path

    schema = json.loads((CHART / "values.schema.json").read_text())
    keys(schema, yaml.safe_load((CHART / "values.yaml").read_text()))


class StrictLoader(yaml.SafeLoader):
    """Rejects a mapping that has a key twice, as Kubernetes does."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(keys) == len(set(keys)), keys
        return super().construct_mapping(node, deep)


def test_labels_and_annotations_of_users_neither_repeat_nor_replace_those_of_the_chart() -> None:
    found = run(
        "template",
        "epochmq",
        str(CHART),
        "--kube-version",
        "1.34.4",
        "--set",
        r"podLabels.app\.kubernetes\.io/name=mine,podLabels.team=orders",
        "--set",
        r"podAnnotations.checksum/config=mine,podAnnotations.note=a",
    )
    assert found.returncode == 0, found.stderr
    documents = list(yaml.load_all(found.stdout, Loader=StrictLoader))
    (deployment,) = kinds([one for one in documents if one], "Deployment")
    meta = deployment["spec"]["template"]["metadata"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= meta["labels"].items()
    assert meta["labels"]["team"] == "orders"
    assert meta["annotations"]["note"] == "a"
    assert len(meta["annotations"]["checksum/config"]) == 64


# images


def test_one_registry_is_that_of_all_images_which_the_values_do_not_name() -> None:
    objects = rendered(
        "image.registry=registry.example.com/mirror/", "groupImages.audit=other.example.com/spark:1"
    )
    prefix = "registry.example.com/mirror/epochmq/"
    pods = [
        one["spec"] if one["kind"] == "Pod" else one["spec"]["template"]["spec"]
        for one in objects
        if one["kind"] in ("Deployment", "Job", "Pod")
    ]
    assert len(pods) == 3
    for pod in pods:
        assert [one["image"].startswith(f"{prefix}operator:") for one in pod["containers"]] == [True]
    text = operator_configuration(objects)
    assert text["brokerImage"].startswith(f"{prefix}broker:")
    assert text["controllerImage"].startswith(f"{prefix}controller:")
    assert text["auditImage"] == "other.example.com/spark:1"
    digest = f"sha256:{'0' * 64}"
    (deployment,) = kinds(rendered("image.registry=a.example.com", f"image.digest={digest}"), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"a.example.com/epochmq/operator@{digest}"


def operator_configuration(objects: list[dict[str, Any]]) -> dict[str, str]:
    """The operator's configuration by key."""
    (found,) = (one for one in objects if "operator.conf" in (one.get("data") or {}))
    lines = found["data"]["operator.conf"].splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


# helm test


class ClusterUnderTest:
    """The API server that `helm test` asks. `watched`: the operator sees new resources."""

    def __init__(self, *, watched: bool) -> None:
        self.watched = watched
        self.created: list[dict[str, Any]] = []
        self.deleted: list[str] = []

    def list_namespaced_custom_object(self, *place: str) -> dict[str, Any]:
        return {"items": []}

    def create_namespaced_custom_object(self, *place: Any, dry_run: str = "") -> None:
        if dry_run:
            error = ApiException(status=422)
            error.body = json.dumps({"message": "take one fewer or one more"})
            raise error
        self.created.append(place[-1])

    def get_namespaced_custom_object(self, *place: str) -> dict[str, Any]:
        return {"status": {"observedGeneration": 1}} if self.watched else {}

    def delete_namespaced_custom_object(self, *place: str) -> None:
        self.deleted.append(place[-1])

    def read_namespaced_lease(self, *place: str) -> SimpleNamespace:
        spec = SimpleNamespace(holder_identity="a", renew_time=datetime.now(UTC))
        return SimpleNamespace(spec=spec)


def helm_test(monkeypatch: pytest.MonkeyPatch, tested: ClusterUnderTest) -> None:
    """What `helm test` runs."""
    monkeypatch.setattr(kubernetes.config, "load_incluster_config", lambda: None)
    for api in ("CustomObjectsApi", "CoordinationV1Api"):
        monkeypatch.setattr(kubernetes.client, api, lambda: tested)
    for variable in ("NAMESPACE", "LEASE", "LEASE_NAMESPACE"):
        monkeypatch.setenv(variable, "trade")
    clock = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    runpy.run_path(str(CHART / "files" / "test.py"))


@pytest.mark.parametrize("watched", [True, False])
def test_helm_test_fails_if_the_active_operator_sees_no_new_resource(
    monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    tested = ClusterUnderTest(watched=watched)
    if watched:
        helm_test(monkeypatch, tested)
    else:
        with pytest.raises(SystemExit, match="an operator is active, but has not seen a new ControllerGroup"):
            helm_test(monkeypatch, tested)
    (created,) = tested.created
    assert created["spec"]["paused"] is True
    assert tested.deleted == [created["metadata"]["name"]]
