"""Stores the checkpoints and acknowledgements of POPs in the revive topic."""

from __future__ import annotations

from epochmq_broker.config.clock import now_ms
from epochmq_broker.services.pop.checkpoints import (
    AckMsg,
    PopCheckPoint,
    ack_message,
    checkpoint_message,
    revive_topic,
)
from epochmq_broker.services.service_context import ServiceContext
from epochmq_broker.tables.metric_tables import CounterTable
from epochmq_broker.writing.escape.message_sink import MessageSink
from epochmq_broker.writing.inner_message import PutResult

CHECKPOINT, ACK = "CK", "ACK"
"""The kinds of records, as RocketMQ's metrics name them (PopReviveMessageType)."""


class ReviveLog:
    """Writes the revive topic of one broker. `host` is its encoded address."""

    def __init__(self, context: ServiceContext, *, sink: MessageSink) -> None:
        self.topic = revive_topic(context.live.current.broker_cluster_name)
        self.puts = CounterTable("consumer_group", "topic", "revive_message_type", "put_status")
        """Records that were stored, or could not be (PopMetricsManager.incPopRevivePutCount)."""
        self._sink = sink
        self.host = context.store_host

    def put_checkpoint(
        self, checkpoint: PopCheckPoint, revive_queue_id: int, sink: MessageSink | None = None
    ) -> PutResult:
        """Stores a checkpoint. `sink` replaces the sink of the constructor. Raises RequestError as
        `MessageSink.put` does."""
        message = checkpoint_message(checkpoint, self.topic, revive_queue_id, self.host, now_ms())
        stored = (self._sink if sink is None else sink).put(message)
        self.puts.add(checkpoint.group or "", checkpoint.topic or "", CHECKPOINT, stored.status.name)
        return stored

    def put_ack(self, ack: AckMsg, revive_queue_id: int, revive_time: int, unique_key: str = "") -> PutResult:
        """Stores an acknowledgement of a checkpoint that becomes due at `revive_time`, in epoch ms. Raises
        RequestError as `MessageSink.put` does."""
        message = ack_message(ack, self.topic, revive_queue_id, revive_time, self.host, now_ms(), unique_key)
        stored = self._sink.put(message)
        self.puts.add(ack.group, ack.topic, ACK, stored.status.name)
        return stored
