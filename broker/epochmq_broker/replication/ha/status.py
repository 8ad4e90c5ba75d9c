"""Describes the state of replication in RocketMQ's response bodies."""

from __future__ import annotations

from epochmq_broker.config.broker_config import BrokerConfig
from epochmq_broker.replication.ha.service import HAService
from epochmq_protocol.bodies import (
    EpochEntry,
    EpochEntryCache,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
)


def ha_runtime_info(ha: HAService, config: BrokerConfig) -> HARuntimeInfo:
    """The body of a response to GET_BROKER_HA_STATUS."""
    if ha.client is not None:
        return HARuntimeInfo(master=False, ha_client_runtime_info=ha.client.runtime_info())
    end = ha.store.max_phy_offset
    info = HARuntimeInfo(master=True, master_commit_log_max_offset=end)
    sync, master = ha.sync_state, ha.server
    if sync is None or master is None:
        return info
    gap = config.ha_max_gap_not_in_sync
    for connection in master.transferring:
        near = end - connection.ack_offset < gap
        info.ha_connection_info.append(
            HAConnectionRuntimeInfo(
                addr=connection.remote,
                slave_ack_offset=connection.ack_offset,
                diff=end - connection.ack_offset,
                in_sync=connection.broker_id in sync.members if ha.controlled else near,
                transferred_byte_in_second=connection.flow.bytes_per_second,
                transfer_from_where=connection.position,
            )
        )
    near_count = sum(one.in_sync for one in info.ha_connection_info)
    info.in_sync_slave_nums = len(sync.members) - 1 if ha.controlled else near_count
    return info


def epoch_entry_cache(ha: HAService, config: BrokerConfig) -> EpochEntryCache:
    """The body of a response to GET_BROKER_EPOCH_CACHE."""
    epochs = ha.epochs.epochs
    return EpochEntryCache(
        cluster_name=config.broker_cluster_name,
        broker_name=config.broker_name,
        broker_id=config.broker_id,
        epoch_list=[
            EpochEntry(epoch=entry.epoch, start_offset=entry.start_offset, end_offset=epochs.end_of(entry))
            for entry in epochs.entries
        ],
        max_offset=ha.store.max_phy_offset,
    )
