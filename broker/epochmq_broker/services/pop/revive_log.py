"""Stores the checkpoints and acknowledgements of POPs in the revive topic.

Every POP stores a checkpoint for each queue. A plain one goes straight into the timer topic, as the message
writer and the timer's hook would store it. A test checks that both store the same record.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from epochmq_broker.config.clock import now_ms
from epochmq_broker.services.pop.checkpoints import (
    ACK_INTERVAL_MS,
    AckMsg,
    PopCheckPoint,
    ack_message,
    checkpoint_message,
    is_plain,
    revive_topic,
)
from epochmq_broker.services.service_context import ServiceContext
from epochmq_broker.services.timer.put_hook import TimerPutHook
from epochmq_broker.tables.metric_tables import CounterTable
from epochmq_broker.writing.escape.message_sink import MessageSink
from epochmq_broker.writing.inner_message import PutResult
from epochmq_broker.writing.message_writer import QUEUE_ID_MAX, TOPIC_BYTES_MAX
from epochmq_broker.writing.plain_append import real_place
from epochmq_protocol.javahash import tags_code
from epochmq_protocol.message_const import (
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
)
from epochmq_protocol.pop_records import CK_TAG
from epochmq_protocol.topics import TIMER_TOPIC
from epochmq_store.queues.consume_queues import is_queue_name
from epochmq_store.statuses import PutStatus

CHECKPOINT, ACK = "CK", "ACK"
"""The kinds of records, as RocketMQ's metrics name them (PopReviveMessageType)."""
NAMES_MAX: Final = 1024
"""Names of which is kept whether a JSON writer escapes anything of them."""

_is_plain: Final = lru_cache(maxsize=NAMES_MAX)(is_plain)
_real_place: Final = lru_cache(maxsize=NAMES_MAX)(real_place)
_CK_TAGS_CODE: Final = tags_code(CK_TAG)


class ReviveLog:
    """Writes the revive topic of one broker. `host` is its encoded address."""

    def __init__(self, context: ServiceContext, *, sink: MessageSink) -> None:
        self.topic = revive_topic(context.live.current.broker_cluster_name)
        self.puts = CounterTable("consumer_group", "topic", "revive_message_type", "put_status")
        """Records that were stored, or could not be (PopMetricsManager.incPopRevivePutCount)."""
        self._sink = sink
        self._store = context.store
        self._may_be_plain = is_queue_name(self.topic) and len(self.topic.encode()) <= TOPIC_BYTES_MAX
        self.host = context.store_host

    def put_checkpoint(
        self, checkpoint: PopCheckPoint, revive_queue_id: int, sink: MessageSink | None = None
    ) -> PutResult:
        """Stores a checkpoint. `sink` replaces the sink of the constructor. Raises RequestError as
        `MessageSink.put` does."""
        stored = None if sink is not None else self._put_plain(checkpoint, revive_queue_id)
        if stored is None:
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

    def _put_plain(self, checkpoint: PopCheckPoint, revive_queue_id: int) -> PutResult | None:
        """Stores a plain checkpoint. Returns None, with nothing changed, if it is not plain: for names that
        JSON escapes, one that was stored before, one that is due already, and while messages may be rejected
        or go to another group."""
        writer = self._sink.local_writer
        if writer is None or (writer.may_reject and writer.rejection("true") is not None):
            return None
        hook, due_ms = writer.timer_hook, checkpoint.revive_time - ACK_INTERVAL_MS
        out_ms = hook.held_until_ms(due_ms) if isinstance(hook, TimerPutHook) else None
        topic, group, broker, diffs = (
            checkpoint.topic,
            checkpoint.group,
            checkpoint.broker_name,
            checkpoint.diffs,
        )
        if (
            out_ms is None
            or topic is None
            or group is None
            or broker is None
            or diffs is None
            or checkpoint.re_put_times is not None
            or not (self._may_be_plain and 0 <= revive_queue_id <= QUEUE_ID_MAX)
            or not (_is_plain(topic) and _is_plain(group) and _is_plain(broker))
        ):
            return None
        start, pop_time, queue_id = checkpoint.start_offset, checkpoint.pop_time, checkpoint.queue_id
        body = (
            f'{{"bm":{checkpoint.bit_map},"bn":"{broker}","c":"{group}","d":[{",".join(map(str, diffs))}],'
            f'"it":{checkpoint.invisible_time},"n":{checkpoint.count},"pt":{pop_time},"q":{queue_id},'
            f'"reviveTime":{checkpoint.revive_time},"ro":{checkpoint.revive_offset},"so":{start},'
            f'"t":"{topic}"}}'
        )
        key = f"{topic}@{queue_id}@{start}@{group}@{pop_time}@{broker}@{CK_TAG}"
        properties = (
            f"{PROPERTY_TAGS}\x01{CK_TAG}\x02{PROPERTY_TIMER_DELIVER_MS}\x01{due_ms}\x02"
            f"{PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX}\x01{key}\x02{PROPERTY_TIMER_OUT_MS}\x01{out_ms}\x02"
            f"{_real_place(self.topic, revive_queue_id)}"
        )
        status, physical_offset, queue_offset, size = self._store.append(
            self._store.queue(TIMER_TOPIC, 0),
            body=body.encode(),
            properties=properties.encode(),
            born_timestamp=now_ms(),
            born_host=self.host,
            tags_code=_CK_TAGS_CODE,
            uniq_key=key,
        )
        if writer.on_append is not None and status is PutStatus.PUT_OK:
            writer.on_append()
        return PutResult(status, physical_offset, queue_offset, size, (physical_offset,), topic=TIMER_TOPIC)
