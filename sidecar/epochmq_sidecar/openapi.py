# pure: data only
"""Builds the OpenAPI description of the sidecar: a summary, a schema and examples for every path. The schemas
are those of `protocol.admin_api.results`, and the examples are values of these types, made field by field, so
that they cannot disagree."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from epochmq_protocol.admin_api import results

T = TypeVar("T", bound=msgspec.Struct)

_VALUES: Final[dict[str, Any]] = {
    "ack_offset": 1048000,
    "address": "10.0.0.11:10911",
    "alive": True,
    "applied_index": 41,
    "before": "INFO",
    "broker_id": 1,
    "broker_name": "orders",
    "broker_names": 1,
    "brokers": 3,
    "cluster": "orders",
    "committed_index": 41,
    "config": {"brokerName": "orders", "fileReservedTime": "48"},
    "confirm_offset": 1048576,
    "confirmed_by_all": True,
    "drained": False,
    "duration_ms": 300,
    "end_offset": None,
    "epoch": 3,
    "fenced": False,
    "granted_by_leader": True,
    "ha_address": "10.0.0.11:10912",
    "held_ms": 58,
    "id": "n0",
    "in_sync": True,
    "lag_bytes": 0,
    "lag_ms": 0,
    "leader": "n0",
    "leader_address": "10.0.0.21:9878",
    "leading_controller": "10.0.0.21:9878",
    "leads": True,
    "learner": False,
    "level": "DEBUG",
    "logger": "epochmq_broker.replication",
    "master_address": "10.0.0.11:10911",
    "master_broker_id": 1,
    "master_epoch": 3,
    "max_offset": 1048576,
    "may_write": True,
    "members": [1, 2, 3],
    "moved": True,
    "not_ready": [],
    "pid": 7,
    "promised_ms": 210,
    "ready": True,
    "remaining_ms": 240,
    "start_offset": 4096,
    "sync_state_set": [1, 2, 3],
    "sync_state_set_epoch": 9,
    "takes_messages": True,
    "term": 4,
    "topics": 12,
    "version": "0.1.0",
    "ControllerPeer.address": "10.0.0.21:9878",
    "ControllerState.address": "10.0.0.21:9878",
    "ControllerState.group": "orders",
    "MembersResult.members": [results.ControllerPeer(id="n0", address="10.0.0.21:9878")],
    "NameserverState.address": "10.0.0.31:9876",
    "ReplicaGroupState.sync_state_set": [1],
    "ReplicaLag.broker_id": 2,
    "ReplicaLag.lag_bytes": 576,
    "SwitchoverResult.master_address": "10.0.0.12:10911",
    "SwitchoverResult.master_broker_id": 2,
    "SwitchoverResult.master_epoch": 4,
    "SyncStateSetState.epoch": 9,
}
"""Values of the examples by the name of their field, or by the type and the name. Fields that are not here
have their default value, or an example of their type."""


def example_of(kind: type[T], **values: Any) -> T:
    """An example of a result with these values of its fields. TypeError for a field that needs a value."""
    for field in msgspec.structs.fields(kind):
        known = next(
            (name for name in (f"{kind.__name__}.{field.name}", field.name) if name in _VALUES), None
        )
        if known is not None:
            values.setdefault(field.name, _VALUES[known])
        elif field.required and field.name not in values:
            values[field.name] = _example_of_type(field.type)
    return kind(**values)


def _example_of_type(kind: Any) -> Any:
    """The first of the values that a type has, or the example of a result."""
    origin, choices = get_origin(kind), get_args(kind)
    if origin is Literal:
        return choices[0]
    if origin is list:
        return [_example_of_type(choices[0])]
    if origin in (Union, UnionType):
        return _example_of_type(next(choice for choice in choices if choice is not NoneType))
    return example_of(kind)


MASTER: Final = example_of(results.BrokerState)
CONTROLLER: Final = example_of(results.ControllerState)
NAMESERVER: Final = example_of(results.NameserverState)
_READY: Final = {
    "ready": False,
    "notReady": ["it is not in the SyncStateSet [1, 2]; it lacks 52428800 bytes"],
    "component": "broker",
    "role": "replica",
}
_FAULT: Final = {"error": {"kind": "refused", "message": "this broker is not the master"}}

_RESPONSES: Final[dict[tuple[str, str], tuple[str, Any]]] = {
    ("GET", "/live"): ("Whether the process answers at its local socket", results.ProcessLiveness),
    ("GET", "/ready"): (
        "Whether the process does what its role asks of it; 503 when not, with the reasons",
        None,
    ),
    ("GET", "/metrics"): ("Metrics for Prometheus, as text", None),
    ("GET", "/v1/state"): ("The whole state", results.ProcessState),
    ("GET", "/v1/epochs"): ("The epochs of the log", results.EpochHistory),
    ("GET", "/v1/epoch-file"): ("The bytes of epochFileCheckpoint", None),
    ("GET", "/v1/sync-state-set"): ("The members of the SyncStateSet", results.SyncStateSetState),
    ("GET", "/v1/lag"): ("The lag of replicas", results.ReplicationLag),
    ("GET", "/v1/lease"): ("A master's write lease", results.LeaseState),
    ("GET", "/v1/config"): ("Every key in force", results.EffectiveConfig),
    ("POST", "/v1/promote"): (
        "Make a replica the master: the one with this id, or the one that serves the request",
        results.SwitchoverResult,
    ),
    ("POST", "/v1/handover"): (
        "Give the mastership to the most advanced replica, or a controller's leadership to another; succeeds "
        "at once on a process that has neither",
        results.SwitchoverResult,
    ),
    ("PUT", "/v1/members"): (
        "Add a controller to the quorum, or a broker to its DLedger group; remove it if there is no address. "
        "Returns when that is committed",
        results.MembersResult,
    ),
    ("POST", "/v1/fence"): ("Store no messages, even after a restart", results.ReplicaControlResult),
    ("POST", "/v1/unfence"): ("Store messages again", results.ReplicaControlResult),
    ("POST", "/v1/drain"): (
        "Give the mastership away and leave the SyncStateSet, even after a restart",
        results.ReplicaControlResult,
    ),
    ("POST", "/v1/undrain"): ("Join the SyncStateSet again", results.ReplicaControlResult),
    ("POST", "/v1/adopt-store"): (
        "Keep the broker id with a store that the controllers refuse; it must catch up before it is elected",
        results.SettledStore,
    ),
    ("POST", "/v1/discard-store"): (
        "Give a store that the controllers refuse another broker id",
        results.SettledStore,
    ),
    ("PUT", "/v1/log-level"): (
        "Set the level of one logger of the process; without a name, of all",
        results.LogLevelResult,
    ),
    ("PATCH", "/v1/config"): (
        "Change settings while the process runs; all or none",
        results.EffectiveConfig,
    ),
    ("PUT", "/v1/config"): (
        "Apply a whole configuration file while the process runs; all or none. Keys that are missing get "
        "their default values. The state shows the version",
        results.EffectiveConfig,
    ),
}

_EXAMPLES: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("GET", "/ready"): {"behind": _READY},
    ("GET", "/v1/state"): {"broker": MASTER, "controller": CONTROLLER, "nameserver": NAMESERVER},
    ("POST", "/v1/handover"): {
        "moved": example_of(results.SwitchoverResult),
        "replica": results.SwitchoverResult(moved=False, reason="this broker is not the master"),
        "controller": example_of(results.LeadershipTransferResult),
    },
    ("POST", "/v1/fence"): {
        "now": example_of(results.ReplicaControlResult, fenced=True, takes_messages=False)
    },
    ("POST", "/v1/drain"): {
        "now": example_of(
            results.ReplicaControlResult,
            drained=True,
            takes_messages=False,
            switched=example_of(results.SwitchoverResult),
        )
    },
}
"""The examples of the paths whose response is not the example of its type."""

_BODIES: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("POST", "/v1/promote"): {"brokerId": 2, "timeoutMs": 15_000},
    ("POST", "/v1/handover"): {"timeoutMs": 60_000, "lingerMs": 35_000},
    ("POST", "/v1/fence"): {},
    ("POST", "/v1/unfence"): {},
    ("POST", "/v1/drain"): {"timeoutMs": 30_000},
    ("POST", "/v1/undrain"): {},
    ("POST", "/v1/adopt-store"): {},
    ("POST", "/v1/discard-store"): {},
    ("PUT", "/v1/members"): {"member": "n3", "address": "10.0.0.24:9878"},
    ("PUT", "/v1/log-level"): {"level": "DEBUG", "logger": "epochmq_broker.replication"},
    ("PATCH", "/v1/config"): {"fileReservedTime": 48},
    ("PUT", "/v1/config"): {
        "config": {"brokerName": "orders", "fileReservedTime": "48"},
        "version": "orders-broker-3f786850e3",
    },
}

_REF: Final = "#/components/schemas/{name}"


def describe(method: str, path: str) -> dict[str, Any]:
    """The arguments with which FastAPI adds the route of a path."""
    summary, kind = _RESPONSES[method, path]
    examples = _EXAMPLES.get((method, path)) or ({} if kind is None else {"now": example_of(kind)})
    route: dict[str, Any] = {"summary": summary, "operation_id": f"{method.lower()}{path.replace('/', '-')}"}
    if kind is not None or examples:
        (schema,), _ = msgspec.json.schema_components([kind or dict[str, Any]], ref_template=_REF)
        examples_by_name = {name: {"value": msgspec.to_builtins(value)} for name, value in examples.items()}
        content = {"application/json": {"schema": schema, "examples": examples_by_name}}
        route["responses"] = {"503" if path == "/ready" else "200": {"content": content}}
        route["responses"].setdefault("200", {"description": summary})
        for answer in route["responses"].values():
            answer["description"] = summary
    body = _BODIES.get((method, path))
    if body is not None:
        fault = {"application/json": {"example": _FAULT}}
        route["responses"]["409"] = {"description": "The process rejects the operation now", "content": fault}
        route["responses"]["401"] = {"description": "The request needs a token or a client certificate"}
        extra = {"required": False, "content": {"application/json": {"example": body}}}
        route["openapi_extra"] = {"requestBody": extra, "security": [{"token": []}]}
    return route


def openapi(app: FastAPI) -> dict[str, Any]:
    """Returns the whole description, built at the first request for it."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        kinds = {kind for _, kind in _RESPONSES.values() if kind is not None}
        _, components = msgspec.json.schema_components(kinds, ref_template=_REF)
        schema.setdefault("components", {}).setdefault("schemas", {}).update(components)
        schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        app.openapi_schema = schema
    return app.openapi_schema


PATHS: Final = frozenset(_RESPONSES)
"""Every (method, path)."""
