"""Defines the results of the operations of the admin socket.

Offsets and lags are bytes of the commit log. Broker ids are those of the controllers."""

from __future__ import annotations

from typing import Literal

import msgspec


class AdminResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all results."""


class ProcessLiveness(AdminResult, frozen=True, kw_only=True):
    """Result of LIVE: the process responds."""

    component: Literal["broker", "controller", "nameserver"]
    pid: int
    version: str


class Lease(AdminResult, frozen=True, kw_only=True):
    """A master's lease. `remaining_ms` is 0 after it has run out. `promised_ms`: for how long every replica
    that may be elected has promised not to become master, so that this one may write without a lease; 0 if
    one of them has not."""

    remaining_ms: int
    duration_ms: int
    promised_ms: int = 0


GroupRoleName = Literal["isolated", "master", "acting", "slave"]


class EscapeState(AdminResult, frozen=True, kw_only=True):
    """The messages of one kind that leave an acting master for other groups. `escaped`: those that another
    group has stored since the start of the broker. `waiting`: those that no other group has stored yet.
    `failed`: attempts to send that did not succeed."""

    kind: str
    escaped: int
    waiting: int
    failed: int


class MemberGroupState(AdminResult, frozen=True, kw_only=True):
    """What a broker is in a group without controllers that has an acting master (RIP-32).

    - `role`: `acting`: it acts for a master that is down. `isolated`: it serves no clients yet.
    - `acting_since_ms`: when it began to act, in milliseconds since 1970; None if it does not act.
    - `isolated_because`: the present step of its pre-online phase; empty if it is not isolated.
    - `min_broker_id`: the smallest id of the group, as this broker knows it.
    - `alive_replicas`: the brokers of the group that are alive; None before a nameserver has told.
    """

    role: GroupRoleName
    acting_since_ms: int | None
    isolated_because: str
    min_broker_id: int
    alive_replicas: int | None
    escape: list[EscapeState]


class DLedgerPeerState(AdminResult, frozen=True, kw_only=True):
    """A peer of a DLedger group, in the view of the peer that reports it. Only a leader knows the last two
    fields; the others report None. `alive`: it responded to the latest heartbeat. `lag_bytes`: the bytes of
    the leader's log that it lacks; None also before its first acknowledgement in the term."""

    id: str
    broker_id: int
    address: str
    alive: bool | None = None
    lag_bytes: int | None = None


class DLedgerState(AdminResult, frozen=True, kw_only=True):
    """What a broker is in a group whose commit log is a DLedger log.

    - `id`: the peer's id in the group, such as n0. `leader`: the id of the leader that it knows.
    - `serves`: it leads, and its whole log is committed and dispatched, so that it accepts messages.
    - `committed_index`, `end_index`: the last entry that it knows to be committed, and the last entry.
    - `behind`: the number of entries that the leader has committed and this peer does not know to be
      committed; 0 on the leader, None while no leader has reached its log.
    - `lacks_queue_ends`: it must not lead yet, because it does not know where queues end whose messages have
      all expired.
    - `messages_rejected`: messages since the start that no correct peer of the group sends.
    - `peers`: the members of the group, this one included.
    - `problem`: why it could not lead, in words for a person: its log differs from the leader's, it cannot
      read its log, or it has no vote; None without such a reason.
    """

    id: str
    role: Literal["leader", "follower", "candidate"]
    term: int
    leader: str | None
    serves: bool
    committed_index: int
    end_index: int
    behind: int | None
    lacks_queue_ends: bool
    peers: list[DLedgerPeerState]
    problem: str | None = None
    messages_rejected: int = 0


class BrokerState(AdminResult, frozen=True, kw_only=True, tag_field="component", tag="broker"):
    """Result of STATE from a broker.

    - `broker_id`: None until the controllers have assigned one. In a DLedger group it is the id of the broker
      as a slave, one more than the number of its peer.
    - `role`: `none` until the controllers have named a master, and while a DLedger group has no leader.
    - `master_epoch`: in a DLedger group the term.
    - `lag_bytes`: the bytes of the master's log that this replica lacks, 0 on a master, None while unknown.
      `lag_ms`: the time since it last lacked none.
    - `lease`: None except on a master, and None under controllers that grant no leases.
    - `fenced`, `drained`: the control state that an administrator set.
    - `takes_messages`: the broker would accept a message that waits for replicas now.
    - `confirmed_by_all`: every member of the SyncStateSet has what the master confirms
      (`allAckInSyncStateSet`); else perhaps the master alone.
    - `may_lack_acknowledged`: the log is in doubt. The replica cannot become master while another member is
      alive whose log is not in doubt.
    - `refusal`: why the controllers refuse this store, so that it takes no role; None if they do not.
    - `group`: None unless the broker belongs to a group with an acting master.
    - `config_version`: the version of the configuration that RELOAD_CONFIG applied last; empty if the broker
      has the configuration that it started with.
    - `dledger`: None unless the commit log is a DLedger log.
    - `damage`: what is damaged in the log's old files, as far as the scrub has read: one sentence for each
      range, the first 20.
    - `not_ready`: the reasons why `ready` is false.
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
    refusal: str | None = None
    group: MemberGroupState | None = None
    config_version: str = ""
    dledger: DLedgerState | None = None
    damage: list[str] = []


class ControllerPeer(AdminResult, frozen=True, kw_only=True):
    """One member of a quorum, or of a DLedger group. `match_index` is the index up to which it has the
    leader's log, as the leader knows; null in the state of others."""

    id: str
    address: str
    match_index: int | None = None


class ReplicaGroupMember(AdminResult, frozen=True, kw_only=True):
    """One replica in a controller's state. `alive`: its heartbeats reach this controller. `in_doubt`: it
    reports that its log may lack acknowledged messages."""

    broker_id: int
    address: str
    alive: bool
    in_doubt: bool = False


class RefusedProcess(AdminResult, frozen=True, kw_only=True):
    """A process whose heartbeats this controller does not count, because its store does not continue that of
    its broker id. `reason` says what to do."""

    broker_id: int
    address: str
    reason: str


class ReplicaGroupState(AdminResult, frozen=True, kw_only=True):
    """One replica group in the state that a controller has applied; a follower may be slightly behind.
    `eligible`: replicas outside the SyncStateSet that have every acknowledged message, because the set is too
    small to acknowledge. `refused`: processes of the group that this controller refuses at present. `waits`:
    why the leading controller elects no master until a missing member returns or an administrator orders an
    election."""

    broker_name: str
    cluster: str
    master_broker_id: int | None
    master_epoch: int
    sync_state_set: list[int]
    sync_state_set_epoch: int
    replicas: list[ReplicaGroupMember]
    eligible: list[int] = []
    refused: list[RefusedProcess] = []
    waits: str | None = None


class NameserverCounts(AdminResult, frozen=True, kw_only=True):
    """The numbers of brokers, broker names and topics that a nameserver knows."""

    address: str
    brokers: int
    broker_names: int
    topics: int


class ControllerState(AdminResult, frozen=True, kw_only=True, tag_field="component", tag="controller"):
    """Result of STATE from a controller. `leader`: the id of the leader it knows. `leads`: it is the
    leader and has applied everything that earlier leaders committed. `nameserver`: set when the process is
    a nameserver with a controller inside. `messages_rejected`: messages since the start that no correct
    controller sends."""

    id: str
    group: str
    address: str
    role: Literal["leader", "follower", "candidate"]
    term: int
    leader: str | None
    leader_address: str | None
    leads: bool
    peers: list[ControllerPeer]
    committed_index: int
    applied_index: int
    groups: list[ReplicaGroupState]
    ready: bool
    not_ready: list[str]
    nameserver: NameserverCounts | None = None
    messages_rejected: int = 0


class NameserverState(AdminResult, frozen=True, kw_only=True, tag_field="component", tag="nameserver"):
    """Result of STATE from a nameserver without a controller."""

    address: str
    brokers: int
    broker_names: int
    topics: int
    ready: bool
    not_ready: list[str]


ProcessState = BrokerState | ControllerState | NameserverState


class EpochRange(AdminResult, frozen=True, kw_only=True):
    """An epoch of the log. The last one has no end offset."""

    epoch: int
    start_offset: int
    end_offset: int | None


class EpochHistory(AdminResult, frozen=True, kw_only=True):
    """Result of EPOCHS."""

    broker_id: int | None
    max_offset: int
    epochs: list[EpochRange]


class EpochFileContent(AdminResult, frozen=True, kw_only=True):
    """Result of EPOCH_FILE: the bytes of the file, base64 in JSON."""

    path: str
    content: bytes


class SyncStateSetState(AdminResult, frozen=True, kw_only=True):
    """Result of SYNC_STATE_SET. `proposed`: a set that the master sent to the controllers, which may or
    may not have accepted it."""

    master_broker_id: int | None
    master_epoch: int
    members: list[int]
    epoch: int
    proposed: list[int] | None = None


class ReplicaLag(AdminResult, frozen=True, kw_only=True):
    """One replica in its master's view. `ack_offset` is -1 before its first acknowledgement."""

    broker_id: int
    ack_offset: int
    lag_bytes: int
    in_sync: bool
    learner: bool


class ReplicationLag(AdminResult, frozen=True, kw_only=True):
    """Result of LAG. `replicas`: the replicas connected to this broker."""

    role: Literal["master", "replica", "none"]
    max_offset: int
    lag_bytes: int | None
    lag_ms: int | None
    replicas: list[ReplicaLag]


class LeaseState(AdminResult, frozen=True, kw_only=True):
    """Result of LEASE. `granted_by_leader`: None while it is unknown whether the leading controller grants
    leases. `may_write`: leases do not prevent writes."""

    epoch: int | None
    lease: Lease | None
    granted_by_leader: bool | None
    may_write: bool


class SettledStore(AdminResult, frozen=True, kw_only=True):
    """Result of ADOPT_STORE and DISCARD_STORE: the broker id that the store has now."""

    broker_id: int


class EffectiveConfig(AdminResult, frozen=True, kw_only=True):
    """Result of CONFIG and CHANGE_CONFIG: every key and its value in force."""

    config: dict[str, str]


class MetricSample(msgspec.Struct, frozen=True, array_like=True):
    """One sample of a metric with RocketMQ's name (without `rocketmq_`) and labels."""

    name: str
    labels: dict[str, str]
    value: float


class MetricValues(AdminResult, frozen=True, kw_only=True):
    """Result of METRICS: the state, values by the name of their metric without `epochmq_`, and the samples of
    RocketMQ's metrics with the labels that all of them have."""

    state: ProcessState
    values: dict[str, float] = msgspec.field(name="figures")
    rocketmq: list[MetricSample] = []
    rocketmq_labels: dict[str, str] = {}


class SwitchoverResult(AdminResult, frozen=True, kw_only=True):
    """Result of PROMOTE and HANDOVER. `moved`: the mastership went to another replica; if not, `reason`
    says why there was nothing to do. `held_ms`: how long sends waited; in a DLedger group, how long the
    transfer took, while the group rejected sends."""

    moved: bool
    reason: str = ""
    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int = 0
    held_ms: int = 0


class LeadershipTransferResult(AdminResult, frozen=True, kw_only=True):
    """Result of HANDOVER from a controller: the leader it knows now. `moved`: it transferred the
    leadership; if not, `reason` says why there was nothing to do."""

    moved: bool
    reason: str = ""
    leader: str | None = None
    term: int = 0


class MembersResult(AdminResult, frozen=True, kw_only=True):
    """Result of CHANGE_MEMBERS: the members after the change, which is committed."""

    members: list[ControllerPeer]
    leader: str | None = None
    term: int = 0


class ReplicaControlResult(AdminResult, frozen=True, kw_only=True):
    """Result of FENCE, UNFENCE, DRAIN and UNDRAIN: the control state after it. `switched`: the switchover
    that draining a master needed."""

    fenced: bool
    drained: bool
    takes_messages: bool
    switched: SwitchoverResult | None = None


class LogLevelResult(AdminResult, frozen=True, kw_only=True):
    """Result of LOG_LEVEL. `before`: the former level."""

    logger: str
    level: str
    before: str
