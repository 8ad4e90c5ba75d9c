"""Defines the schema and the columns of a resource's status, which the operator writes for users, `kubectl
wait` and `kubectl scale`."""

# pure: plain data.

from __future__ import annotations

from typing import Any

CONDITION_TYPES = (
    "Ready",
    "QuorumHealthy",
    "InSync",
    "Progressing",
    "Degraded",
    "Paused",
    "Reconciling",
    "Stalled",
)
"""The condition types, all in one list: `kubectl wait --for=condition=Ready`."""

CONDITIONS: dict[str, Any] = {
    "description": f"Conditions of the group: {', '.join(CONDITION_TYPES)}.",
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
        "description": "Generation of the resource that this status describes.",
        "type": "integer",
        "format": "int64",
    },
    "phase": {"description": "Summary phase.", "type": "string"},
    "ready": {"description": "Number of ready pods, of all pods.", "type": "string"},
    "replicas": {"description": "Number of replicas.", "type": "integer"},
    "targetReplicas": {
        "description": "Number of replicas or controllers that the group is to have at present; while it "
        "scales up, fewer than spec.replicas.",
        "type": "integer",
    },
    "pinnedImage": {
        "description": "Image of the pods, which the group keeps although the operator's setting changes; "
        "empty while spec.image names one.",
        "type": "string",
    },
    "memberAuthentication": {
        "description": "How the members authenticate each other: `Require`, `Accept` or `Disabled`. While "
        "pods restart for a change, some have the former value.",
        "type": "string",
    },
    "adopted": {
        "description": "Digest of what the pod templates follow from that an earlier release applied; absent "
        "when all are of this release.",
        "type": "string",
    },
    "readyReplicas": {"description": "Number of ready replicas.", "type": "integer"},
    "selector": {"description": "Label selector of the replicas' pods.", "type": "string"},
    "conditions": CONDITIONS,
    "plan": {
        "description": "The present or last procedure of the operator, and its step.",
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
    },
}
_FOUNDERS: dict[str, Any] = {
    "description": "Number of members with which the Raft group began, while the configuration names the "
    "members; 0 when the Raft log names them.",
    "type": "integer",
}
_REPLACEMENT: dict[str, Any] = {
    "description": "The last order to give a replica or a controller a new volume; absent without one.",
    "type": "object",
    "properties": {
        "order": {"description": "Value of the annotation.", "type": "string"},
        "state": {"description": "`Replacing`, `Replaced` or `Refused`.", "type": "string"},
        "message": {"description": "What it waits for, or why it is refused.", "type": "string"},
    },
}
_RESTORE: dict[str, Any] = {
    "description": "The restore before the group's first start; absent without `spec.restoreFrom`.",
    "type": "object",
    "properties": {
        "state": {
            "description": "`Restoring`, `Restored`, or `Skipped`: the volumes of an earlier group are used.",
            "type": "string",
        },
        "backup": {"description": "Id of the backup.", "type": "string"},
        "logStart": {
            "description": "Physical offset of the log where the backup starts.",
            "type": "integer",
            "format": "int64",
        },
        "logEnd": {
            "description": "Physical offset of the log up to which everything is restored.",
            "type": "integer",
            "format": "int64",
        },
        "replicas": {"description": "Number of restored volumes.", "type": "integer"},
    },
}
_OF_BROKERS: dict[str, Any] = {
    "restore": _RESTORE,
    "master": {"description": "Pod of the master; empty without one.", "type": "string"},
    "masterEpoch": {"description": "Epoch of the master.", "type": "integer", "format": "int64"},
    "syncStateSet": {
        "description": "Broker ids of the replicas that have every acknowledged message.",
        "type": "array",
        "maxItems": 100,
        "x-kubernetes-list-type": "atomic",
        "items": {"type": "integer", "format": "int64"},
    },
    "controllerGroup": {
        "description": "ControllerGroup that elects the master; in the modes MasterSlave and DLedger, the "
        "one whose nameservers the group uses.",
        "type": "string",
    },
    "knownControllers": {
        "description": "Number of controllers that all brokers list; absent in modes without controllers.",
        "type": "integer",
    },
    "founders": {**_FOUNDERS, "description": f"{_FOUNDERS['description']} In the mode DLedger only."},
    "hibernation": {
        "description": "`Hibernating`, `Hibernated` or `Resuming`; absent while the group is in use.",
        "type": "string",
    },
    "replacement": _REPLACEMENT,
    "reloads": {
        "description": "The configuration that pods got without a restart; absent if all started with it.",
        "type": "object",
        "properties": {
            "configMap": {"description": "Its ConfigMap.", "type": "string"},
            "pods": {
                "description": "Pods that started with another configuration.",
                "type": "array",
                "maxItems": 100,
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object",
                    "properties": {
                        "pod": {"description": "Name of the pod.", "type": "string"},
                        "state": {
                            "description": "`Applied`, `Pending` or `Rejected`.",
                            "type": "string",
                        },
                        "message": {"description": "Why it is not applied.", "type": "string"},
                    },
                },
            },
        },
    },
    "actingMaster": {
        "description": "Replica that acts for a master that is down; absent while none does.",
        "type": "object",
        "properties": {
            "pod": {"description": "Its pod.", "type": "string"},
            "since": {"description": "When it began to act.", "type": "string", "format": "date-time"},
            "escaped": {
                "description": "Messages that other groups have taken from it.",
                "type": "integer",
                "format": "int64",
            },
            "waiting": {
                "description": "Messages that no other group has taken yet.",
                "type": "integer",
                "format": "int64",
            },
        },
    },
}
_OF_CONTROLLERS: dict[str, Any] = {
    "leader": {"description": "Pod of the leading controller; empty without one.", "type": "string"},
    "term": {"description": "Term of the leader.", "type": "integer", "format": "int64"},
    "founders": _FOUNDERS,
    "replacement": _REPLACEMENT,
    "brokerGroups": {
        "description": "BrokerGroups that name these controllers.",
        "type": "array",
        "maxItems": 1000,
        "x-kubernetes-list-type": "atomic",
        "items": {"type": "string"},
    },
}

STATUS: dict[str, dict[str, Any]] = {
    kind: {
        "description": "Observed state, written by the operator only.",
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {**_COMMON, **own},
    }
    for kind, own in (("BrokerGroup", _OF_BROKERS), ("ControllerGroup", _OF_CONTROLLERS))
}
"""Fields of a later version are accepted, so that an operator that is rolled back does not lose them."""


def column(name: str, path: str, kind: str = "string", **more: Any) -> dict[str, Any]:
    """A column of `kubectl get`."""
    return {"name": name, "type": kind, "jsonPath": path, **more}


REASON = column("Reason", ".status.conditions[?(@.type=='Ready')].message", priority=1)
"""Why the resource is not ready, in the words of the sidecars or brokers."""
_READY = column("Ready", ".status.ready", description="Ready pods, of all pods")
_LAST = [
    column("Phase", ".status.phase"),
    column("Age", ".metadata.creationTimestamp", "date"),
    REASON,
]
_MEMBERS = column("Members", ".status.memberAuthentication", priority=1)
COLUMNS: dict[str, list[dict[str, Any]]] = {
    "BrokerGroup": [
        _READY,
        column("Master", ".status.master", description="The master's pod"),
        column("Epoch", ".status.masterEpoch", "integer"),
        column("SyncStateSet", ".status.syncStateSet", description="Broker ids of the replicas in sync"),
        *_LAST,
        column("Acting", ".status.actingMaster.pod", priority=1, description="The acting master's pod"),
        column("Controllers", ".status.controllerGroup", priority=1),
        _MEMBERS,
    ],
    "ControllerGroup": [
        _READY,
        column("Leader", ".status.leader", description="The leading controller's pod"),
        column("Term", ".status.term", "integer"),
        *_LAST,
        _MEMBERS,
    ],
}
