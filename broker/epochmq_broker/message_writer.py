"""The last steps before a message is stored, the same for every path that stores one (RocketMQ's HookUtils
and the put hooks of BrokerController): validity, batch flags, timer and delay, then the append; and after it
the wait for the disk and for replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct

from epochmq_broker.config import BrokerConfig, LiveConfig
from epochmq_broker.store.appender import BatchMessage
from epochmq_broker.store.message_store import MessageStore
from epochmq_broker.store.statuses import PutStatus
from epochmq_protocol import message as records
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.javahash import tags_code
from epochmq_protocol.message import BatchElement
from epochmq_protocol.topics import RMQ_SYS_SCHEDULE_TOPIC, is_retry_topic

SCHEDULE_TOPIC = RMQ_SYS_SCHEDULE_TOPIC
TIMER_TOPIC = "rmq_sys_wheel_timer"
TOPIC_BYTES_MAX = 127
RETRY_TOPIC_BYTES_MAX = 255

TIMER_PROPERTIES = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")


class InnerMessage(Struct, kw_only=True):
    """A message on its way into the store (MessageExtBrokerInner). Hosts are encoded, times epoch ms."""

    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str]
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int
    born_host: bytes
    store_host: bytes | None = None
    reconsume_times: int = 0
    prepared_offset: int = 0
    rendered: bytes | None = None
    """The properties as they are stored; None: rendered from `properties`."""

    @property
    def delay_level(self) -> int:
        """Level of the DELAY property; 0 without one (Message.getDelayTimeLevel)."""
        text = self.properties.get("DELAY")
        if text is None:
            return 0
        try:
            return int(text)
        except ValueError:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f'DELAY: For input string: "{text}"') from None

    @property
    def uniq_key(self) -> str | None:
        """The client's message id."""
        return self.properties.get("UNIQ_KEY")


class PutResult(Struct, frozen=True):
    """What became of a put. Offsets are those of the first record when there are several."""

    status: PutStatus
    physical_offset: int = -1
    queue_offset: int = -1
    size: int = 0
    physical_offsets: tuple[int, ...] = ()
    topic: str = ""
    queue_id: int = 0

    @property
    def ok(self) -> bool:
        """Whether the message is in the log."""
        return self.status is PutStatus.PUT_OK

    @property
    def count(self) -> int:
        """How many records it is."""
        return len(self.physical_offsets)

    @property
    def end(self) -> int:
        """Where the log went on after it."""
        return self.physical_offset + self.size


class ReplicaAcks(Protocol):
    """What is asked of replication (`ha.replication_waiters.ReplicationWaiters`)."""

    @property
    def gates(self) -> bool:
        """Whether a put may be refused for a lack of replicas."""
        ...

    @property
    def waits(self) -> bool:
        """Whether puts may have to wait for replicas."""
        ...

    def rejection(self) -> PutStatus | None:
        """Why no message that wants to wait may be put now."""
        ...

    def replicated_end(self, *, acknowledged: bool = False) -> int:
        """How far the replicas that may become master have the log; `acknowledged`: as many of them as a send
        waits for."""
        ...

    def when_replicated(self, end: int, done: Callable[[PutStatus], None]) -> None:
        """Calls `done` once, with what became of a message that ends at `end`."""
        ...


class MessageWriter:
    """Stores messages, and knows when one is as safe as its sender wants it."""

    def __init__(self, live: LiveConfig, store: MessageStore) -> None:
        self._live = live
        self._store = store
        self._levels = len(live.current.delays_ms)
        self._syncs = live.current.flush_disk_type == "SYNC_FLUSH"
        self._replicas: ReplicaAcks | None = None
        self.waits = self._syncs
        """Whether messages that want to wait have anything to wait for."""
        self.gated = False
        """Whether such messages may be refused for a lack of replicas."""
        self.may_write: Callable[[], bool] | None = None
        """Whether this broker may take messages now: a master under a controller, by its lease."""
        self.may_acknowledge: Callable[[], bool] | None = None
        """Whether it may acknowledge what it has taken."""
        self.appended: Callable[[], None] | None = None
        """To be called after every append, while there is anybody to be woken by it."""
        live.on_change.append(self._reconfigured)

    def put(self, message: InnerMessage) -> PutResult:
        """Stores one message, or redirects it to the delay service's topic first. Raises RequestError for
        what this broker cannot do."""
        if not self._is_legal(message):
            return PutResult(PutStatus.MESSAGE_ILLEGAL)
        refused = self.rejection(message.properties.get("WAIT", "true"))
        if refused is not None:
            return PutResult(refused)
        if message.sys_flag & records.TRANSACTION_ROLLBACK_TYPE in (0, records.TRANSACTION_COMMIT_TYPE):
            self._delay(message)
        properties = message.properties
        rendered = message.rendered
        if rendered is None:
            rendered = records.format_properties(properties)
        tags = properties.get("TAGS")
        status, physical_offset, queue_offset, size = self._store.append(
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
            uniq_key=properties.get("UNIQ_KEY"),
            keys=properties.get("KEYS"),
        )
        if self.appended is not None:
            self.appended()
        return PutResult(
            status,
            physical_offset,
            queue_offset,
            size,
            (physical_offset,),
            topic=message.topic,
            queue_id=message.queue_id,
        )

    def put_batch(self, message: InnerMessage) -> PutResult:
        """Stores every message of a batch, all or none; `message.body` holds them, its properties belong to
        each (CommitLog.asyncPutMessages)."""
        illegal = PutResult(PutStatus.MESSAGE_ILLEGAL)
        if len(message.body) > self._live.current.max_message_size or not self._is_legal(message):
            return illegal
        if message.sys_flag & records.TRANSACTION_ROLLBACK_TYPE or message.delay_level > 0:
            return illegal
        _refuse_timer(message)
        refused = self.rejection(message.properties.get("WAIT", "true"))
        if refused is not None:
            return PutResult(refused)
        common = records.format_properties(message.properties)
        elements = [_element(part, common) for part in records.decode_batch(message.body)]
        status, offsets, queue_offset, size = self._store.append_batch(
            self._store.queue(message.topic, message.queue_id),
            elements,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            reconsume_times=message.reconsume_times,
        )
        if self.appended is not None:
            self.appended()
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

    def rejection(self, wait: str) -> PutStatus | None:
        """Why a message with this WAIT property may not be put now: SERVICE_NOT_AVAILABLE without a lease,
        IN_SYNC_REPLICAS_NOT_ENOUGH, or None."""
        if not self.gated or self._replicas is None:
            return None
        if self.may_write is not None and not self.may_write():
            return PutStatus.SERVICE_NOT_AVAILABLE
        if wait.lower() != "true":
            return None
        return self._replicas.rejection()

    @property
    def has_replicas_enough(self) -> bool:
        """Whether messages that want to wait may be put, as far as replicas go."""
        return self._replicas is None or self._replicas.rejection() is None

    def must_wait(self, properties: Mapping[str, str]) -> bool:
        """Whether a message may be answered only when the disk (SYNC_FLUSH) or replicas (SYNC_MASTER) have
        it, unless it says WAIT=false."""
        return self.waits and properties.get("WAIT", "true").lower() == "true"

    def when_safe(self, end: int, done: Callable[[PutStatus], None]) -> None:
        """Calls `done` once: PUT_OK when the log is as safe up to `end` as the settings want it, else
        FLUSH_DISK_TIMEOUT or, which says more, FLUSH_SLAVE_TIMEOUT."""
        replicas = self._replicas
        if self.may_acknowledge is not None and (replicas is None or not replicas.waits):
            self._store.when_flushed(end, lambda status: self._flushed(status, done))
        elif replicas is None or not replicas.waits:
            self._store.when_flushed(end, done)
        elif not self._syncs:
            replicas.when_replicated(end, done)
        else:
            both = _DiskAndReplicas(done)
            self._store.when_flushed(end, both.flushed)
            replicas.when_replicated(end, both.replicated)

    def safe_end(self, *, acknowledged: bool = False) -> int:
        """Up to where the log is on disk, with SYNC_FLUSH, and on replicas (`Replicas.replicated_end`)."""
        store = self._store
        end = store.flushed_where if self._syncs else store.max_phy_offset
        if self._replicas is not None:
            end = min(end, self._replicas.replicated_end(acknowledged=acknowledged))
        return end

    def _flushed(self, status: PutStatus, done: Callable[[PutStatus], None]) -> None:
        """Nothing is acknowledged without the right to write."""
        assert self.may_acknowledge is not None
        done(status if self.may_acknowledge() else PutStatus.FLUSH_SLAVE_TIMEOUT)

    def replicate(self, replicas: ReplicaAcks | None) -> None:
        """Who knows what replicas have, or that nobody is asked any more."""
        self._replicas = replicas
        self.gated = replicas is not None and replicas.gates
        self.waits = self._syncs or (replicas is not None and replicas.waits)

    def wakes(self, appended: Callable[[], None] | None) -> None:
        """What to call when the log has grown."""
        self.appended = appended

    def _reconfigured(self, before: BrokerConfig, after: BrokerConfig) -> None:
        self._syncs = after.flush_disk_type == "SYNC_FLUSH"
        self.replicate(self._replicas)

    def _is_legal(self, message: InnerMessage) -> bool:
        """Length of the topic's name (HookUtils.checkBeforePutMessage), and that INNER_NUM, the inner-batch
        flag and the topic's queue type belong together (checkInnerBatch): topics of type BatchCQ are not
        there yet, so neither of the others is legal."""
        topic_bytes = len(message.topic.encode())
        if topic_bytes > TOPIC_BYTES_MAX and not is_retry_topic(message.topic):
            return False
        if topic_bytes > RETRY_TOPIC_BYTES_MAX:
            return False
        return "INNER_NUM" not in message.properties and not message.sys_flag & records.INNER_BATCH_FLAG

    def _delay(self, message: InnerMessage) -> None:
        """A message with a delay level goes to its level's queue of the schedule topic, its own topic and
        queue noted in its properties (HookUtils.handleScheduleMessage)."""
        level = message.delay_level
        if level <= 0:
            _refuse_timer(message)
            return
        properties = message.properties
        for name in TIMER_PROPERTIES:
            properties.pop(name, None)
        if level > self._levels:
            level = self._levels
            properties["DELAY"] = str(level)
        properties["REAL_TOPIC"] = message.topic
        properties["REAL_QID"] = str(message.queue_id)
        message.rendered = None
        message.topic = SCHEDULE_TOPIC
        message.queue_id = level - 1


class _DiskAndReplicas:
    """Waits for the disk and for replicas."""

    __slots__ = ("_done", "_flush", "_replicas")

    def __init__(self, done: Callable[[PutStatus], None]) -> None:
        self._done = done
        self._flush: PutStatus | None = None
        self._replicas: PutStatus | None = None

    def flushed(self, status: PutStatus) -> None:
        self._flush = status
        self._settle()

    def replicated(self, status: PutStatus) -> None:
        self._replicas = status
        self._settle()

    def _settle(self) -> None:
        if self._flush is not None and self._replicas is not None:
            self._done(self._flush if self._replicas is PutStatus.PUT_OK else self._replicas)


def _refuse_timer(message: InnerMessage) -> None:
    """Timer messages are not part of this broker yet: they get the answer of one without a timer wheel."""
    properties = message.properties
    if message.topic == TIMER_TOPIC or "TIMER_OUT_MS" in properties:
        return
    if not properties.keys().isdisjoint(TIMER_PROPERTIES):
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false"
        )


def _element(part: BatchElement, common: bytes) -> BatchMessage:
    """One message of a batch with the batch's own properties appended, which thereby win
    (MessageExtEncoder)."""
    own = part.properties
    separator = b"\x02" if own and common and not own.endswith(b"\x02") else b""
    stored = own + separator + common
    properties = records.parse_properties(stored)
    tags = properties.get("TAGS")
    return BatchMessage(
        part.body,
        stored,
        part.flag,
        tags_code(tags) if tags else 0,
        properties.get("UNIQ_KEY"),
        properties.get("KEYS"),
    )
