"""Defines the status and the columns of `Topic` and `User` in the API server."""

# pure: plain data.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epochmq_operator.crd.schema import Schema
from epochmq_operator.crd.simple_kind import SimpleKind, number, text
from epochmq_operator.crd.status import CONDITIONS, REASON, column
from epochmq_operator.resources.entities import (
    ENTITY_RULES,
    EXPECTED_OF_ENTITIES,
    TOPIC_KIND,
    USER_KIND,
    TopicResource,
    TopicSpec,
    UserResource,
    UserSpec,
)

_GROUP: Schema = {
    "name": text("Name of the BrokerGroup."),
    "state": text("Pending, Synced, Failed or Leaving."),
    "applied": text("What was last applied: the generation and, of a user, the Secret's version."),
    "drifts": number("How often the operator reverted a change that others made in the brokers."),
    "lastDrift": text("The last reverted change."),
    "reason": text("Why the group is not Synced, in one word."),
    "message": text("The same in a sentence, with the broker's own words if it rejected a change."),
}


def _status(what: str) -> Schema:
    return {
        "description": "Observed state, written by the operator only.",
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {
            "observedGeneration": number("Generation of the resource that this status describes."),
            "phase": text("Summary phase: Pending, Ready, Failed, Conflict, Deleting or Invalid."),
            "name": text(f"The {what}'s name in the brokers."),
            "synced": text("Number of broker groups that are as desired, of all."),
            "brokerGroups": {
                "description": "The broker groups.",
                "type": "array",
                "maxItems": 100,
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": True,
                    "properties": _GROUP,
                },
            },
            "conditions": {**CONDITIONS, "description": "The conditions Ready, Reconciling and Stalled."},
        },
    }


_STATE = (
    column("Synced", ".status.synced"),
    column("Phase", ".status.phase"),
    column("Age", ".metadata.creationTimestamp", "date"),
    REASON,
)
_TOPIC_COLUMNS: list[dict[str, Any]] = [
    column("Topic", ".status.name"),
    column("Queues", ".spec.queues", "integer"),
    column("Permission", ".spec.permission"),
    column("Type", ".spec.messageType"),
    *_STATE,
]
_USER_COLUMNS: list[dict[str, Any]] = [
    column("User", ".status.name"),
    column("Type", ".spec.type"),
    column("Enabled", ".spec.enabled", "boolean"),
    *_STATE,
]

ENTITIES: Mapping[str, SimpleKind] = {
    TOPIC_KIND: SimpleKind(
        kind=TOPIC_KIND,
        short_name="bt",
        model=TopicResource,
        spec=TopicSpec,
        rules=ENTITY_RULES[TOPIC_KIND],
        expected=EXPECTED_OF_ENTITIES,
        status=_status("topic"),
        columns=_TOPIC_COLUMNS,
        inner="brokerGroups",
    ),
    USER_KIND: SimpleKind(
        kind=USER_KIND,
        short_name="bu",
        model=UserResource,
        spec=UserSpec,
        rules=ENTITY_RULES[USER_KIND],
        expected=EXPECTED_OF_ENTITIES,
        status=_status("user"),
        columns=_USER_COLUMNS,
        inner="brokerGroups",
    ),
}
