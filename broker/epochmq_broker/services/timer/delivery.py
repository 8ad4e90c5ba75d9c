"""Stores due messages in their topics, or again in the timer topic (TimerMessageStore.doPut).

A message that cannot be stored now is tried again until it can be. RocketMQ drops it after three attempts,
unless timerEnableRetryUntilSuccess is set. A message that can never be stored is dropped, as there.
"""

from __future__ import annotations

import enum
import logging

from epochmq_broker.config.clock import now_ms
from epochmq_broker.services.timer.records import NEVER_ENQUEUED, DueMessage
from epochmq_broker.services.timer.timer_metrics import TimerMetrics
from epochmq_broker.tables.stats import BrokerStats
from epochmq_broker.writing.escape.message_sink import MessageSink
from epochmq_protocol.errors import RequestError
from epochmq_store.statuses import PutStatus

log = logging.getLogger(__name__)

RETRY_S = 0.5

NOT_TO_BE_STORED = frozenset(
    [
        PutStatus.MESSAGE_ILLEGAL,
        PutStatus.PROPERTIES_SIZE_EXCEEDED,
        PutStatus.WHEEL_TIMER_MSG_ILLEGAL,
        PutStatus.WHEEL_TIMER_NOT_ENABLE,
    ]
)
"""Statuses of messages that no later attempt would store."""


class DeliveryResult(enum.Enum):
    """What became of a due message."""

    DONE = "done"
    RETRY = "retry"


class TimerDelivery:
    """Stores due messages. `log_end` is the `PutResult.end` of the last one."""

    def __init__(
        self, *, sink: MessageSink, stats: BrokerStats, metrics: TimerMetrics, precision_ms: int
    ) -> None:
        self.log_end = 0
        self.delivered = 0
        """How many messages were stored since the start of the broker, those that were stored again
        included."""
        self.retry_s = RETRY_S * precision_ms / 1000
        self._sink = sink
        self._stats = stats
        self._metrics = metrics

    def put(self, due: DueMessage, enqueue_ms: int, *, rolls: bool) -> DeliveryResult:
        """Stores one message. It entered the wheel at `enqueue_ms`. A message that deletes another one is
        stored only if it `rolls`."""
        if not rolls and due.deletes is not None:
            return DeliveryResult.DONE
        real_topic = due.real_topic
        try:
            stored = self._sink.put(due.to_store(enqueue_ms, now_ms(), rolls=rolls))
        except (RequestError, ValueError) as error:
            log.error("a timer message for topic %s was dropped, it cannot be stored: %s", real_topic, error)
            return DeliveryResult.DONE
        if stored.status in NOT_TO_BE_STORED:
            reason = stored.status.value
            log.error("a timer message for topic %s was dropped, it cannot be stored: %s", real_topic, reason)
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
            self._metrics.add(real_topic, -1)
        return DeliveryResult.DONE
