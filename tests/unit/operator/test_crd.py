"""Tests the CustomResourceDefinitions, which are generated from the loader's models. The tests on Kubernetes
give them to a real API server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from epochmq_operator.crd import __main__ as generator
from epochmq_operator.crd import all_definitions, definition
from epochmq_operator.crd.status import CONDITION_TYPES, REASON
from epochmq_operator.plans.conditions import ConditionType
from epochmq_operator.resources import KINDS, RULES, BrokerGroup, ControllerGroup, rejected_changes
from tests.unit.operator.definition_parts import parts

ROOT = Path(__file__).resolve().parents[3]
MESSAGE_WORDS = ("choose", "remove", "restore it", "lower it", "give", "take one")


def version(kind: str) -> Mapping[str, Any]:
    (found,) = definition(kind)["spec"]["versions"]
    return found  # type: ignore[no-any-return]


def schema(kind: str) -> Mapping[str, Any]:
    return version(kind)["schema"]["openAPIV3Schema"]  # type: ignore[no-any-return]


def test_the_generated_files_are_up_to_date() -> None:
    assert generator.stale(ROOT) == []
    assert generator.stale(ROOT / "nowhere") == list(generator.made())


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_is_structural(kind: str) -> None:
    for path, part in parts(schema(kind)):
        assert "type" in part or part.get("x-kubernetes-int-or-string"), path
        assert not {"$ref", "title", "patternProperties", "const", "oneOf", "nullable"} & part.keys(), path
        assert not ("properties" in part and "additionalProperties" in part), path


@pytest.mark.parametrize("kind", KINDS)
def test_every_user_input_is_bounded(kind: str) -> None:
    for path, part in parts(schema(kind)["properties"]["spec"]):
        if part.get("type") == "string":
            assert "maxLength" in part or "enum" in part, path
        if part.get("type") == "array":
            assert "maxItems" in part, path
        if part.get("type") == "object" and "properties" not in part:
            assert "maxProperties" in part, path


@pytest.mark.parametrize("kind", KINDS)
def test_every_rule_is_at_its_fields_and_says_what_to_do(kind: str) -> None:
    stand = {
        (path.removeprefix("."), rule["rule"]): rule["message"]
        for path, part in parts(schema(kind))
        for rule in part.get("x-kubernetes-validations", ())
    }
    assert stand == {(rule.path, rule.cel): rule.message for rule in RULES[kind]}
    assert [text for text in stand.values() if not any(word in text for word in MESSAGE_WORDS)] == []
    assert max(len(text) for text in stand.values()) < 2048


def filled(part: Mapping[str, Any], value: Any) -> Any:
    """The value with the schema's defaults, as the API server fills them in."""
    if not isinstance(value, dict) or "properties" not in part:
        return value
    found = dict(value)
    for name, inner in part["properties"].items():
        if name not in found and "default" in inner:
            found[name] = inner["default"]
        if name in found:
            found[name] = filled(inner, found[name])
    return found


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("BrokerGroup", {"spec": {"replicas": 3}}),
        ("ControllerGroup", {}),
        ("BrokerGroup", {"spec": {"replicas": 1, "storage": {"size": "1Gi"}, "resources": {}}}),
        ("ControllerGroup", {"spec": {"nameserver": {}, "tolerations": [{"key": "a"}]}}),
    ],
)
def test_the_defaults_of_the_schema_are_those_of_the_model(kind: str, written: dict[str, Any]) -> None:
    head = {"apiVersion": "epochmq.io/v1alpha1", "kind": kind, "metadata": {"name": "a"}}
    there = filled(schema(kind), head | written)
    assert KINDS[kind].model_validate(there) == KINDS[kind].model_validate(head | written)
    model = KINDS[kind].model_validate(there).model_dump(by_alias=True, mode="json", exclude_none=True)
    unfilled = {
        name: value
        for name, value in model["spec"].items()
        if name not in there["spec"] and value not in ({}, [])
    }
    assert unfilled == {}


@pytest.mark.parametrize("kind", [one["spec"]["names"]["kind"] for one in all_definitions()])
def test_no_default_has_a_null(kind: str) -> None:
    """The API server rejects a definition with one."""
    (found,) = (one for one in all_definitions() if one["spec"]["names"]["kind"] == kind)
    (version,) = found["spec"]["versions"]
    defaults = [
        part["default"] for _, part in parts(version["schema"]["openAPIV3Schema"]) if "default" in part
    ]
    assert not [default for default in defaults if "null" in json.dumps(default)]


def test_a_broker_group_requires_replicas_and_a_controller_group_nothing() -> None:
    assert schema("BrokerGroup")["required"] == ["spec"]
    assert schema("BrokerGroup")["properties"]["spec"]["required"] == ["replicas"]
    assert "required" not in schema("ControllerGroup")
    assert "required" not in schema("ControllerGroup")["properties"]["spec"]


def test_kubectl_get_shows_the_expected_columns() -> None:
    def columns(kind: str) -> list[str]:
        return [one["name"] for one in version(kind)["additionalPrinterColumns"] if not one.get("priority")]

    assert columns("BrokerGroup") == ["Ready", "Master", "Epoch", "SyncStateSet", "Phase", "Age"]
    assert columns("ControllerGroup") == ["Ready", "Leader", "Term", "Phase", "Age"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_column_and_the_scale_subresource_use_existing_fields(kind: str) -> None:
    known = {path for path, _ in parts(schema(kind))} | {".metadata.creationTimestamp", REASON["jsonPath"]}
    scale = version(kind)["subresources"]["scale"]
    paths = [one["jsonPath"] for one in version(kind)["additionalPrinterColumns"]]
    assert {*paths, *scale.values()} <= known


def test_the_documented_conditions_are_those_of_the_operator() -> None:
    assert list(CONDITION_TYPES) == [str(kind) for kind in ConditionType]


def test_the_yaml_file_equals_the_definition() -> None:
    wanted = all_definitions()
    texts = [text for path, text in generator.made().items() if path.endswith(".yaml")]
    assert [yaml.safe_load(text) for text in texts] == wanted


# changes, by the rules in Python


def broker_group(**spec: Any) -> BrokerGroup:
    head = {"apiVersion": "epochmq.io/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": "a"}}
    return BrokerGroup.model_validate(head | {"spec": {"replicas": 3, **spec}})


def controller_group(**spec: Any) -> ControllerGroup:
    head = {"apiVersion": "epochmq.io/v1alpha1", "kind": "ControllerGroup", "metadata": {"name": "a"}}
    return ControllerGroup.model_validate(head | {"spec": spec})


@pytest.mark.parametrize(
    ("old", "new", "rejected"),
    [
        (broker_group(), broker_group(replicas=5, paused=True, image="a"), []),
        (broker_group(), broker_group(storage={"size": "20Gi"}), []),
        (broker_group(storage={"size": "1Gi"}), broker_group(storage={"size": "1024Mi"}), []),
        (broker_group(storage={"size": "1Gi"}), broker_group(storage={"size": "1G"}), ["spec.storage: size"]),
        (
            broker_group(),
            broker_group(storage={"storageClassName": "fast"}),
            ["spec.storage: storageClassName"],
        ),
        (broker_group(), broker_group(brokerName="b"), ["spec: brokerName"]),
        (broker_group(), broker_group(cluster="b"), ["spec: cluster"]),
        (broker_group(controllerGroup="b"), broker_group(), ["spec: controllerGroup"]),
        (broker_group(controllers={"replicas": 5}), broker_group(), ["spec: controllers"]),
        (broker_group(), broker_group(controllers={"replicas": 5}), []),
        (
            broker_group(controllers={"storage": {"size": "2Gi"}}),
            broker_group(controllers={"storage": {"size": "1Gi", "storageClassName": "fast"}}),
            ["spec.controllers.storage: size", "spec.controllers.storage: storageClassName"],
        ),
        (
            broker_group(controllers={"storage": {"size": "1Gi"}}),
            broker_group(controllers={"storage": {"size": "2Gi"}, "image": "a"}),
            [],
        ),
        (broker_group(), broker_group(mode="Controller"), []),
        (broker_group(), broker_group(mode="MasterSlave"), ["spec: mode"]),
        (broker_group(mode="MasterSlave"), broker_group(mode="MasterSlave", actingMaster=False), []),
        (broker_group(mode="DLedger", replicas=3), broker_group(mode="DLedger", replicas=3, paused=True), []),
        (broker_group(mode="DLedger", replicas=3), broker_group(mode="DLedger", replicas=5), []),
        (
            controller_group(),
            controller_group(nameserver={"embedded": False}),
            ["spec.nameserver: embedded"],
        ),
    ],
)
def test_the_model_rejects_the_changes_that_the_api_server_rejects(
    old: BrokerGroup | ControllerGroup, new: BrokerGroup | ControllerGroup, rejected: list[str]
) -> None:
    lines = rejected_changes(old, new)
    assert [line.partition(" cannot")[0] for line in lines] == rejected
