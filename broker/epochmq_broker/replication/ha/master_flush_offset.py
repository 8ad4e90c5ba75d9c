"""Keeps the flush offset that a slave learns of its master when it meets it first (masterFlushedOffset).

RocketMQ's brokers show it in GET_BROKER_HA_STATUS and keep it in the checkpoint; nothing depends on it.
"""

from __future__ import annotations

from epochmq_broker.config.broker_config import BrokerConfig
from epochmq_store.message_store import MessageStore


def adopt_master_flush_offset(store: MessageStore, config: BrokerConfig, offset: int | None) -> None:
    """Keeps the offset that a master sent (906), with syncMasterFlushOffsetWhenStartup and if none is kept
    yet."""
    if config.sync_master_flush_offset_when_startup and offset and not store.checkpoint.master_flushed_offset:
        store.checkpoint.master_flushed_offset = offset
