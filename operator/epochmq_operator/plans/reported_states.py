"""What the replicas say of themselves, as their sidecars answer `GET /v1/state`."""

# pure: data in, data out.

from __future__ import annotations

from typing import Any, Literal

import msgspec

from epochmq_protocol.errors import RemoteProtocolError


class ReportedBrokerState(
    msgspec.Struct, kw_only=True, frozen=True, rename="camel", tag_field="component", tag="broker"
):
    """A broker's. `broker_id` is the one it has for good, None before it has one; offsets and `lag_bytes` are
    in bytes of the log. `confirmed_by_all`: every member of the SyncStateSet has what the master says is
    confirmed."""

    cluster: str = ""
    broker_name: str = ""
    broker_id: int | None = None
    role: Literal["master", "replica", "none"] = "none"
    master_epoch: int | None = None
    sync_state_set: list[int] = []
    sync_state_set_epoch: int | None = None
    confirm_offset: int | None = None
    confirmed_by_all: bool = False
    max_offset: int | None = None
    lag_bytes: int | None = None
    lease: dict[str, Any] | None = None
    fenced: bool = False
    drained: bool = False
    address: str | None = None
    ha_address: str | None = None
    ready: bool = False


class ReportedReplica(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A replica as the controllers know it. `alive`: its heartbeats reach the leader."""

    broker_id: int
    address: str | None = None
    alive: bool = False


class ReportedReplicaGroup(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A replica group as the controllers know it; `master_broker_id` is None without a master."""

    broker_name: str
    cluster: str = ""
    master_broker_id: int | None = None
    master_epoch: int = 0
    sync_state_set: list[int] = []
    sync_state_set_epoch: int | None = None
    replicas: list[ReportedReplica] = []


class ReportedControllerState(
    msgspec.Struct, kw_only=True, frozen=True, rename="camel", tag_field="component", tag="controller"
):
    """A controller's. `leader` names the one that it follows; `groups` are told by the leader alone."""

    role: Literal["leader", "follower", "candidate"] = "candidate"
    term: int | None = None
    leader: str | None = None
    committed_index: int | None = None
    groups: list[ReportedReplicaGroup] = []


ReportedState = ReportedBrokerState | ReportedControllerState

_DECODER: msgspec.json.Decoder[ReportedState] = msgspec.json.Decoder(ReportedState)


def decode_state(body: bytes) -> ReportedState:
    """The word in an answer's body. RemoteProtocolError for anything else."""
    try:
        return _DECODER.decode(body)
    except msgspec.DecodeError as error:
        raise RemoteProtocolError(f"an answer that is no state of a replica: {error}") from None
