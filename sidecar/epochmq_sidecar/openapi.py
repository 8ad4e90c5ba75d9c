# pure: data only
"""Builds the OpenAPI description of the sidecar: a summary, a schema and an example for every path. The
schemas are those of `protocol.admin_api.results`, and the examples are values of these types, so that they
cannot disagree."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from epochmq_protocol.admin_api import results

MASTER: Final = results.BrokerState(
    cluster="orders",
    broker_name="orders",
    broker_id=1,
    role="master",
    master_epoch=3,
    sync_state_set=[1, 2, 3],
    sync_state_set_epoch=9,
    confirm_offset=1048576,
    max_offset=1048576,
    lag_bytes=0,
    lag_ms=0,
    lease=results.Lease(remaining_ms=240, duration_ms=300),
    fenced=False,
    drained=False,
    takes_messages=True,
    confirmed_by_all=True,
    controlled=True,
    address="10.0.0.11:10911",
    ha_address="10.0.0.11:10912",
    master_broker_id=1,
    master_address="10.0.0.11:10911",
    leading_controller="10.0.0.21:9878",
    ready=True,
    not_ready=[],
)
CONTROLLER: Final = results.ControllerState(
    id="n0",
    group="orders",
    address="10.0.0.21:9878",
    role="leader",
    term=4,
    leader="n0",
    leader_address="10.0.0.21:9878",
    leads=True,
    peers=[results.ControllerPeer(id="n0", address="10.0.0.21:9878")],
    committed_index=41,
    applied_index=41,
    groups=[
        results.ReplicaGroupState(
            broker_name="orders",
            cluster="orders",
            master_broker_id=1,
            master_epoch=3,
            sync_state_set=[1],
            sync_state_set_epoch=9,
            replicas=[results.ReplicaGroupMember(broker_id=1, address="10.0.0.11:10911", alive=True)],
        )
    ],
    ready=True,
    not_ready=[],
)
NAMESERVER: Final = results.NameserverState(
    address="10.0.0.31:9876", brokers=3, broker_names=1, topics=12, ready=True, not_ready=[]
)
_SWITCHED: Final = results.SwitchoverResult(
    moved=True, master_broker_id=2, master_address="10.0.0.12:10911", master_epoch=4, held_ms=58
)
_CONTROLLED: Final = results.ReplicaControlResult(fenced=True, drained=False, takes_messages=False)
_READY: Final = {
    "ready": False,
    "notReady": ["it is not in the SyncStateSet [1, 2]; it lacks 52428800 bytes"],
    "component": "broker",
    "role": "replica",
}
_FAULT: Final = {"error": {"kind": "refused", "message": "this broker is not the master"}}

Example = tuple[str, Any]

_RESPONSES: Final[dict[tuple[str, str], tuple[str, type | None, list[Example]]]] = {
    ("GET", "/live"): (
        "Whether the process answers at its local socket",
        results.ProcessLiveness,
        [("broker", results.ProcessLiveness(component="broker", pid=7, version="0.1.0"))],
    ),
    ("GET", "/ready"): (
        "Whether the process does what its role asks of it; 503 when not, with the reasons",
        None,
        [("behind", _READY)],
    ),
    ("GET", "/metrics"): ("Metrics for Prometheus, as text", None, []),
    ("GET", "/v1/state"): (
        "The whole state",
        results.ProcessState,  # type: ignore[dict-item]
        [("broker", MASTER), ("controller", CONTROLLER), ("nameserver", NAMESERVER)],
    ),
    ("GET", "/v1/epochs"): (
        "The epochs of the log",
        results.EpochHistory,
        [
            (
                "two",
                results.EpochHistory(
                    broker_id=1,
                    max_offset=1048576,
                    epochs=[
                        results.EpochRange(epoch=1, start_offset=0, end_offset=4096),
                        results.EpochRange(epoch=3, start_offset=4096, end_offset=None),
                    ],
                ),
            )
        ],
    ),
    ("GET", "/v1/epoch-file"): ("The bytes of epochFileCheckpoint", None, []),
    ("GET", "/v1/sync-state-set"): (
        "The members of the SyncStateSet",
        results.SyncStateSetState,
        [
            (
                "three",
                results.SyncStateSetState(master_broker_id=1, master_epoch=3, members=[1, 2, 3], epoch=9),
            )
        ],
    ),
    ("GET", "/v1/lag"): (
        "The lag of replicas",
        results.ReplicationLag,
        [
            (
                "master",
                results.ReplicationLag(
                    role="master",
                    max_offset=1048576,
                    lag_bytes=0,
                    lag_ms=0,
                    replicas=[
                        results.ReplicaLag(
                            broker_id=2, ack_offset=1048000, lag_bytes=576, in_sync=True, learner=False
                        )
                    ],
                ),
            )
        ],
    ),
    ("GET", "/v1/lease"): (
        "A master's write lease",
        results.LeaseState,
        [
            (
                "held",
                results.LeaseState(
                    epoch=3,
                    lease=results.Lease(remaining_ms=240, duration_ms=300),
                    granted_by_leader=True,
                    may_write=True,
                ),
            )
        ],
    ),
    ("GET", "/v1/config"): (
        "Every key in force",
        results.EffectiveConfig,
        [("some", results.EffectiveConfig(config={"brokerName": "orders", "flushDiskType": "ASYNC_FLUSH"}))],
    ),
    ("POST", "/v1/promote"): (
        "Make a replica the master: the one with this id, or the one that serves the request",
        results.SwitchoverResult,
        [("moved", _SWITCHED)],
    ),
    ("POST", "/v1/handover"): (
        "Give the mastership to the most advanced replica, or a controller's leadership to another; succeeds "
        "at once on a process that has neither",
        results.SwitchoverResult,
        [
            ("moved", _SWITCHED),
            ("replica", results.SwitchoverResult(moved=False, reason="this broker is not the master")),
            ("controller", results.LeadershipTransferResult(moved=True, leader="n1", term=5)),
        ],
    ),
    ("PUT", "/v1/members"): (
        "Add a controller to the quorum, or a broker to its DLedger group; remove it if there is no address. "
        "Returns when that is committed",
        results.MembersResult,
        [
            (
                "now",
                results.MembersResult(
                    members=[results.ControllerPeer(id="n0", address="10.0.0.21:9878")], leader="n0", term=5
                ),
            )
        ],
    ),
    ("POST", "/v1/fence"): (
        "Store no messages, even after a restart",
        results.ReplicaControlResult,
        [("now", _CONTROLLED)],
    ),
    ("POST", "/v1/unfence"): (
        "Store messages again",
        results.ReplicaControlResult,
        [("now", results.ReplicaControlResult(fenced=False, drained=False, takes_messages=True))],
    ),
    ("POST", "/v1/drain"): (
        "Give the mastership away and leave the SyncStateSet, even after a restart",
        results.ReplicaControlResult,
        [
            (
                "now",
                results.ReplicaControlResult(
                    fenced=False, drained=True, takes_messages=False, switched=_SWITCHED
                ),
            )
        ],
    ),
    ("POST", "/v1/undrain"): (
        "Join the SyncStateSet again",
        results.ReplicaControlResult,
        [("now", results.ReplicaControlResult(fenced=False, drained=False, takes_messages=False))],
    ),
    ("PUT", "/v1/log-level"): (
        "Set the level of one logger of the process; without a name, of all",
        results.LogLevelResult,
        [
            (
                "debug",
                results.LogLevelResult(logger="epochmq_broker.replication", level="DEBUG", before="INFO"),
            )
        ],
    ),
    ("PATCH", "/v1/config"): (
        "Change settings while the process runs; all or none",
        results.EffectiveConfig,
        [("some", results.EffectiveConfig(config={"fileReservedTime": "48"}))],
    ),
    ("PUT", "/v1/config"): (
        "Apply a whole configuration file while the process runs; all or none. Keys that are missing get "
        "their default values. The state shows the version",
        results.EffectiveConfig,
        [("some", results.EffectiveConfig(config={"fileReservedTime": "48"}))],
    ),
}

_BODIES: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("POST", "/v1/promote"): {"brokerId": 2, "timeoutMs": 15_000},
    ("POST", "/v1/handover"): {"timeoutMs": 60_000, "lingerMs": 35_000},
    ("POST", "/v1/fence"): {},
    ("POST", "/v1/unfence"): {},
    ("POST", "/v1/drain"): {"timeoutMs": 30_000},
    ("POST", "/v1/undrain"): {},
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
    summary, kind, examples = _RESPONSES[method, path]
    route: dict[str, Any] = {"summary": summary, "operation_id": f"{method.lower()}{path.replace('/', '-')}"}
    if kind is not None or examples:
        (schema,), _ = msgspec.json.schema_components([kind or dict[str, Any]], ref_template=_REF)
        examples_by_name = {name: {"value": msgspec.to_builtins(value)} for name, value in examples}
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
        kinds = {kind for _, kind, _ in _RESPONSES.values() if kind is not None}
        _, components = msgspec.json.schema_components(kinds, ref_template=_REF)
        schema.setdefault("components", {}).setdefault("schemas", {}).update(components)
        schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        app.openapi_schema = schema
    return app.openapi_schema


PATHS: Final = frozenset(_RESPONSES)
"""Every (method, path)."""
