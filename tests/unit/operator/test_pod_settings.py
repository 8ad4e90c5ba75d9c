"""Tests `spec.pod`, by which users set fields of Kubernetes' pods."""

from __future__ import annotations

from typing import Any

import pytest

from epochmq_operator.manifests import ManifestSettings, render_manifests
from epochmq_operator.resources import ResourceError, load_resources

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


@pytest.mark.parametrize(
    ("pod", "fault"),
    [
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
