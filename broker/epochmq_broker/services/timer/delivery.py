"""Stores due messages in their topics, or again in the timer topic (TimerMessageStore.doPut).

A message that cannot be stored now is tried again until it can be. RocketMQ drops it after three attempts,
unless timerEnableRetryUntilSuccess is set. A message that can never be stored goes to the quarantine;
RocketMQ drops it.
"""

from __future__ import annotations

import enum

from epochmq_broker.config.clock import now_ms
from epochmq_broker.services.timer.records import NEVER_ENQUEUED, DueMessage
from epochmq_broker.services.timer.timer_metrics import TimerMetrics
from epochmq_broker.tables.stats import BrokerStats
from epochmq_broker.writing.escape.message_sink import MessageSink
from epochmq_broker.writing.inner_message import PutResult
from epochmq_broker.writing.quarantine import (
    NEVER_STORED,
    Origin,
    Quarantine,
    QuarantiningService,
    concerns_record,
)
from epochmq_protocol.topics import NOT_DELIVERED_TOPICS
from epochmq_store.statuses import PutStatus

RETRY_S = 0.5


class DeliveryResult(enum.Enum):
    """What became of a due message."""

    DONE = "done"
    RETRY = "retry"


class TimerDelivery:
    """Stores due messages. `log_end` is the `PutResult.end` of the last one."""

    def __init__(
        self,
        *,
        sink: MessageSink,
        stats: BrokerStats,
        metrics: TimerMetrics,
        quarantine: Quarantine,
        precision_ms: int,
    ) -> None:
        self.log_end = 0
        self.delivered = 0
        """How many messages were stored since the start of the broker, those that were stored again
        included."""
        self.retry_s = RETRY_S * precision_ms / 1000
        self._sink = sink
        self._stats = stats
        self._metrics = metrics
        self._quarantine = quarantine

    def put(self, due: DueMessage, enqueue_ms: int, *, rolls: bool) -> DeliveryResult:
        """Stores one message. It entered the wheel at `enqueue_ms`. A message that deletes another one is
        stored only if it `rolls`."""
        if not rolls and due.deletes is not None:
            return DeliveryResult.DONE
        real_topic = due.real_topic
        try:
            stored = self._store(due, enqueue_ms, rolls=rolls)
        except Exception as error:
            if not concerns_record(error):
                raise
            self._set_aside(due, error)
            stored = PutResult(PutStatus.MESSAGE_ILLEGAL)
        if stored.status in NEVER_STORED:
            pass  # it is set aside, and counts as dequeued
        elif stored.status is not PutStatus.PUT_OK:
            return DeliveryResult.RETRY
        else:
            self.log_end = stored.end
            self.delivered += 1
            if not stored.is_remote:
                traffic = self._stats.put_traffic(stored.topic, stored.queue_id)
                traffic.messages += 1
                traffic.bytes += stored.size
                traffic.requests += 1
        self._metrics.count_dequeued(real_topic)
        if enqueue_ms != NEVER_ENQUEUED:
            # A message that deletes another one counted -1, and counts again when it enters the wheel again.
            self._metrics.add(real_topic, -1 if due.deletes is None else 1)
        return DeliveryResult.DONE

    def _store(self, due: DueMessage, enqueue_ms: int, *, rolls: bool) -> PutResult:
        """Stores a due message, or sets it aside if it can never be stored."""
        if not rolls and due.real_topic in NOT_DELIVERED_TOPICS:
            self._set_aside(due, f"messages are not delivered to topic {due.real_topic}")
            return PutResult(PutStatus.MESSAGE_ILLEGAL)
        stored = self._sink.put(due.to_store(enqueue_ms, now_ms(), rolls=rolls))
        if stored.status in NEVER_STORED:
            self._set_aside(due, stored.status.value)
        return stored

    def _set_aside(self, due: DueMessage, reason: object) -> None:
        message = due.message
        origin = Origin(message.topic, message.queue_id, message.queue_offset)
        end = self._quarantine.set_aside(QuarantiningService.TIMER, origin, message, reason)
        if end:
            self.log_end = end
