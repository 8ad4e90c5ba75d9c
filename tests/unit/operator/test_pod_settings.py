"""Tests `spec.pod`, by which users set fields of Kubernetes' pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from epochmq_operator.manifests import ManifestSettings, render_manifests
from epochmq_operator.manifests.names import COMPONENT_LABEL
from epochmq_operator.plans.own_controllers import own_controllers
from epochmq_operator.resources import ControllerGroup, ResourceError, load_resources
from epochmq_operator.resources.pod_settings import OWN_DIRECTORIES, OWN_VOLUMES
from tests.unit.operator.plans import updated_groups

SETTINGS = ManifestSettings("epochmq/broker:1", "epochmq/controller:1", "epochmq-system")
TERM = {"topologyKey": "rack", "labelSelector": {"matchLabels": {"app": "batch"}}}


def pod_spec(kind: str = "ControllerGroup", pod: str = "{}", spread: str = "Required") -> dict[str, Any]:
    """The pods' spec of a group with these settings."""
    text = (
        f"apiVersion: epochmq.io/v1alpha1\nkind: {kind}\nmetadata: {{name: orders}}\n"
        f"spec: {{hostSpread: {spread}, pod: {pod}}}\n"
    )
    (group,) = load_resources([("a.yaml", text)]).controller_groups
    (found,) = (one for one in render_manifests(group, None, SETTINGS) if one["kind"] == "StatefulSet")
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def test_without_settings_the_template_has_none_of_the_fields() -> None:
    spec = pod_spec(spread="None")
    assert not {"priorityClassName", "affinity"} & spec.keys()
    assert [one["name"] for one in spec["containers"][0]["env"]] == ["POD_NAME"]
    assert spec["securityContext"] == SETTINGS.pod_security


def test_the_settings_are_in_the_template() -> None:
    spec = pod_spec(
        pod="{priorityClassName: high, env: [{name: TZ, value: UTC}, {name: EMPTY}], "
        "securityContext: {runAsUser: 7, supplementalGroups: [8, 9]}}"
    )
    assert spec["priorityClassName"] == "high"
    main, sidecar = spec["containers"]
    assert main["env"][1:] == [{"name": "TZ", "value": "UTC"}, {"name": "EMPTY", "value": ""}]
    assert [one["name"] for one in sidecar["env"]] == ["POD_NAME"]
    expected = {**SETTINGS.pod_security, "runAsUser": 7, "supplementalGroups": [8, 9]}
    assert spec["securityContext"] == expected


def test_affinity_is_added_to_what_keeps_the_pods_apart() -> None:
    term = "{topologyKey: rack, labelSelector: {matchLabels: {app: batch}}}"
    terms = f"{{requiredDuringSchedulingIgnoredDuringExecution: [{term}]}}"
    affinity = f"{{affinity: {{nodeAffinity: {{x: {{}}}}, podAntiAffinity: {terms}}}}}"
    found = pod_spec(pod=affinity)["affinity"]
    assert found["nodeAffinity"] == {"x": {}}
    own, theirs = found["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert own["topologyKey"] == "kubernetes.io/hostname"
    assert theirs == TERM
    alone = pod_spec(pod=affinity, spread="None")["affinity"]["podAntiAffinity"]
    assert alone == {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]}


MORE = (
    "{imagePullSecrets: [mine], sidecarResources: {limits: {memory: 99Mi}}, "
    "topologySpreadConstraints: [{topologyKey: rack, whenUnsatisfiable: DoNotSchedule}], "
    "volumes: [{name: extra, configMap: {name: words}}], "
    "volumeMounts: [{name: extra, mountPath: /opt/words, readOnly: true}]}"
)
FIELDS = (
    "{image: mine:1, resources: {limits: {cpu: 2}}, nodeSelector: {disk: fast}, zoneSpread: None, "
    f"tolerations: [{{key: spot}}], pod: {MORE}}}"
)


def rendered_specs(text: str) -> dict[str, dict[str, Any]]:
    """The pods' specs of all groups in this file, by the name of their StatefulSet, as the operator renders
    them: a broker group has its own controllers."""
    documents = load_resources([("a.yaml", text)])
    groups: list[Any] = [*documents.controller_groups]
    controllers = documents.controller_groups[0] if documents.controller_groups else None
    manifests = [one for group in groups for one in render_manifests(group, None, SETTINGS)]
    for group in documents.broker_groups:
        own = ControllerGroup.model_validate(own_controllers(group)) if controllers is None else controllers
        manifests += [*render_manifests(own, None, SETTINGS), *render_manifests(group, own, SETTINGS)]
    return {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]
        for one in manifests
        if one["kind"] == "StatefulSet"
    }


def document(kind: str, spec: str) -> str:
    """A file with one resource."""
    return f"apiVersion: epochmq.io/v1alpha1\nkind: {kind}\nmetadata: {{name: orders}}\nspec: {spec}\n"


SPECS = {
    "orders-broker": document("BrokerGroup", f"{{replicas: 1, {FIELDS[1:-1]}}}"),
    "orders-controller": document(
        "BrokerGroup", f"{{replicas: 1, controllers: {{replicas: 3, {FIELDS[1:-1]}}}}}"
    ),
    "orders-nameserver": document("ControllerGroup", f"{{nameserver: {{embedded: false, pods: {FIELDS}}}}}"),
}


@pytest.mark.parametrize("component", SPECS)
def test_brokers_own_controllers_and_nameservers_take_the_same_fields(component: str) -> None:
    found = rendered_specs(SPECS[component])
    spec = found.pop(component)
    main, sidecar = spec["containers"]
    assert (main["image"], sidecar["image"]) == ("mine:1", "mine:1")
    assert (main["resources"], sidecar["resources"]) == (
        {"limits": {"cpu": "2"}},
        {"limits": {"memory": "99Mi"}},
    )
    assert spec["imagePullSecrets"] == [{"name": "mine"}]
    assert (spec["nodeSelector"], spec["tolerations"][0]["key"]) == ({"disk": "fast"}, "spot")
    (constraint,) = spec["topologySpreadConstraints"]
    labels = constraint.pop("labelSelector")["matchLabels"]
    assert labels[COMPONENT_LABEL] == component.rpartition("-")[2]
    assert constraint == {"topologyKey": "rack", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    assert spec["volumes"][-1] == {"name": "extra", "configMap": {"name": "words"}}
    mount = {"name": "extra", "mountPath": "/opt/words", "readOnly": True}
    assert mount in main["volumeMounts"]
    assert mount not in sidecar["volumeMounts"]
    for other in found.values():
        assert (other["containers"][0]["image"], "nodeSelector" in other) != ("mine:1", True)


def test_own_controllers_have_volumes_as_the_group_says() -> None:
    text = document(
        "BrokerGroup", "{replicas: 1, controllers: {storage: {size: 3Gi, storageClassName: fast}}}"
    )
    (group,) = load_resources([("a.yaml", text)]).broker_groups
    assert own_controllers(group)["spec"] == {
        "replicas": 3,
        "storage": {"size": "3Gi", "storageClassName": "fast"},
    }


def test_secrets_for_images_are_added_to_those_of_the_operator() -> None:
    settings = replace(SETTINGS, image_pull_secrets=("shared", "mine"))
    text = document("ControllerGroup", "{pod: {imagePullSecrets: [mine, more]}}")
    (group,) = load_resources([("a.yaml", text)]).controller_groups
    (found,) = (one for one in render_manifests(group, None, settings) if one["kind"] == "StatefulSet")
    secrets = found["spec"]["template"]["spec"]["imagePullSecrets"]
    assert [one["name"] for one in secrets] == ["shared", "mine", "more"]


def test_a_changed_field_of_own_controllers_restarts_them_one_by_one() -> None:
    api = updated_groups.ready_group(controllers={"replicas": 3})
    api.put(
        "BrokerGroup", "orders", {"replicas": 3, "controllers": {"replicas": 3, "nodeSelector": {"a": "b"}}}
    )
    api.settle()
    assert sorted(updated_groups.restarts(api)) == [f"orders-controller-{n}" for n in range(3)]
    for pod in updated_groups.pods_of(api, updated_groups.CONTROLLERS):
        assert pod["spec"]["nodeSelector"] == {"a": "b"}
    for pod in updated_groups.pods_of(api, updated_groups.BROKERS):
        assert "nodeSelector" not in pod["spec"]


@pytest.mark.parametrize(
    ("pod", "fault"),
    [
        (
            "{volumes: [{name: config, emptyDir: {}}]}",
            "spec.pod.volumes: config: the operator makes it, expected another name",
        ),
        (
            "{volumes: [{name: a, emptyDir: {}}, {name: a, emptyDir: {}}]}",
            "spec.pod.volumes: a: it is given twice, expected another name",
        ),
        ("{volumes: [{name: a, hostPath: {path: /}}]}", "spec.pod.volumes.0.hostPath: unknown field"),
        ("{volumes: [{name: a}]}", "expected a name and one source: configMap, secret, projected"),
        (
            "{volumes: [{name: a, emptyDir: {}, secret: {}}]}",
            "expected a name and one source: configMap, secret, projected",
        ),
        (
            "{volumeMounts: [{name: store, mountPath: /x}]}",
            "spec.pod.volumeMounts: store: expected the name of a volume in volumes",
        ),
        (
            "{volumes: [{name: a, emptyDir: {}}], volumeMounts: [{name: a, mountPath: /run/epochmq/b}]}",
            "spec.pod.volumeMounts: /run/epochmq/b: the operator mounts /run/epochmq, expected a directory "
            "apart from it",
        ),
        (
            "{volumes: [{name: a, emptyDir: {}}], volumeMounts: [{name: a, mountPath: /etc/../var}]}",
            "spec.pod.volumeMounts: /etc/../var: the operator mounts /var/lib/epochmq",
        ),
        (
            "{volumes: [{name: a, emptyDir: {}}], volumeMounts: [{name: a, mountPath: /x}, "
            "{name: a, mountPath: /x/}]}",
            "spec.pod.volumeMounts: /x/: it is given twice",
        ),
        (
            "{topologySpreadConstraints: [{topologyKey: topology.kubernetes.io/zone}]}",
            "spec.pod.topologySpreadConstraints: topology.kubernetes.io/zone, expected another topologyKey",
        ),
        (
            "{topologySpreadConstraints: [{topologyKey: a}, {topologyKey: a}]}",
            "spec.pod.topologySpreadConstraints: a: it is given twice",
        ),
        (
            "{priorityClassName: High}",
            'spec.pod.priorityClassName: "High", expected the name of a PriorityClass',
        ),
        ("{affinity: {podAffinities: {}}}", "spec.pod.affinity: a mapping, expected mappings nodeAffinity"),
        ("{env: [{name: POD_IP}]}", "spec.pod.env: POD_IP: the operator sets it, expected another name"),
        ("{env: [{name: A}, {name: A}]}", "spec.pod.env: A: it is given twice, expected another name"),
        ("{env: [{name: a-b}]}", 'spec.pod.env.0.name: "a-b", expected'),
        (
            "{securityContext: {runAsUser: 0}}",
            "spec.pod.securityContext.runAsUser: 0, expected a whole number",
        ),
        ("{securityContext: {privileged: true}}", "spec.pod.securityContext.privileged: unknown field"),
    ],
)
def test_invalid_settings_are_rejected_by_the_field(pod: str, fault: str) -> None:
    with pytest.raises(ResourceError) as caught:
        pod_spec(pod=pod)
    assert fault in str(caught.value)


def test_embedded_nameservers_have_no_pods_of_their_own() -> None:
    with pytest.raises(ResourceError, match=r"spec.nameserver.pods: expected no such field for embedded"):
        load_resources([("a.yaml", document("ControllerGroup", "{nameserver: {pods: {image: a}}}"))])


def test_the_directories_and_volumes_of_the_operator_are_those_that_are_refused() -> None:
    """Everything that the templates mount is in one of the refused directories, by a refused name."""
    text = document(
        "BrokerGroup",
        "{replicas: 1, clientTlsSecret: a, authSecret: b, admin: {tokenSecret: c, tlsSecret: d}}",
    )
    for spec in rendered_specs(text).values():
        for container in spec["containers"]:
            for mount in container["volumeMounts"]:
                assert mount["name"] in OWN_VOLUMES
                assert any(
                    mount["mountPath"].startswith(f"{one}/") or mount["mountPath"] == one
                    for one in OWN_DIRECTORIES
                )
