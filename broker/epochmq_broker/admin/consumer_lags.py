"""Computes how far consumer groups are behind, by queue (RocketMQ's ConsumerLagCalculator).

Of a group that subscribes by tags or by an SQL92 expression only the messages count that it selects, with
`estimateAccumulation`. They are counted in the queue or in a sample of it: of tags, in as many units as
`maxConsumeQueueScan` says; of expressions, which need the messages' properties, in `MESSAGES_PER_QUEUE`
messages that are in memory. The bounds shrink when one collection looks at many queues.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from epochmq_broker.config.broker_config import BrokerConfig
from epochmq_broker.services.pop.pop_service import PopService
from epochmq_broker.tables.broker_tables import BrokerTables
from epochmq_broker.tables.clients import ConsumerGroup
from epochmq_broker.tables.filters.message_filter import MessageFilter, carried_filter, registered_filter
from epochmq_broker.tables.subscriptions import is_tag_type, wanted_codes
from epochmq_protocol.bodies import ConsumeType, SubscriptionData
from epochmq_store.files.page_residency import NotResidentError
from epochmq_store.message_store import MessageStore
from epochmq_store.queues.consume_queue import ConsumeQueue

UNITS_PER_COLLECTION: Final = 1_000_000
UNITS_MIN: Final = 100
"""Units of consume queues that one collection examines because of tags, and those that it examines of a queue
in any case."""
MESSAGES_PER_QUEUE: Final = 512
MESSAGES_PER_COLLECTION: Final = 20_000
MESSAGES_MIN: Final = 16
"""The same for messages whose properties an expression needs."""


class QueueLag(NamedTuple):
    """How far one group is behind on one queue, in messages. The times are epoch ms, and -1 where there is no
    such message, or where the disk would have to be read."""

    lag: int
    """Not consumed."""
    ready: int
    """Not fetched."""
    in_flight: int
    """Fetched, and not consumed."""
    unconsumed_ms: int
    """When the first message was stored that is not consumed."""
    unfetched_ms: int
    """When the first message was stored that is not fetched."""


class Bounds(NamedTuple):
    """How much a count may examine of one queue."""

    units: int
    matched: int
    """More matches than these end a count by tags."""
    messages: int

    @classmethod
    def of(cls, config: BrokerConfig, queues: int) -> Bounds:
        """The bounds of a collection that looks at so many queues with a filter."""
        return cls(
            max(UNITS_MIN, min(config.max_consume_queue_scan, UNITS_PER_COLLECTION // max(queues, 1))),
            config.sample_count_threshold,
            max(MESSAGES_MIN, min(MESSAGES_PER_QUEUE, MESSAGES_PER_COLLECTION // max(queues, 1))),
        )


class ConsumerLags:
    """The lags of one broker's groups."""

    def __init__(self, store: MessageStore, tables: BrokerTables, pop: PopService) -> None:
        self._store = store
        self._tables = tables
        self._pop = pop

    def of_queue(self, group: ConsumerGroup, topic: str, queue_id: int, bounds: Bounds | None) -> QueueLag:
        """How far a group is behind. Without `bounds` every message counts."""
        queue = self._store.lookup.existing_queue(topic, queue_id)
        end = 0 if queue is None else max(0, queue.max_offset)
        place = (topic, queue_id)
        matching = _Matching(self._store, queue, self._filter_of(group, topic, bounds), bounds)
        if group.consume_type is ConsumeType.CONSUME_POP:
            in_flight = self._pop.in_flight.count(topic, group.name, queue_id)
            fetched = self._pop.buffer.latest_offset((topic, group.name, queue_id))
            if fetched < 0:
                fetched = _known(self._tables.offsets.query(group.name, topic, queue_id), end)
            ready = matching.count(fetched, end)
            return QueueLag(
                ready + in_flight,
                ready,
                in_flight,
                self._stored_ms(place, fetched - in_flight),
                self._stored_ms(place, fetched),
            )
        pulled = self._tables.offsets.query_pull(group.name, topic, queue_id)
        committed = self._tables.offsets.query(group.name, topic, queue_id)
        consumed, fetched = _known(committed, end), _known(pulled, 0)
        ready = matching.count(_known(pulled, end), end)
        in_flight = matching.count(_known(committed, fetched), fetched)
        is_known = committed is not None and pulled is not None and 0 <= committed <= pulled <= end
        lag = ready + in_flight if is_known else matching.count(consumed, end)
        return QueueLag(
            lag, ready, in_flight, self._stored_ms(place, consumed), self._stored_ms(place, fetched)
        )

    def is_filtered(self, group: ConsumerGroup, topic: str) -> bool:
        """Whether a group selects only some messages of a topic."""
        subscription = group.subscriptions.get(topic)
        return subscription is not None and (
            not is_tag_type(subscription.expression_type) or wanted_codes(subscription) is not None
        )

    def _filter_of(self, group: ConsumerGroup, topic: str, bounds: Bounds | None) -> MessageFilter:
        subscription: SubscriptionData | None = group.subscriptions.get(topic)
        if bounds is None or subscription is None:
            return MessageFilter()
        registered = self._tables.filters.get(topic, group.name)
        if registered is None or registered.data.expression != subscription.sub_string:
            return carried_filter(subscription)
        return registered_filter(registered)

    def _stored_ms(self, queue: tuple[str, int], offset: int) -> int:
        if offset < 0:
            return -1
        try:
            with self._store.reader.resident:
                return self._store.lookup.store_time(*queue, offset)
        except NotResidentError:
            return -1


class _Matching:
    """Counts the messages of one queue that a filter matches."""

    def __init__(
        self, store: MessageStore, queue: ConsumeQueue | None, wanted: MessageFilter, bounds: Bounds | None
    ) -> None:
        self._reader = store.reader
        self._queue = queue
        self._wanted = wanted
        self._bounds = bounds

    def count(self, start: int, end: int) -> int:
        """The matching messages at the offsets [start, end), or an estimate of their number. All of them if
        those that would be examined are not in memory."""
        queue, bounds, wanted = self._queue, self._bounds, self._wanted
        messages = max(0, end - start)
        if not messages or queue is None or bounds is None or (wanted.tags is None and wanted.select is None):
            return messages
        start = max(start, min(queue.min_offset, end))
        messages = end - start
        size = bounds.units if wanted.tags is not None else bounds.messages
        # The newest messages are in memory more often than the first ones of a group that is far behind.
        for first in dict.fromkeys((start, max(start, end - size))):
            try:
                last = min(end, first + size)
                if wanted.select is not None:
                    found = self._reader.count_selected(queue, first, last, wanted.select, wanted.excludes)
                else:
                    assert wanted.tags is not None
                    found = self._reader.count_tagged(queue, first, last, wanted.tags, bounds.matched)
            except NotResidentError:
                continue
            return found.estimate(messages)
        return messages


def _known(offset: int | None, otherwise: int) -> int:
    return otherwise if offset is None or offset < 0 else offset
