"""Bundles the broker's components that the mqadmin processors use, with the lookups that several of them
need."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.membership.registration import NameserverRegistration
from epochmq_broker.replication.ha.service import HAService
from epochmq_broker.services.compaction.compacted_reads import CompactedReads
from epochmq_broker.services.delay_service import DelayService
from epochmq_broker.services.timer.timer_service import TimerService
from epochmq_broker.tables.clients import ClientRegistry
from epochmq_broker.tables.consumer_offsets import ConsumerOffsetTable
from epochmq_broker.tables.filters.consumer_filters import ConsumerFilterTable
from epochmq_broker.tables.metric_tables import HistogramTable
from epochmq_broker.tables.state_files import StateFiles
from epochmq_broker.tables.static_topics.mapping_table import StaticTopicTable
from epochmq_broker.tables.stats import BrokerStats
from epochmq_broker.tables.subscription_groups import SubscriptionGroupTable
from epochmq_broker.tables.topics import TopicTable
from epochmq_protocol.bodies import MessageQueue
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.topics import TopicConfig
from epochmq_store.message_store import MessageStore

REGISTRATION_WAIT_MAX_MS = 2000
"""How long a changed topic waits for a nameserver that does not respond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MqadminDependencies:
    """The broker's components that mqadmin's requests read and change. `group_info`: the entries of the
    runtime information about the broker's role in its group."""

    live: LiveConfig
    store: MessageStore
    topics: TopicTable
    groups: SubscriptionGroupTable
    offsets: ConsumerOffsetTable
    clients: ClientRegistry
    stats: BrokerStats
    files: StateFiles
    filters: ConsumerFilterTable
    delays: DelayService
    registration: NameserverRegistration
    ha: HAService
    static_topics: StaticTopicTable
    timer: TimerService | None
    compacted: CompactedReads
    group_info: Callable[[], Mapping[str, str]]

    async def registered(self) -> None:
        """Waits until the reachable nameservers have the change: the next route that the caller gets then
        contains it. Waits at most registerBrokerTimeoutMills, and less than the 3 s after which RocketMQ's
        clients give up, because the change itself is made."""
        timeout_ms = min(self.live.current.register_broker_timeout_mills, REGISTRATION_WAIT_MAX_MS)
        await self.registration.wait_until_registered(timeout_ms)

    @contextlib.contextmanager
    def timed(self, table: HistogramTable, *labels: str) -> Iterator[None]:
        """Records how long a request takes, and whether it succeeds; with `labels` after these."""
        began_s, status = time.monotonic(), "failure"
        try:
            yield
            status = "success"
        finally:
            table.record(int((time.monotonic() - began_s) * 1000), status, *labels)

    def message_queue(self, topic: str, queue_id: int) -> MessageQueue:
        """A queue of this broker as it appears in bodies."""
        return MessageQueue(topic, self.live.current.broker_name, queue_id)

    def topic(self, name: str) -> TopicConfig:
        """Returns the topic's configuration. Raises RequestError TOPIC_NOT_EXIST."""
        config = self.topics.get(name)
        if config is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        return config

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The offset of the queue's next message; 0 for an unused queue."""
        queue = self.store.lookup.existing_queue(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def min_offset(self, topic: str, queue_id: int) -> int:
        """See `CompactedReads.first_offset`."""
        return self.compacted.first_offset(topic, queue_id)

    def subscribes(self, group: str, topic: str) -> bool:
        """Whether a group consumes a topic. An online group consumes what it subscribes. A group without
        known subscriptions counts as consuming every topic."""
        return (
            not self.clients.subscription_count(group) or self.clients.subscription(group, topic) is not None
        )
