"""Validates, delays and stores messages for every path that stores one (RocketMQ's HookUtils and the put
hooks of BrokerController), and waits until they are on disk and on replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from epochmq_broker.config.broker_config import BrokerConfig, LiveConfig
from epochmq_broker.config.capabilities import NO_LIMIT_MS
from epochmq_broker.config.clock import boot_ms
from epochmq_broker.writing.batches import BATCH_AT_ONCE, LargeBatch, QueueHolds, batch_message
from epochmq_broker.writing.inner_message import InnerMessage, PutResult
from epochmq_formats.batch_unit import MESSAGES_MAX
from epochmq_protocol import message as records
from epochmq_protocol.javahash import tags_code
from epochmq_protocol.message_const import (
    PROPERTY_CRC32,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_INNER_BASE,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
    PROPERTY_INNER_NUM,
    PROPERTY_KEYS,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    PROPERTY_WAIT_STORE_MSG_OK,
)
from epochmq_protocol.topics import (
    RMQ_SYS_SCHEDULE_TOPIC,
    RMQ_SYS_TRANS_HALF_TOPIC,
    TIMER_TOPIC,
    is_retry_topic,
    topic_allows_lmq,
)
from epochmq_store.appending.appender import BatchMessage
from epochmq_store.message_store import MessageStore
from epochmq_store.queues.batch_consume_queue import BatchConsumeQueue
from epochmq_store.queues.consume_queue import ConsumeQueue
from epochmq_store.queues.consume_queues import is_queue_name
from epochmq_store.queues.inner_batch import DIGITS_MAX
from epochmq_store.queues.light_queues import LightQueues, light_queue_offsets
from epochmq_store.statuses import PutStatus

SCHEDULE_TOPIC = RMQ_SYS_SCHEDULE_TOPIC
TOPIC_BYTES_MAX = 127
QUEUE_ID_MAX = 0x7FFFFFFF
RETRY_TOPIC_BYTES_MAX = 255

TIMER_PROPERTIES = (PROPERTY_TIMER_DELAY_SEC, PROPERTY_TIMER_DELAY_MS, PROPERTY_TIMER_DELIVER_MS)


class ReplicaAcks(Protocol):
    """The part of replication that the writer uses (`ha.replication_waiters.ReplicationWaiters`)."""

    @property
    def may_reject(self) -> bool:
        """Whether a message may be rejected because too few replicas are in sync."""
        ...

    @property
    def sends_wait(self) -> bool:
        """Whether messages may have to wait for replicas."""
        ...

    def rejection(self) -> PutStatus | None:
        """The status with which a message that waits for replicas is rejected now; None if it is not
        rejected."""
        ...

    def replicated_end(self, *, acknowledged: bool = False) -> int:
        """The offset up to which every replica that may become master has the log. With `acknowledged`: the
        offset up to which as many logs reach as a send waits for."""
        ...

    def when_replicated(self, end: int, done: Callable[[PutStatus], None]) -> None:
        """Calls `done` once, with the result for a message that ends at `end`."""
        ...


class MessageWriter:
    """Stores messages, and reports when a message is as safe as its sender demands."""

    is_remote = False
    """See `escape.message_sink.MessageSink`."""

    def __init__(
        self,
        live: LiveConfig,
        store: MessageStore,
        timer_hook: Callable[[InnerMessage], PutStatus | None] | None = None,
    ) -> None:
        """`timer_hook` moves messages with a delivery time to the timer topic; None without a timer wheel."""
        self._live = live
        self._store = store
        self._light = store.light_queues
        self._levels = len(live.current.delays_ms)
        self._syncs = _waits_for_disk(live.current)
        self._replicas: ReplicaAcks | None = None
        self.sends_wait = self._syncs
        """Whether messages with WAIT=true have to wait: for the disk, for replicas, or for both."""
        self.waits_always = live.current.enable_dledger_commit_log
        """Whether messages with WAIT=false wait, too: in a DLedger group, as in RocketMQ."""
        self.may_reject = False
        """Whether `rejection` may reject a message: too few replicas are in sync, or there is no lease."""
        self._standing = live.standing
        self._needs_lease = live.current.enable_controller_mode
        """Whether a message is acknowledged only under a lease. Asked when it is flushed, if it does not wait
        for replicas; otherwise `ReplicaAcks` answers only while this broker may acknowledge."""
        self.on_append: Callable[[], None] | None = None
        """Is called after every append, None while nothing waits for appends."""
        self.timer_hook = timer_hook
        self.holds = QueueHolds(store)
        """The queues in which large batches are being stored."""
        live.on_change.append(self._reconfigured)

    @property
    def local_writer(self) -> MessageWriter:
        """See `escape.message_sink.MessageSink`."""
        return self

    def put(self, message: InnerMessage) -> PutResult:
        """Stores one message; a delayed one goes to the delay service's or the timer's topic first. Raises
        RequestError for messages that this broker does not support."""
        if not self._is_legal(message):
            return PutResult(PutStatus.MESSAGE_ILLEGAL)
        rejection = self.rejection(message.properties.get(PROPERTY_WAIT_STORE_MSG_OK, "true"))
        if rejection is not None:
            return PutResult(rejection)
        if message.sys_flag & records.TRANSACTION_ROLLBACK_TYPE in (0, records.TRANSACTION_COMMIT_TYPE):
            refused = self._delay(message)
            if refused is not None:
                return PutResult(refused)
        messages = 0
        if message.sys_flag & records.INNER_BATCH_FLAG:
            messages = self._place_inner_batch(message)
            if not messages:
                return PutResult(PutStatus.MESSAGE_ILLEGAL)
        properties = message.properties
        if properties.pop(PROPERTY_CRC32, None) is not None and message.rendered is not None:
            # The checksum of the record from which this message was copied.
            message.rendered = records.delete_property(message.rendered, PROPERTY_CRC32)
        append = self._store.append
        if self._light is not None and PROPERTY_INNER_MULTI_DISPATCH in properties:
            light = self._light_queues(self._light, message)
            if isinstance(light, PutStatus):
                return PutResult(light)
            if light is not None:
                append = partial(self._store.append_to_light_queues, light=light)
        rendered = message.rendered
        if rendered is None:
            rendered = records.format_properties(properties)
        tags = properties.get(PROPERTY_TAGS)
        status, physical_offset, queue_offset, size = append(
            self._store.queue(message.topic, message.queue_id),
            body=message.body,
            properties=rendered,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            store_host=message.store_host,
            reconsume_times=message.reconsume_times,
            prepared_offset=message.prepared_offset,
            tags_code=tags_code(tags) if tags else 0,
            uniq_key=properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX),
            keys=properties.get(PROPERTY_KEYS),
        )
        if self._light is not None and status is PutStatus.PUT_OK:
            self._light.count(message.topic, properties)
        if self.on_append is not None:
            self.on_append()
        return PutResult(
            status,
            physical_offset,
            queue_offset,
            size,
            (physical_offset,),
            topic=message.topic,
            queue_id=message.queue_id,
            messages=messages,
        )

    def _light_queues(
        self, light: LightQueues, message: InnerMessage
    ) -> list[ConsumeQueue] | PutStatus | None:
        """Writes the message's offsets in its light message queues into its properties. Returns the queues
        that get a unit, None for a message without light queues, or the status of a rejection.

        A half message gets no offsets, so that no broker dispatches it: its consumers see the message when it
        is committed. RocketMQ's see it at once, and also one that is rolled back."""
        properties = message.properties
        if message.topic == RMQ_SYS_TRANS_HALF_TOPIC:
            if properties.pop(PROPERTY_INNER_MULTI_QUEUE_OFFSET, None) is not None:
                message.rendered = None
            return None
        named = properties[PROPERTY_INNER_MULTI_DISPATCH]
        if not named.strip() or not topic_allows_lmq(message.topic):
            return None
        if isinstance(self._store.queue(message.topic, message.queue_id), BatchConsumeQueue):
            return None  # as in RocketMQ, which dispatches from other consume queues only
        assigned = light.assign(named)
        if isinstance(assigned, PutStatus):
            return assigned
        properties[PROPERTY_INNER_MULTI_QUEUE_OFFSET], queues = assigned
        message.rendered = None
        return queues

    def put_batch(self, message: InnerMessage) -> PutResult | LargeBatch:
        """Stores every message of a batch, all or none. `message.body` holds the messages; its properties
        apply to each of them (CommitLog.asyncPutMessages). Returns a batch of more than `BATCH_AT_ONCE`
        messages for the caller to store in parts."""
        illegal = PutResult(PutStatus.MESSAGE_ILLEGAL)
        if len(message.body) > self._live.current.max_message_size or not self._is_legal(message):
            return illegal
        if message.sys_flag & records.TRANSACTION_ROLLBACK_TYPE or message.delay_level > 0:
            return illegal
        rejection = self.rejection(
            message.properties.get(PROPERTY_WAIT_STORE_MSG_OK, "true")
        ) or self._schedule_timer(message)
        if rejection is not None:
            return PutResult(rejection)
        common = records.format_properties(message.properties)
        items, at = records.decode_batch_part(message.body, 0, BATCH_AT_ONCE)
        elements = [batch_message(item, common) for item in items]
        if at < len(message.body):
            return LargeBatch(self, self._store, message, common, elements, at)
        if self._light is not None and self.has_light_offsets(message.topic, elements):
            return illegal
        status, offsets, queue_offset, size = self._store.append_batch(
            self._store.queue(message.topic, message.queue_id),
            elements,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            reconsume_times=message.reconsume_times,
        )
        if self.on_append is not None:
            self.on_append()
        first = offsets[0] if offsets else -1
        return PutResult(
            status,
            first,
            queue_offset,
            size,
            tuple(offsets),
            topic=message.topic,
            queue_id=message.queue_id,
        )

    def has_light_offsets(self, topic: str, messages: Sequence[BatchMessage]) -> bool:
        """Whether a message of a batch has offsets of light queues: only the broker sets these, and
        RocketMQ's sets none in a batch."""
        return self._light is not None and any(light_queue_offsets(topic, one.properties) for one in messages)

    def rejection(self, wait: str) -> PutStatus | None:
        """The status with which a message with this WAIT property is rejected now: SERVICE_NOT_AVAILABLE
        without a lease, IN_SYNC_REPLICAS_NOT_ENOUGH; None if it is not rejected."""
        if not self.may_reject or self._replicas is None:
            return None
        until_ms = self._standing.capabilities.writes_until_ms
        if until_ms != NO_LIMIT_MS and boot_ms() >= until_ms:
            return PutStatus.SERVICE_NOT_AVAILABLE
        if wait.lower() != "true" and not self.waits_always:
            return None
        return self._replicas.rejection()

    @property
    def has_enough_replicas(self) -> bool:
        """Whether enough replicas are in sync for messages that wait for replicas."""
        return self._replicas is None or self._replicas.rejection() is None

    def must_wait(self, properties: Mapping[str, str]) -> bool:
        """Whether the response must wait until the message is on disk (SYNC_FLUSH) or on replicas
        (SYNC_MASTER). Not if the message says WAIT=false, except in a DLedger group."""
        return self.sends_wait and (
            self.waits_always or properties.get(PROPERTY_WAIT_STORE_MSG_OK, "true").lower() == "true"
        )

    def when_safe(self, end: int, done: Callable[[PutStatus], None]) -> None:
        """Calls `done` once: with PUT_OK as soon as the log is as safe up to `end` as the settings demand;
        otherwise with FLUSH_SLAVE_TIMEOUT if replicas were too slow, else FLUSH_DISK_TIMEOUT."""
        replicas = self._replicas
        if self._needs_lease and (replicas is None or not replicas.sends_wait):
            self._store.when_flushed(end, lambda status: self._flushed(status, done))
        elif replicas is None or not replicas.sends_wait:
            self._store.when_flushed(end, done)
        elif not self._syncs:
            replicas.when_replicated(end, done)
        else:
            both = _DiskAndReplicas(done)
            self._store.when_flushed(end, both.flushed)
            replicas.when_replicated(end, both.replicated)

    @property
    def end(self) -> int:
        """The end of everything that was stored so far."""
        return self._store.appender.end

    def safe_end(self, *, acknowledged: bool = False) -> int:
        """The offset up to which the log is on disk, with SYNC_FLUSH, and on replicas
        (`ReplicaAcks.replicated_end`)."""
        store = self._store
        end = store.flushed_where if self._syncs else store.max_phy_offset
        if self._replicas is not None:
            end = min(end, self._replicas.replicated_end(acknowledged=acknowledged))
        return end

    def _flushed(self, status: PutStatus, done: Callable[[PutStatus], None]) -> None:
        """Acknowledges a flushed message only if this broker may still acknowledge. FLUSH_SLAVE_TIMEOUT says
        what is true then: the message is stored here, and the next master may lack it."""
        may_acknowledge = self._standing.capabilities.may_acknowledge(boot_ms())
        done(status if may_acknowledge else PutStatus.FLUSH_SLAVE_TIMEOUT)

    def set_replica_acks(self, replicas: ReplicaAcks | None) -> None:
        """Sets the object that knows which replicas have acknowledged what. None: messages do not wait for
        replicas. Call it again after a change of the object's settings."""
        self._replicas = replicas
        self.may_reject = replicas is not None and replicas.may_reject
        self.sends_wait = self._syncs or (replicas is not None and replicas.sends_wait)

    def set_append_listener(self, listener: Callable[[], None] | None) -> None:
        """Sets the function to call after every append; None: no function."""
        self.on_append = listener

    def _reconfigured(self, before: BrokerConfig, after: BrokerConfig) -> None:
        self._syncs = _waits_for_disk(after)
        self.set_replica_acks(self._replicas)

    def _is_legal(self, message: InnerMessage) -> bool:
        """Checks that topic and queue id can name a queue, the length of the topic's name
        (HookUtils.checkBeforePutMessage), and that an inner batch is marked as such and its topic is of type
        BatchCQ (checkInnerBatch)."""
        if not (0 <= message.queue_id <= QUEUE_ID_MAX and is_queue_name(message.topic)):
            return False
        topic_bytes = len(message.topic.encode())
        if topic_bytes > TOPIC_BYTES_MAX and not is_retry_topic(message.topic):
            return False
        if topic_bytes > RETRY_TOPIC_BYTES_MAX:
            return False
        if not message.sys_flag & records.INNER_BATCH_FLAG:
            return PROPERTY_INNER_NUM not in message.properties
        return self._store.queues.is_batch_topic(message.topic) is True

    def _place_inner_batch(self, message: InnerMessage) -> int:
        """Gives an inner batch its place in the queue (BatchConsumeQueue.assignQueueOffset), and returns the
        number of its messages, 0 if it is not legal: it was moved to another topic because of a delay, or
        RocketMQ has no unit for so many messages."""
        queue = self._store.queue(message.topic, message.queue_id)
        if not isinstance(queue, BatchConsumeQueue):
            return 0
        text = message.properties.get(PROPERTY_INNER_NUM, "")
        if not text.isdecimal() or len(text) > DIGITS_MAX or not 0 < int(text) <= MESSAGES_MAX:
            return 0
        message.properties[PROPERTY_INNER_BASE] = str(queue.max_offset)
        message.rendered = None
        return int(text)

    def _delay(self, message: InnerMessage) -> PutStatus | None:
        """Moves a message with a delay level to its level's queue of the schedule topic, and one with a
        delivery time to the timer topic. Its own topic and queue go into its properties
        (HookUtils.handleScheduleMessage). Returns the status of a rejection, or None."""
        level = message.delay_level
        if level <= 0:
            return self._schedule_timer(message)
        properties = message.properties
        for name in TIMER_PROPERTIES:
            properties.pop(name, None)
        if level > self._levels:
            level = self._levels
            properties[PROPERTY_DELAY_TIME_LEVEL] = str(level)
        properties[PROPERTY_REAL_TOPIC] = message.topic
        properties[PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
        message.rendered = None
        message.topic = SCHEDULE_TOPIC
        message.queue_id = level - 1
        return None

    def _schedule_timer(self, message: InnerMessage) -> PutStatus | None:
        """Passes a message with a delivery time to the timer's hook, unless the timer has handled it already.
        Returns the status of a rejection, or None."""
        properties = message.properties
        if properties.keys().isdisjoint(TIMER_PROPERTIES):
            return None
        if message.topic == TIMER_TOPIC or PROPERTY_TIMER_OUT_MS in properties:
            return None
        return PutStatus.WHEEL_TIMER_NOT_ENABLE if self.timer_hook is None else self.timer_hook(message)


def _waits_for_disk(config: BrokerConfig) -> bool:
    """Whether messages wait for the disk of this broker. In a DLedger group they wait until they are
    committed, which includes the disks of a quorum."""
    return config.flush_disk_type == "SYNC_FLUSH" and not config.enable_dledger_commit_log


class _DiskAndReplicas:
    """Combines the results of flush and replication into one."""

    __slots__ = ("_done", "_flush", "_replicas")

    def __init__(self, done: Callable[[PutStatus], None]) -> None:
        self._done = done
        self._flush: PutStatus | None = None
        self._replicas: PutStatus | None = None

    def flushed(self, status: PutStatus) -> None:
        self._flush = status
        self._finish()

    def replicated(self, status: PutStatus) -> None:
        self._replicas = status
        self._finish()

    def _finish(self) -> None:
        if self._flush is not None and self._replicas is not None:
            self._done(self._flush if self._replicas is PutStatus.PUT_OK else self._replicas)
