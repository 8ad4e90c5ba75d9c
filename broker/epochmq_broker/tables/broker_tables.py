"""Bundles the broker's tables: those in `config/*.json` with their files, and those in memory only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from epochmq_broker.auth.metadata import AuthMetadata
from epochmq_broker.auth.metadata_files import AuthFile
from epochmq_broker.config.broker_config import BrokerConfig
from epochmq_broker.config.clock import now_ms
from epochmq_broker.tables.clients import ClientRegistry
from epochmq_broker.tables.consumer_offsets import ConsumerOffsetTable
from epochmq_broker.tables.filters.bloom import BloomFilter
from epochmq_broker.tables.filters.consumer_filter_file import ConsumerFilterFile
from epochmq_broker.tables.filters.consumer_filters import ConsumerFilterTable
from epochmq_broker.tables.light_tables import (
    LightBrokerStats,
    LightConsumerOffsetTable,
    LightGroupTable,
    LightTopicTable,
)
from epochmq_broker.tables.message_request_modes import MessageRequestModeTable
from epochmq_broker.tables.rebalance_locks import RebalanceLocks
from epochmq_broker.tables.state_files import StateFiles
from epochmq_broker.tables.static_topics.mapping_table import StaticTopicTable
from epochmq_broker.tables.stats import BrokerStats
from epochmq_broker.tables.subscription_groups import SubscriptionGroupTable
from epochmq_broker.tables.topics import TopicTable
from epochmq_store.state_files.state_file_writer import StateFileWriter


class BrokerTables:
    """The tables of one broker. `state_version` returns the master epoch, 0 without controllers."""

    def __init__(self, config: BrokerConfig, state_version: Callable[[], int]) -> None:
        lmq = config.enable_lmq
        self.topics = (LightTopicTable if lmq else TopicTable)(config, now_ms, state_version)
        self.groups = (LightGroupTable if lmq else SubscriptionGroupTable)(config, now_ms, state_version)
        self.offsets = (LightConsumerOffsetTable if lmq else ConsumerOffsetTable)(
            now_ms,
            version_step=config.consumer_offset_update_version_step,
            server_side_reset=config.use_server_side_reset_offset,
            state_version=state_version,
        )
        self.file_writer = StateFileWriter()
        self.request_modes = MessageRequestModeTable(config.config_dir, self.file_writer.write)
        self.static_topics = StaticTopicTable(config.config_dir, now_ms, self.file_writer.write)
        self.static_topics.on_change.append(self.topics.derived_changed)
        self.auth = AuthMetadata()
        self.auth_file = AuthFile(config.config_dir, self.auth, self._write_surviving_kill)
        self.files = StateFiles(
            directory=config.config_dir,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            writer=self.file_writer,
        )
        self.clients = ClientRegistry(config.channel_expired_timeout, config.subscription_expired_timeout)
        self.filters = ConsumerFilterTable(
            BloomFilter(config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter)
        )
        self.filter_file = ConsumerFilterFile(config.config_dir, self.filters, self.file_writer.write)
        self.locks = RebalanceLocks()
        self.stats = (LightBrokerStats if lmq else BrokerStats)(
            config.broker_cluster_name, now_ms(), self.topics.is_system_topic
        )
        self._configure_stats(config)

    def _write_surviving_kill(self, path: Path, data: bytes) -> None:
        self.file_writer.write(path, data, survives_kill=True)

    def _configure_stats(self, config: BrokerConfig) -> None:
        if isinstance(self.stats, LightBrokerStats):
            self.stats.configure(counts_each=config.enable_lmq_stats)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Passes new settings to the tables that keep a copy."""
        self.topics.configure(config)
        self.groups.configure(config)
        self.offsets.configure(
            version_step=config.consumer_offset_update_version_step,
            server_side_reset=config.use_server_side_reset_offset,
        )
        self._configure_stats(config)
