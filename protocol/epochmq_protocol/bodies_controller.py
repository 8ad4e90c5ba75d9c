"""Declares the bodies of replication and election: members, SyncStateSets, epochs, HA."""

from __future__ import annotations

from msgspec import field

from epochmq_protocol.bodies_base import Body
from epochmq_protocol.integers import LONG_MAX, Int, Long


class BrokerMemberGroup(Body):
    """The members of one broker name: id to address."""

    cluster: str | None = None
    broker_name: str | None = None
    broker_addrs: dict[Long, str] = field(default_factory=dict)


class GetBrokerMemberGroupResponseBody(Body):
    """Response to GET_BROKER_MEMBER_GROUP."""

    broker_member_group: BrokerMemberGroup | None = None


class SyncStateSet(Body):
    """The SyncStateSet (the broker ids of the replicas in sync) and its epoch."""

    sync_state_set: set[Long] | None = None
    sync_state_set_epoch: Int = 0


class ReplicaIdentity(Body):
    """One replica in an overview."""

    broker_name: str | None = None
    broker_id: Long | None = None
    broker_address: str | None = None
    alive: bool | None = False


class ReplicasInfo(Body):
    """One broker name in an overview."""

    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int = 0
    sync_state_set_epoch: Int = 0
    in_sync_replicas: list[ReplicaIdentity] = field(default_factory=list)
    not_in_sync_replicas: list[ReplicaIdentity] = field(default_factory=list)


class BrokerReplicasInfo(Body):
    """Response to CONTROLLER_GET_SYNC_STATE_DATA: broker name to replicas."""

    replicas_info_table: dict[str, ReplicasInfo] = field(default_factory=dict)


class ElectMasterResponseBody(Body):
    """Response to CONTROLLER_ELECT_MASTER."""

    broker_member_group: BrokerMemberGroup | None = None
    sync_state_set: set[Long] = field(default_factory=set)


class RoleChangeNotifyEntry(Body):
    """The result of an election, inside a controller."""

    broker_member_group: BrokerMemberGroup | None = None
    master_address: str | None = None
    master_broker_id: Long | None = None
    master_epoch: Int = 0
    sync_state_set_epoch: Int = 0
    sync_state_set: set[Long] | None = None


class EpochEntry(Body):
    """One epoch of a log: [start_offset, end_offset); the last one has no end yet."""

    epoch: Int = 0
    start_offset: Long = 0
    end_offset: Long = LONG_MAX


class EpochEntryCache(Body):
    """Response to GET_BROKER_EPOCH_CACHE."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: Long = 0
    epoch_list: list[EpochEntry] = field(default_factory=list)
    max_offset: Long = 0


class HAConnectionRuntimeInfo(Body):
    """One slave in its master's view; offsets and differences in bytes."""

    addr: str | None = None
    slave_ack_offset: Long = 0
    diff: Long = 0
    in_sync: bool = False
    transferred_byte_in_second: Long = 0
    transfer_from_where: Long = 0


class HAClientRuntimeInfo(Body):
    """The master in a slave's view; times in epoch ms."""

    master_addr: str | None = None
    transferred_byte_in_second: Long = 0
    max_offset: Long = 0
    last_read_timestamp: Long = 0
    last_write_timestamp: Long = 0
    master_flush_offset: Long = 0


class HARuntimeInfo(Body):
    """Response to GET_BROKER_HA_STATUS."""

    master: bool = False
    master_commit_log_max_offset: Long = 0
    in_sync_slave_nums: Int = 0
    ha_connection_info: list[HAConnectionRuntimeInfo] = field(default_factory=list)
    ha_client_runtime_info: HAClientRuntimeInfo = field(default_factory=HAClientRuntimeInfo)


class BrokerSyncInfo(Body):
    """A master's HA address and flush offset, inside a broker."""

    master_ha_address: str | None = None
    master_flush_offset: Long = 0
    master_address: str | None = None


__all__ = [
    "BrokerMemberGroup",
    "BrokerReplicasInfo",
    "BrokerSyncInfo",
    "ElectMasterResponseBody",
    "EpochEntry",
    "EpochEntryCache",
    "GetBrokerMemberGroupResponseBody",
    "HAClientRuntimeInfo",
    "HAConnectionRuntimeInfo",
    "HARuntimeInfo",
    "ReplicaIdentity",
    "ReplicasInfo",
    "RoleChangeNotifyEntry",
    "SyncStateSet",
]
