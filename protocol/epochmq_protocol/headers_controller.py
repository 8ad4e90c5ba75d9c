"""Declares the headers between brokers, controllers and nameservers, with the fields of RocketMQ 5.3.3.

They carry elections, broker ids, roles and HA addresses.
"""

from __future__ import annotations

from epochmq_protocol.codes import RequestCode
from epochmq_protocol.headers_base import Header, request_of, response_to
from epochmq_protocol.integers import Int, Long

LOG_IN_DOUBT_FIELD = "mayLackAcknowledged"
"""Our own ext field of a broker's heartbeat (904) and of its request to be elected (1002). `true`: the log
is in doubt, it may lack acknowledged messages."""
CONFIRMED_BY_ALL_FIELD = "confirmedByAll"
"""Our own ext field of a heartbeat: the offset up to which every member of the SyncStateSet has the log."""
HEARS_MASTER_FIELD = "hearsMasterEpoch"
"""Our own ext field of a replica's heartbeat: the epoch of a master that has answered it just now, and may
write."""
LEASE_EPOCH_FIELD = "writeLeaseEpoch"
"""Our own ext field of a heartbeat: the sender requests a write lease under this master epoch."""
LEASE_MS_FIELD = "writeLeaseMs"
"""Our own ext field of the response to such a heartbeat: the length of the granted lease, milliseconds."""
MIN_IN_SYNC_FIELD = "minInSyncReplicas"
"""In a request to change the SyncStateSet (1001): with how many members the new set acknowledges messages. In
the controllers' messages that name a set: with how many members it does. 1 if the field is absent."""
FENCED_EPOCH_FIELD = "fencedEpoch"
"""Our own ext field of a heartbeat: the sender accepts no more writes under this master epoch. A master that
requests its successor's election (1002) sends it too."""
INCARNATION_FIELD = "incarnation"
"""Our own ext field of a heartbeat and of a registration (1003): the random name of the sending process, then
the names of the former processes of its store, the latest first, separated by commas. The response to a
registration carries the name that was recorded. Java's brokers send none."""
ADOPTS_STORE_FIELD = "adoptsStore"
"""Our own ext field of a registration. `true`: an administrator has accepted the sender's store for its
broker id, although it does not continue the registered one."""


@request_of(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE)
class NotifyMinBrokerIdChangeRequestHeader(Header, kw_only=True):
    min_broker_id: Long | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


@request_of(RequestCode.EXCHANGE_BROKER_HA_INFO)
class ExchangeHAInfoRequestHeader(Header, kw_only=True):
    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None


@response_to(RequestCode.EXCHANGE_BROKER_HA_INFO)
class ExchangeHAInfoResponseHeader(Header, kw_only=True):
    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None


@request_of(RequestCode.RESET_MASTER_FLUSH_OFFSET)
class ResetMasterFlushOffsetHeader(Header, kw_only=True):
    master_flush_offset: Long


@request_of(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET)
class AlterSyncStateSetRequestHeader(Header, kw_only=True):
    """`invoke_time` is in epoch milliseconds of the sender."""

    broker_name: str | None = None
    master_broker_id: Long | None = None
    master_epoch: Int | None = None
    invoke_time: Long = 0


@response_to(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET)
class AlterSyncStateSetResponseHeader(Header, kw_only=True):
    new_sync_state_set_epoch: Int = 0


@request_of(RequestCode.CONTROLLER_ELECT_MASTER)
class ElectMasterRequestHeader(Header, kw_only=True):
    """`invoke_time` is in epoch milliseconds of the sender."""

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: Long = -1
    designate_elect: bool = False
    invoke_time: Long = 0


@response_to(RequestCode.CONTROLLER_ELECT_MASTER)
class ElectMasterResponseHeader(Header, kw_only=True):
    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None


@request_of(RequestCode.CONTROLLER_REGISTER_BROKER)
class RegisterBrokerToControllerRequestHeader(Header, kw_only=True):
    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: Long | None = None
    broker_address: str | None = None
    invoke_time: Long = 0


@response_to(RequestCode.CONTROLLER_REGISTER_BROKER)
class RegisterBrokerToControllerResponseHeader(Header, kw_only=True):
    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None


@request_of(RequestCode.CONTROLLER_GET_REPLICA_INFO)
class GetReplicaInfoRequestHeader(Header, kw_only=True):
    broker_name: str | None = None


@response_to(RequestCode.CONTROLLER_GET_REPLICA_INFO)
class GetReplicaInfoResponseHeader(Header, kw_only=True):
    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None


@response_to(RequestCode.CONTROLLER_GET_METADATA_INFO)
class GetMetaDataResponseHeader(Header, kw_only=True):
    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None


@request_of(RequestCode.NOTIFY_BROKER_ROLE_CHANGED)
class NotifyBrokerRoleChangedRequestHeader(Header, kw_only=True):
    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None
    master_broker_id: Long | None = None


@request_of(RequestCode.CLEAN_BROKER_DATA)
class CleanControllerBrokerDataRequestHeader(Header, kw_only=True):
    cluster_name: str | None = None
    broker_name: str
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False
    invoke_time: Long = 0


@request_of(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID)
class GetNextBrokerIdRequestHeader(Header, kw_only=True):
    cluster_name: str | None = None
    broker_name: str | None = None


@response_to(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID)
class GetNextBrokerIdResponseHeader(Header, kw_only=True):
    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: Long | None = None


@request_of(RequestCode.CONTROLLER_APPLY_BROKER_ID)
class ApplyBrokerIdRequestHeader(Header, kw_only=True):
    cluster_name: str | None = None
    broker_name: str | None = None
    applied_broker_id: Long | None = None
    register_check_code: str | None = None


@response_to(RequestCode.CONTROLLER_APPLY_BROKER_ID)
class ApplyBrokerIdResponseHeader(Header, kw_only=True):
    cluster_name: str | None = None
    broker_name: str | None = None
