"""Collects the metrics of a broker under RocketMQ's names and labels (BrokerMetricsManager,
DefaultStoreMetricsManager, ConsumerLagCalculator).

A broker may have very many topics and groups. So the collection pauses for other work, and a metric has at
most `SERIES_MAX` series.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from epochmq_broker.admin.consumer_lags import Bounds, ConsumerLags, QueueLag
from epochmq_broker.config.broker_config import BrokerConfig
from epochmq_broker.config.clock import now_ms
from epochmq_broker.tables.broker_tables import BrokerTables
from epochmq_broker.tables.clients import ConsumerGroup
from epochmq_broker.tables.metric_tables import HISTOGRAMS_MAX, Sample
from epochmq_broker.tables.stats import GROUP_GET_NUMS, GROUP_GET_SIZE, SNDBCK2DLQ_TIMES, ReceivedMessages
from epochmq_protocol.admin_api.results import MetricSample
from epochmq_protocol.bodies import ConsumeType
from epochmq_protocol.codes import LanguageCode, version_name
from epochmq_protocol.topics import (
    CID_RMQ_SYS_PREFIX,
    DLQ_GROUP_TOPIC_PREFIX,
    PERM_READ,
    PERM_WRITE,
    is_retry_topic,
    pop_retry_topic,
)
from epochmq_store.files.page_residency import NotResidentError
from epochmq_store.message_store import MessageStore

T = TypeVar("T")

SERIES_MAX = 5000
"""Series of one metric; further ones are left out."""
PAUSE_EVERY = 500
"""Queues, or counters, that are read without a pause: about a millisecond."""
QUEUES_OF_FILTER = 250
"""So many queues take as long as one whose messages are counted by a filter."""
SYSTEM_GROUPS = CID_RMQ_SYS_PREFIX.lower()
MODES = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}
_STORAGE = {"storage_type": "local", "storage_medium": "disk"}


class RocketMQMetrics:
    """The metrics of one broker."""

    def __init__(
        self,
        store: MessageStore,
        tables: BrokerTables,
        lags: ConsumerLags,
        service_samples: Callable[[], Iterable[Sample | None]] = lambda: (),
    ) -> None:
        """`service_samples` are those of transactions, timer messages, POP and requests, and None where the
        collection should pause."""
        self._store = store
        self._tables = tables
        self._lags = lags
        self._service_samples = service_samples

    async def collect(self, config: BrokerConfig) -> list[MetricSample]:
        """All samples, without the labels that every one has."""
        found = _Samples()
        self._broker(found, config)
        self._storage(found, config)
        await self._traffic(found)
        self._connections(found)
        async for sample in _paused(self._service_samples()):
            if sample is None:
                await asyncio.sleep(0)
            else:
                found.add_sample(*sample)
        await self._consumers(found, config)
        return found.samples

    def _broker(self, found: _Samples, config: BrokerConfig) -> None:
        found.add("broker_permission", config.broker_permission)
        found.add("topic_number", len(self._tables.topics))
        found.add("consumer_group_number", len(self._tables.groups.table))
        for key, item in self._tables.stats.items(SNDBCK2DLQ_TIMES):
            topic, _, group = key.rpartition("@")
            labels = {"topic": topic, "consumer_group": group, "is_system": self._is_system(topic, group)}
            found.add("send_to_dlq_messages_total", item.value, **labels)
        stats = self._tables.stats
        for sample in stats.topic_changes_ms.samples("topic_create_execution_time_milliseconds"):
            found.add_sample(*sample)
        for sample in stats.group_changes_ms.samples("consumer_group_create_execution_time_milliseconds"):
            found.add_sample(*sample)

    def _storage(self, found: _Samples, config: BrokerConfig) -> None:
        store = self._store
        try:
            disk = os.statvfs(config.root_dir)
            found.add("storage_size_bytes", (disk.f_blocks - disk.f_bfree) * disk.f_frsize, **_STORAGE)
        except OSError:
            pass  # the other metrics must still come
        found.add("storage_flush_behind_bytes", store.unflushed_bytes, **_STORAGE)
        found.add("storage_dispatch_behind_bytes", store.dispatch_behind_bytes, **_STORAGE)
        oldest = self._oldest_ms()
        if oldest > 0:
            found.add("storage_message_reserve_time_milliseconds", now_ms() - oldest, **_STORAGE)

    async def _traffic(self, found: _Samples) -> None:
        stats = self._tables.stats
        get_sizes = dict(stats.items(GROUP_GET_SIZE))
        normal: dict[str, ReceivedMessages] = {}
        async for topic, counter in _paused(stats.puts()):
            if not is_retry_topic(topic) and not topic.startswith(DLQ_GROUP_TOPIC_PREFIX):
                normal.setdefault(topic, ReceivedMessages()).add_all(counter.received())
        received = [((topic, "normal"), messages) for topic, messages in normal.items()]
        for (topic, kind), messages in stats.typed_traffic().items():
            if topic in normal:
                normal[topic].add_all(messages, -1)
                received.append(((topic, kind), messages))
        histograms = 0
        async for (topic, kind), messages in _paused(received):
            if messages.messages <= 0:
                continue
            labels = {
                "topic": topic,
                "message_type": kind,
                "is_system": _text(self._tables.topics.is_system_topic(topic)),
            }
            found.add("messages_in_total", messages.messages, **labels)
            found.add("throughput_in_total", messages.bytes, **labels)
            histograms += 1
            if histograms <= HISTOGRAMS_MAX:
                for sample in messages.sizes.samples("message_size", labels):
                    found.add_sample(*sample)
        async for key, item in _paused(stats.items(GROUP_GET_NUMS)):
            topic, _, group = key.rpartition("@")
            if not is_retry_topic(topic) and item.value:
                labels = {
                    "topic": topic,
                    "consumer_group": group,
                    "is_system": self._is_system(topic, group),
                }
                found.add("messages_out_total", item.value, **labels)
                found.add("throughput_out_total", get_sizes[key].value if key in get_sizes else 0, **labels)

    def _connections(self, found: _Samples) -> None:
        clients = self._tables.clients
        producers: dict[tuple[int, int], int] = {}
        for members in clients.producers.values():
            for client in members.values():
                key = (client.language, client.version)
                producers[key] = producers.get(key, 0) + 1
        for (language, version), count in producers.items():
            found.add("producer_connections", count, **_client_labels(language, version))
        for group in list(clients.groups.values()):
            consumers: dict[tuple[int, int], int] = {}
            for client in group.clients.values():
                key = (client.language, client.version)
                consumers[key] = consumers.get(key, 0) + 1
            for (language, version), count in consumers.items():
                labels = {
                    **_client_labels(language, version),
                    "consumer_group": group.name,
                    "consume_mode": MODES.get(str(group.consume_type), "push"),
                    "is_system": _text(group.name.lower().startswith(SYSTEM_GROUPS)),
                }
                found.add("consumer_connections", count, **labels)

    async def _consumers(self, found: _Samples, config: BrokerConfig) -> None:
        """The lag of the online groups on the topics to which they subscribe."""
        lags = self._lags
        rows = list(self._subscribed(config))
        filtered = [lags.is_filtered(group, topic) for group, topic in rows]
        queues = sum(
            self._queues_of(topic)
            for (_, topic), is_filtered in zip(rows, filtered, strict=True)
            if is_filtered
        )
        bounds = Bounds.of(config, queues) if config.estimate_accumulation else None
        done = 0
        for (group, topic), is_filtered in zip(rows, filtered, strict=True):
            names = [(topic, "false")]
            if group.consume_type is ConsumeType.CONSUME_POP:
                names.append((self._pop_retry_topic(group.name, topic, config), "true"))
            for name, is_retry in names:
                found_lags = []
                for queue_id in range(self._queues_of(name)):
                    found_lags.append(lags.of_queue(group, name, queue_id, bounds))
                    done += QUEUES_OF_FILTER if is_filtered else 1
                    if done >= PAUSE_EVERY:
                        done = 0
                        await asyncio.sleep(0)
                self._add_lags(found, group.name, topic, is_retry, found_lags)

    def _subscribed(self, config: BrokerConfig) -> Iterator[tuple[ConsumerGroup, str]]:
        """The groups, each with the topics that it may consume."""
        for group in self._tables.clients.seen_groups:
            for topic in list(group.subscriptions):
                known = self._tables.topics.get(topic)
                if known is None or is_retry_topic(topic):
                    continue
                if known.perm & config.broker_permission & (PERM_READ | PERM_WRITE):
                    yield group, topic

    def _queues_of(self, topic: str) -> int:
        known = self._tables.topics.get(topic)
        return 0 if known is None else known.write_queue_nums

    def _pop_retry_topic(self, group: str, topic: str, config: BrokerConfig) -> str:
        """The retry topic of a group that pops. The older kind only if there is no newer one."""
        if config.enable_retry_topic_v2:
            newer = pop_retry_topic(topic, group, is_v2=True)
            if self._tables.topics.get(newer) is not None:
                return newer
            if not config.retrieve_message_from_pop_retry_topic_v1:
                return newer
        return pop_retry_topic(topic, group)

    def _add_lags(
        self, found: _Samples, group: str, topic: str, is_retry: str, lags: Sequence[QueueLag]
    ) -> None:
        labels = {
            "consumer_group": group,
            "topic": topic,
            "is_retry": is_retry,
            "is_system": self._is_system(topic, group),
        }
        found.add("consumer_lag_messages", sum(lag.lag for lag in lags), **labels)
        found.add("consumer_ready_messages", sum(lag.ready for lag in lags), **labels)
        found.add("consumer_inflight_messages", sum(lag.in_flight for lag in lags), **labels)
        unconsumed = _age(lag.unconsumed_ms for lag in lags)
        found.add("consumer_lag_latency_milliseconds", unconsumed, **labels)
        unfetched = _age(lag.unfetched_ms for lag in lags)
        found.add("consumer_queueing_latency_milliseconds", unfetched, **labels)

    def _oldest_ms(self) -> int:
        """The store time (epoch ms) of the first message of the log; -1 if there is none, or if the disk
        would have to be read."""
        try:
            with self._store.reader.resident:
                return self._store.lookup.earliest_time()
        except NotResidentError:
            return -1

    def _is_system(self, topic: str, group: str) -> str:
        return _text(self._tables.topics.is_system_topic(topic) or group.lower().startswith(SYSTEM_GROUPS))


class _Samples:
    """The samples of one collection."""

    def __init__(self) -> None:
        self.samples: list[MetricSample] = []
        self._counts: dict[str, int] = {}

    def add(self, name: str, value: float, **labels: str) -> None:
        self.add_sample(name, value, labels)

    def add_sample(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        count = self._counts[name] = self._counts.get(name, 0) + 1
        if count <= SERIES_MAX:
            self.samples.append(MetricSample(name, dict(labels), float(value)))


async def _paused(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, with pauses for other work."""
    for at, item in enumerate(items):
        if at % PAUSE_EVERY == PAUSE_EVERY - 1:
            await asyncio.sleep(0)
        yield item


def _client_labels(language: int, version: int) -> dict[str, str]:
    return {
        "language": LanguageCode(language).name.lower(),
        "version": version_name(version).lower(),
        "protocol_type": "remoting",
    }


def _age(times_ms: Iterable[int]) -> int:
    """How old the oldest of these messages is, in ms; 0 without one."""
    known = [at for at in times_ms if at > 0]
    return max(0, now_ms() - min(known)) if known else 0


def _text(flag: bool) -> str:
    return "true" if flag else "false"
