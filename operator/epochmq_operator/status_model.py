"""Declares the model of a status: what `epochmq status` shows and `-o json` prints, of this machine or of a
cluster."""

# pure: plain data.

from __future__ import annotations

from enum import StrEnum

import msgspec

from epochmq_operator.resources import GroupMode, MemberMode


class PodPhase(StrEnum):
    """The phase of a pod. `Waiting`: for the pods it depends on. `Starting`: its process runs and was not
    ready yet. `Unready`: it was ready and does not respond now. `BackOff`: its process ended and is started
    again after a delay."""

    WAITING = "Waiting"
    STARTING = "Starting"
    READY = "Ready"
    UNREADY = "Unready"
    BACK_OFF = "BackOff"
    STOPPING = "Stopping"
    STOPPED = "Stopped"


class GroupPhase(StrEnum):
    """The phase of a group. `Progressing`: its pods are starting; `Degraded`: some pods failed after they had
    been ready; `Stopped`: none of its pods runs; `Hibernated`, on a cluster only: its replicas are stopped
    because the spec says so."""

    READY = "Ready"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    STOPPED = "Stopped"
    HIBERNATED = "Hibernated"


class ListedReplica(msgspec.Struct, kw_only=True, rename="camel"):
    """A replica as a controller's response lists it. `alive`: its heartbeats reach the leader."""

    broker_id: int
    address: str | None
    alive: bool
    in_sync: bool


class ListedReplicaGroup(msgspec.Struct, kw_only=True, rename="camel"):
    """A replica group as a controller's response lists it. `master_id` and `master_address` are null without
    a master."""

    broker_name: str
    master_id: int | None
    master_address: str | None
    master_epoch: int
    sync_state_set_epoch: int
    sync_state_set: list[int]
    replicas: list[ListedReplica]

    def replica_at(self, address: str) -> ListedReplica | None:
        """The replica of this address: the living one, or that with the newest id. A store that was replaced
        by an empty one got a new id, and the former one stays listed with the same address."""
        here = [one for one in self.replicas if one.address == address]
        return max(here, key=lambda one: (one.alive, one.broker_id), default=None)


class PodStatus(msgspec.Struct, kw_only=True, rename="camel"):
    """The fields of every pod. `pid` is null while no process runs; `reason` says why the pod is not ready;
    `admin_address` is the address of its sidecar, null without one."""

    pod: str
    address: str
    pid: int | None
    admin_address: str | None
    data_dir: str
    ready: bool
    phase: PodPhase
    reason: str
    restarts: int


class ReplicaStatus(PodStatus, kw_only=True, rename="camel"):
    """A broker. `broker_id` is its permanent id from the controllers, which SyncStateSets consist of; null
    while unknown. Without controllers it is 0; in the mode MasterSlave it is the replica's ordinal, in the
    mode DLedger the ordinal plus 1. `role` is `master`, `slave`, `acting` (it acts for a master that is down)
    or `isolated` (it does not serve yet); null while unknown. `in_sync`: without controllers, whether it is
    ready. `epoch` is the last epoch of its log, in the mode DLedger its term, null without either.
    `max_offset` is the end of its log, `confirm_offset` the offset up to which consumers see messages.
    `fenced` and `drained` are set by users. `escaped`: messages that other groups took from it since its
    start, because it acted for its master; `escape_waiting`: messages that no group has taken yet. Both are
    null without an acting master. `ha_address` is null in the mode DLedger, and `dledger_address` in the
    others."""

    broker_id: int | None
    role: str | None
    in_sync: bool
    epoch: int | None
    max_offset: int | None
    confirm_offset: int | None
    fenced: bool
    drained: bool
    ha_address: str | None
    dledger_address: str | None = None
    escaped: int | None = None
    escape_waiting: int | None = None


class ControllerStatus(PodStatus, kw_only=True, rename="camel"):
    """A controller. `role` is `leader`, `follower` or `candidate`; `role`, `term` and `committed_index` are
    null while unknown. `nameserver` is the address of the nameserver in its process, if there is one."""

    group: str
    role: str | None
    term: int | None
    committed_index: int | None
    nameserver: str | None


class ControllerGroupStatus(msgspec.Struct, kw_only=True, rename="camel"):
    """A controller group. `leader` is the pod that leads, null without one; `term` and `committed_index` are
    the leader's. `replica_groups` are the groups that it keeps, null if no leader responds.
    `member_authentication` says how its members authenticate each other; null while unknown."""

    name: str
    phase: GroupPhase
    leader: str | None
    term: int | None
    committed_index: int | None
    nameservers: list[str]
    replica_groups: list[ListedReplicaGroup] | None
    member_authentication: MemberMode | None = None


class ActingMasterStatus(msgspec.Struct, kw_only=True, rename="camel"):
    """The replica that acts for a master that is down. `since_ms`: milliseconds since 1970. `escaped` and
    `escape_waiting` as in `ReplicaStatus`."""

    pod: str
    since_ms: int | None
    escaped: int | None
    escape_waiting: int | None


class BrokerGroupStatus(msgspec.Struct, kw_only=True, rename="camel"):
    """A broker group. `controller_group` is null if no controllers elect its master. `acting_master` is null
    while no replica acts for the master. Epoch and SyncStateSet are null and empty without controllers, and
    while no controller responds; in the mode DLedger the epoch is the master's term. `member_authentication`
    as in `ControllerGroupStatus`."""

    name: str
    broker_name: str
    cluster: str
    controller_group: str | None
    phase: GroupPhase
    nameservers: list[str]
    mode: GroupMode = GroupMode.CONTROLLER
    acting_master: ActingMasterStatus | None = None
    master_epoch: int | None = None
    sync_state_set: list[int] = []
    member_authentication: MemberMode | None = None
    replicas: list[ReplicaStatus]


class StatusReport(msgspec.Struct, kw_only=True, rename="camel"):
    """Everything that runs in a state directory or a namespace. `supervisor_pid` is null if the supervisor is
    gone, and on a cluster."""

    state: str
    supervisor_pid: int | None
    nameservers: list[str]
    nameserver_pods: list[PodStatus]
    controllers: list[ControllerStatus]
    controller_groups: list[ControllerGroupStatus]
    broker_groups: list[BrokerGroupStatus]
