"""Collects the metrics of a broker under RocketMQ's names and labels (BrokerMetricsManager,
DefaultStoreMetricsManager, ConsumerLagCalculator).

A broker may have very many topics and groups. So the collection pauses for other work, and a metric has at
most `SERIES_MAX` series.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TypeVar

from epochmq_broker.config.broker_config import BrokerConfig
from epochmq_broker.config.clock import now_ms
from epochmq_broker.tables.broker_tables import BrokerTables
from epochmq_broker.tables.metric_tables import HISTOGRAMS_MAX, Sample
from epochmq_broker.tables.stats import GROUP_GET_NUMS, GROUP_GET_SIZE, SNDBCK2DLQ_TIMES, ReceivedMessages
from epochmq_protocol.admin_api.results import MetricSample
from epochmq_protocol.codes import LanguageCode, version_name
from epochmq_protocol.topics import (
    CID_RMQ_SYS_PREFIX,
    DLQ_GROUP_TOPIC_PREFIX,
    PERM_READ,
    PERM_WRITE,
    is_retry_topic,
)
from epochmq_store.files.page_residency import NotResidentError
from epochmq_store.message_store import MessageStore

T = TypeVar("T")

SERIES_MAX = 5000
"""Series of one metric; further ones are left out."""
PAUSE_EVERY = 500
"""Queues, or counters, that are read without a pause: about a millisecond."""
SYSTEM_GROUPS = CID_RMQ_SYS_PREFIX.lower()
MODES = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}
_STORAGE = {"storage_type": "local", "storage_medium": "disk"}


class RocketMQMetrics:
    """The metrics of one broker."""

    def __init__(
        self,
        store: MessageStore,
        tables: BrokerTables,
        service_samples: Callable[[], Iterable[Sample | None]] = lambda: (),
    ) -> None:
        """`service_samples` are those of transactions, timer messages, POP and requests, and None where the
        collection should pause."""
        self._store = store
        self._tables = tables
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
        oldest = self._stored_at(None, 0)
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
        done = 0
        for group in list(self._tables.clients.groups.values()):
            for topic in list(group.subscriptions):
                topic_config = self._tables.topics.get(topic)
                if topic_config is None or is_retry_topic(topic):
                    continue
                if not topic_config.perm & config.broker_permission & (PERM_READ | PERM_WRITE):
                    continue
                self._add_lag(found, group.name, topic, topic_config.write_queue_nums)
                done += topic_config.write_queue_nums
                if done >= PAUSE_EVERY:
                    done = 0
                    await asyncio.sleep(0)

    def _add_lag(self, found: _Samples, group: str, topic: str, queues: int) -> None:
        offsets, lookup = self._tables.offsets, self._store.lookup
        lag = ready = inflight = 0
        unconsumed: list[int] = []
        unpulled: list[int] = []
        for queue_id in range(queues):
            queue = lookup.existing_queue(topic, queue_id)
            end = 0 if queue is None else max(0, queue.max_offset)
            pulled = offsets.query_pull(group, topic, queue_id)
            committed = offsets.query(group, topic, queue_id)
            consumed = end if committed is None or committed < 0 else committed
            lag += max(0, end - consumed)
            ready += 0 if pulled is None or pulled < 0 else max(0, end - pulled)
            pulled = 0 if pulled is None else max(0, pulled)
            at = pulled if committed is None or committed < 0 else committed
            inflight += max(0, pulled - at)
            unconsumed.append(self._stored_at((topic, queue_id), consumed))
            unpulled.append(self._stored_at((topic, queue_id), pulled))
        labels = {
            "consumer_group": group,
            "topic": topic,
            "is_retry": "false",
            "is_system": self._is_system(topic, group),
        }
        found.add("consumer_lag_messages", lag, **labels)
        found.add("consumer_ready_messages", ready, **labels)
        found.add("consumer_inflight_messages", inflight, **labels)
        found.add("consumer_lag_latency_milliseconds", _age(unconsumed), **labels)
        found.add("consumer_queueing_latency_milliseconds", _age(unpulled), **labels)

    def _stored_at(self, queue: tuple[str, int] | None, offset: int) -> int:
        """The store time (epoch ms) of a queue's message, or of the first of the log; -1 if there is none, or
        if the disk would have to be read."""
        try:
            with self._store.reader.resident:
                if queue is None:
                    return self._store.lookup.earliest_time()
                return self._store.lookup.store_time(*queue, offset)
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
