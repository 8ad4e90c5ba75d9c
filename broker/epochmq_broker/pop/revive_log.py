"""Stores checkpoints and acknowledgements in the revive topic."""

from __future__ import annotations

from epochmq_broker.clock import now_ms
from epochmq_broker.config import LiveConfig
from epochmq_broker.message_writer import MessageWriter, PutResult
from epochmq_broker.pop.checkpoints import (
    AckMsg,
    PopCheckPoint,
    ack_message,
    checkpoint_message,
    revive_topic,
)


class ReviveLog:
    """Writes the revive topic of one broker. `host` is its encoded address."""

    def __init__(self, live: LiveConfig, writer: MessageWriter, host: bytes) -> None:
        self.topic = revive_topic(live.current.broker_cluster_name)
        self._writer = writer
        self._host = host

    def put_checkpoint(self, checkpoint: PopCheckPoint, revive_queue_id: int) -> PutResult:
        """Stores a checkpoint. Raises RequestError if this broker holds no messages back."""
        return self._writer.put(
            checkpoint_message(checkpoint, self.topic, revive_queue_id, self._host, now_ms())
        )

    def put_ack(self, ack: AckMsg, revive_queue_id: int, revive_time: int, unique_key: str = "") -> PutResult:
        """Stores an acknowledgement of a checkpoint that becomes due at `revive_time`, in epoch ms. Raises
        RequestError if this broker holds no messages back."""
        message = ack_message(ack, self.topic, revive_queue_id, revive_time, self._host, now_ms(), unique_key)
        return self._writer.put(message)
