"""What the status of a resource holds: written by the operator alone, read by people, `kubectl wait` and
`kubectl scale`."""

# pure: plain data.

from __future__ import annotations

from typing import Any

CONDITION_TYPES = ("Ready", "QuorumHealthy", "InSync", "Progressing", "Degraded", "Paused")
"""In one list: `kubectl wait --for=condition=Ready`."""

CONDITIONS: dict[str, Any] = {
    "description": f"What holds of the group: {', '.join(CONDITION_TYPES)}.",
    "type": "array",
    "maxItems": 32,
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": {
        "type": "object",
        "required": ["type", "status", "reason", "message", "lastTransitionTime"],
        "properties": {
            "type": {"type": "string", "maxLength": 316},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": {"type": "string", "maxLength": 1024},
            "message": {"type": "string", "maxLength": 32768},
            "observedGeneration": {"type": "integer", "format": "int64"},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
        },
    },
}

_COMMON: dict[str, Any] = {
    "observedGeneration": {
        "description": "The generation of the resource that this status speaks of.",
        "type": "integer",
        "format": "int64",
    },
    "phase": {"description": "The group in a word.", "type": "string"},
    "ready": {"description": "How many pods are ready, of how many.", "type": "string"},
    "replicas": {"description": "How many replicas there are.", "type": "integer"},
    "readyReplicas": {"description": "How many of them are ready.", "type": "integer"},
    "selector": {"description": "The labels of the replicas' pods.", "type": "string"},
    "conditions": CONDITIONS,
    "plan": {
        "description": "The procedure that the operator is in, or was in last, and its step.",
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
    },
}
_OF_BROKERS: dict[str, Any] = {
    "master": {"description": "The pod of the master; empty without one.", "type": "string"},
    "masterEpoch": {"description": "The master's epoch.", "type": "integer", "format": "int64"},
    "syncStateSet": {
        "description": "The ids of the replicas that have everything that was acknowledged.",
        "type": "array",
        "maxItems": 100,
        "x-kubernetes-list-type": "atomic",
        "items": {"type": "integer", "format": "int64"},
    },
    "controllerGroup": {"description": "The ControllerGroup that elects the master.", "type": "string"},
}
_OF_CONTROLLERS: dict[str, Any] = {
    "leader": {"description": "The pod of the leading controller; empty without one.", "type": "string"},
    "term": {"description": "The leader's term.", "type": "integer", "format": "int64"},
    "brokerGroups": {
        "description": "The BrokerGroups that name these controllers.",
        "type": "array",
        "maxItems": 1000,
        "x-kubernetes-list-type": "atomic",
        "items": {"type": "string"},
    },
}

STATUS: dict[str, dict[str, Any]] = {
    kind: {
        "description": "What the operator found; nobody else writes it.",
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {**_COMMON, **own},
    }
    for kind, own in (("BrokerGroup", _OF_BROKERS), ("ControllerGroup", _OF_CONTROLLERS))
}
"""Fields of a later operator pass: one that is rolled back does not lose them."""


def column(name: str, path: str, kind: str = "string", **more: Any) -> dict[str, Any]:
    """A column of `kubectl get`."""
    return {"name": name, "type": kind, "jsonPath": path, **more}


_READY = column("Ready", ".status.ready", description="Pods that are ready, of how many")
_LAST = [
    column("Phase", ".status.phase"),
    column("Age", ".metadata.creationTimestamp", "date"),
]
COLUMNS: dict[str, list[dict[str, Any]]] = {
    "BrokerGroup": [
        _READY,
        column("Master", ".status.master", description="The master's pod"),
        column("Epoch", ".status.masterEpoch", "integer"),
        column("SyncStateSet", ".status.syncStateSet", description="Ids of the replicas in sync"),
        *_LAST,
        column("Controllers", ".status.controllerGroup", priority=1),
    ],
    "ControllerGroup": [
        _READY,
        column("Leader", ".status.leader", description="The leading controller's pod"),
        column("Term", ".status.term", "integer"),
        *_LAST,
    ],
}
