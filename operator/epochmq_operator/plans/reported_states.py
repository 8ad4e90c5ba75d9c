"""Decodes the states that replicas report: the responses of their sidecars to `GET /v1/state`."""

# pure: data in, data out.

from __future__ import annotations

from typing import Any, Literal

import msgspec

from epochmq_protocol.errors import RemoteProtocolError


class ReportedEscape(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The messages of one kind that leave an acting master: how many other groups have taken, and how many
    wait."""

    escaped: int = 0
    waiting: int = 0


class ReportedMemberGroup(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """What a broker is in a group with an acting master. `acting_since_ms` is in milliseconds since 1970,
    None if the broker does not act. `isolated_because`: what it waits for before it serves."""

    role: Literal["isolated", "master", "acting", "slave"] = "isolated"
    acting_since_ms: int | None = None
    isolated_because: str = ""
    escape: list[ReportedEscape] = []


class ReportedMember(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A member of a quorum of controllers, or of a DLedger group."""

    id: str


class ReportedPeer(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """What a broker is in a DLedger group. `peers` are the members of the group, as it knows them."""

    role: Literal["leader", "follower", "candidate"] = "candidate"
    term: int = 0
    peers: list[ReportedMember] = []


class ReportedBrokerState(
    msgspec.Struct, kw_only=True, frozen=True, rename="camel", tag_field="component", tag="broker"
):
    """The state of a broker. `broker_id` is its permanent id, None until it has one. Offsets and `lag_bytes`
    are bytes of the log. `confirmed_by_all`: every member of the SyncStateSet has the log up to the master's
    confirm offset. `not_ready` says why `ready` is false. `controlled`: controllers decide its role. `group`:
    None without an acting master. `config_version`: the ConfigMap whose configuration it applied while it
    ran; empty if it has the one that it started with. `dledger`: None unless its log is a DLedger log."""

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
    not_ready: list[str] = []
    controlled: bool = True
    group: ReportedMemberGroup | None = None
    config_version: str = ""
    dledger: ReportedPeer | None = None


class ReportedReplica(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A replica as the controllers know it. `alive`: its heartbeats reach the leader."""

    broker_id: int
    address: str | None = None
    alive: bool = False


class ReportedReplicaGroup(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A replica group as the controllers know it. `master_broker_id` is None without a master."""

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
    """The state of a controller. `leader` is the id of the leader that it follows. `peers` are the members of
    its quorum, as it knows them. Only the leader reports `groups`."""

    role: Literal["leader", "follower", "candidate"] = "candidate"
    term: int | None = None
    leader: str | None = None
    peers: list[ReportedMember] = []
    committed_index: int | None = None
    not_ready: list[str] = []
    groups: list[ReportedReplicaGroup] = []


ReportedState = ReportedBrokerState | ReportedControllerState

_DECODER: msgspec.json.Decoder[ReportedState] = msgspec.json.Decoder(ReportedState)


def decode_state(body: bytes) -> ReportedState:
    """Decodes the body of a response. RemoteProtocolError for anything else."""
    try:
        return _DECODER.decode(body)
    except msgspec.DecodeError as error:
        raise RemoteProtocolError(f"the response is not a replica's state: {error}") from None
