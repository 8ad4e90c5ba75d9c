"""What the operations answer. Offsets and lags are bytes of the commit log, ids those of the controllers."""

from __future__ import annotations

from typing import Literal

import msgspec


class Shown(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of what is answered."""


class Live(Shown, frozen=True, kw_only=True):
    """LIVE: the process answers."""

    component: Literal["broker", "controller", "nameserver"]
    pid: int
    version: str


class Lease(Shown, frozen=True, kw_only=True):
    """A master's right to write. `remaining_ms` is 0 when it has run out."""

    remaining_ms: int
    duration_ms: int


class BrokerState(Shown, frozen=True, kw_only=True, tag_field="component", tag="broker"):
    """STATE of a broker.

    `broker_id` is None until the controllers have given one, `role` is `none` until they have said who is
    master. `lag_bytes` is what this replica lacks of the master's log, 0 on a master, None while that is not
    known; `lag_ms`, how long ago it lacked nothing. `lease` is None on everything but a master, and under
    controllers that grant none. `fenced` and `drained` are what people said. `takes_messages`: a message that
    waits for replicas would be taken now. `confirmed_by_all`: what a master says is confirmed every member of
    the SyncStateSet has (`allAckInSyncStateSet`), else maybe the master alone. `may_lack_acknowledged`: its
    log may have lost messages, and it becomes no master while a member lives that has not. `not_ready` says
    why `ready` is false.
    """

    cluster: str
    broker_name: str
    broker_id: int | None
    role: Literal["master", "replica", "none"]
    master_epoch: int
    sync_state_set: list[int]
    sync_state_set_epoch: int
    confirm_offset: int
    max_offset: int
    lag_bytes: int | None
    lease: Lease | None
    fenced: bool
    address: str
    ha_address: str
    ready: bool
    not_ready: list[str]
    lag_ms: int | None = None
    drained: bool = False
    takes_messages: bool = False
    confirmed_by_all: bool = False
    may_lack_acknowledged: bool = False
    controlled: bool = True
    master_broker_id: int | None = None
    master_address: str | None = None
    leading_controller: str | None = None


class Peer(Shown, frozen=True, kw_only=True):
    """One controller of a quorum."""

    id: str
    address: str


class GroupReplica(Shown, frozen=True, kw_only=True):
    """One replica, as this controller has it. `alive`: its heartbeats reach this controller. `in_doubt`: it
    says that it may lack acknowledged messages."""

    broker_id: int
    address: str
    alive: bool
    in_doubt: bool = False


class Group(Shown, frozen=True, kw_only=True):
    """One replica group, as this controller has applied it; a follower may be a moment behind. `waits`: why
    the leading controller elects no master until a missing member returns or a person orders an election."""

    broker_name: str
    cluster: str
    master_broker_id: int | None
    master_epoch: int
    sync_state_set: list[int]
    sync_state_set_epoch: int
    replicas: list[GroupReplica]
    waits: str | None = None


class NameserverPart(Shown, frozen=True, kw_only=True):
    """What a nameserver knows: how many of each."""

    address: str
    brokers: int
    broker_names: int
    topics: int


class ControllerState(Shown, frozen=True, kw_only=True, tag_field="component", tag="controller"):
    """STATE of a controller. `leader` is the id of the leader it knows, `leads` whether it is the leader and
    has applied what earlier ones committed. `nameserver` is there when the process is a nameserver with a
    controller inside."""

    id: str
    group: str
    address: str
    role: Literal["leader", "follower", "candidate"]
    term: int
    leader: str | None
    leader_address: str | None
    leads: bool
    peers: list[Peer]
    committed_index: int
    applied_index: int
    groups: list[Group]
    ready: bool
    not_ready: list[str]
    nameserver: NameserverPart | None = None


class NameserverState(Shown, frozen=True, kw_only=True, tag_field="component", tag="nameserver"):
    """STATE of a nameserver without a controller."""

    address: str
    brokers: int
    broker_names: int
    topics: int
    ready: bool
    not_ready: list[str]


State = BrokerState | ControllerState | NameserverState


class Epoch(Shown, frozen=True, kw_only=True):
    """An epoch of the log; the last one has no end."""

    epoch: int
    start_offset: int
    end_offset: int | None


class Epochs(Shown, frozen=True, kw_only=True):
    """EPOCHS."""

    broker_id: int | None
    max_offset: int
    epochs: list[Epoch]


class EpochFile(Shown, frozen=True, kw_only=True):
    """EPOCH_FILE: its bytes, in JSON as base64."""

    path: str
    content: bytes


class SyncStateSet(Shown, frozen=True, kw_only=True):
    """SYNC_STATE_SET. `proposed` is what a master has asked the controllers for and does not know the fate
    of."""

    master_broker_id: int | None
    master_epoch: int
    members: list[int]
    epoch: int
    proposed: list[int] | None = None


class ReplicaLag(Shown, frozen=True, kw_only=True):
    """One replica, as its master sees it; `ack_offset` is -1 while it has said nothing."""

    broker_id: int
    ack_offset: int
    lag_bytes: int
    in_sync: bool
    learner: bool


class Lag(Shown, frozen=True, kw_only=True):
    """LAG. `replicas` are those connected to this broker."""

    role: Literal["master", "replica", "none"]
    max_offset: int
    lag_bytes: int | None
    lag_ms: int | None
    replicas: list[ReplicaLag]


class LeaseState(Shown, frozen=True, kw_only=True):
    """LEASE. `granted_by_leader` is None while it is not known whether the leading controller grants leases;
    `may_write`: as far as leases go."""

    epoch: int | None
    lease: Lease | None
    granted_by_leader: bool | None
    may_write: bool


class Config(Shown, frozen=True, kw_only=True):
    """CONFIG, and the answer of CHANGE_CONFIG: every key in force."""

    config: dict[str, str]


class Metrics(Shown, frozen=True, kw_only=True):
    """METRICS: the state, and figures by the names of their metrics without `epochmq_`."""

    state: State
    figures: dict[str, float]


class Switched(Shown, frozen=True, kw_only=True):
    """PROMOTE and HANDOVER. `moved`: whether the mastership went to another replica; if not, `reason` says
    why there was nothing to do. `held_ms`: how long sends had to wait."""

    moved: bool
    reason: str = ""
    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int = 0
    held_ms: int = 0


class LedBy(Shown, frozen=True, kw_only=True):
    """HANDOVER of a controller: who leads now, as far as it knows. `moved`: whether it gave the leadership
    away; if not, `reason` says why there was nothing to do."""

    moved: bool
    reason: str = ""
    leader: str | None = None
    term: int = 0


class Steered(Shown, frozen=True, kw_only=True):
    """FENCE, UNFENCE, DRAIN, UNDRAIN: how it is now."""

    fenced: bool
    drained: bool
    takes_messages: bool
    switched: Switched | None = None


class LevelSet(Shown, frozen=True, kw_only=True):
    """LOG_LEVEL."""

    logger: str
    level: str
    before: str
