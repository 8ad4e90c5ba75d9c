"""Tests the models of topics and users, and their definitions."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from epochmq_operator.crd import definition_of
from epochmq_operator.crd.entity_kinds import ENTITIES
from epochmq_operator.crd.status import REASON
from epochmq_operator.resources import ResourceError, load_resources
from epochmq_operator.resources.entities import ENTITY_KINDS
from tests.unit.operator.definition_parts import parts
from tests.unit.operator.entities.fake_brokers import topic, user

ENTRY = {"resource": "Topic:orders", "actions": ["Pub"]}


@pytest.mark.parametrize(
    "document",
    [
        topic(),
        topic(topicName="%RETRY%group_1", queues=1024, readQueues=1024, attributes={"reserve.time": "1000"}),
        user(acl=[ENTRY, {**ENTRY, "resource": "*"}, {**ENTRY, "resource": "Group:a*"}], type="Super"),
        user(username="a.user@shop", enabled=False, deletionPolicy="Retain"),
    ],
)
def test_valid_resources_are_accepted(document: dict[str, Any]) -> None:
    ENTITY_KINDS[document["kind"]].model_validate(document)


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        (topic(brokerGroups=[]), "at least 1 item"),
        (topic(brokerGroups=["a", "a"]), "a is given twice"),
        (topic(queues=0), "greater than or equal to 1"),
        (topic(queues=8, readQueues=7), "expected at least spec.queues, which is 8"),
        (topic(attributes={"message.type": "FIFO"}), "give spec.messageType instead"),
        (topic(messageType="fifo"), "'UNSPECIFIED', 'NORMAL'"),
        (topic(topicName="with space"), "string_pattern_mismatch"),
        (topic(perm=6), "extra_forbidden"),
        (user(acl=[ENTRY, ENTRY]), "Topic:orders is given twice"),
        (user(acl=[{**ENTRY, "actions": []}]), "at least 1 item"),
        (user(acl=[{**ENTRY, "resource": "Queue:a"}]), "string_pattern_mismatch"),
        (user(passwordSecret={}), "Field required"),
    ],
)
def test_invalid_resources_are_rejected_by_the_field(document: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ENTITY_KINDS[document["kind"]].model_validate(document)
    assert fault in str(caught.value)


@pytest.mark.parametrize("kind", ENTITIES)
def test_the_schema_is_structural_and_every_input_is_bounded(kind: str) -> None:
    (version,) = definition_of(ENTITIES[kind])["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    for path, part in parts(schema):
        assert "type" in part, path
        assert not {"$ref", "title", "patternProperties", "const", "oneOf", "nullable"} & part.keys(), path
    for path, part in parts(schema["properties"]["spec"]):
        if part["type"] == "string":
            assert "maxLength" in part or "enum" in part, path
        if part["type"] == "array":
            assert "maxItems" in part, path
        if part["type"] == "object" and "additionalProperties" in part:
            assert "maxProperties" in part, path
    known = {path for path, _ in parts(schema)} | {".metadata.creationTimestamp", REASON["jsonPath"]}
    assert {one["jsonPath"] for one in version["additionalPrinterColumns"]} <= known


@pytest.mark.parametrize("kind", ENTITY_KINDS)
def test_the_local_runtime_says_what_to_use_instead(kind: str) -> None:
    text = f"apiVersion: epochmq.io/v1alpha1\nkind: {kind}\nmetadata: {{name: a}}\nspec: {{}}\n"
    with pytest.raises(ResourceError) as caught:
        load_resources([("a.yaml", text)])
    assert f"{kind} is not supported: it is for Kubernetes; create" in str(caught.value)
