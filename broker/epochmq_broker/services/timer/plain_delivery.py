"""Delivers plain due messages: the fast path of `delivery`.

It appends a message with the body of its record, and its properties with two more at the end, without
building a message in between. It leaves all other messages to `TimerDelivery`, and has changed nothing then:
messages that roll, delete others or leave this broker, and those whose record is damaged, whose properties
are not in the form in which they would be encoded again, or that cannot be stored now. A test checks that
both store the same record.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from epochmq_broker.config.clock import now_ms
from epochmq_broker.services.timer.delivery import TimerDelivery
from epochmq_broker.services.timer.records import (
    DELETE_KEY,
    DEQUEUE_MS,
    ENQUEUE_MS,
    OUT_MS,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    ROLL_TIMES,
)
from epochmq_broker.services.timer.timer_log import Unit
from epochmq_broker.services.timer.timer_metrics import TimerMetrics
from epochmq_broker.tables.stats import BrokerStats
from epochmq_broker.writing.escape.message_sink import MessageSink
from epochmq_broker.writing.message_writer import QUEUE_ID_MAX, TOPIC_BYTES_MAX
from epochmq_broker.writing.plain_append import (
    NOT_PLAIN_FLAGS,
    PlainRecord,
    TagsCodes,
    append_copy,
    plain_record_reader,
)
from epochmq_broker.writing.quarantine import concerns_record
from epochmq_formats.timer_log import MAGIC_DELETE, MAGIC_ROLL
from epochmq_protocol import message_const as const
from epochmq_protocol.message_const import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_INNER_NUM,
)
from epochmq_protocol.record_layout import (
    SYS_FLAG,
)
from epochmq_protocol.topics import NOT_DELIVERED_TOPICS, TIMER_TOPIC
from epochmq_store.files.mapped_file import MappedFile
from epochmq_store.message_store import MessageStore
from epochmq_store.queues.consume_queue import ConsumeQueue
from epochmq_store.queues.consume_queues import is_queue_name
from epochmq_store.statuses import PutStatus

SPECIAL_PROPERTIES: Final = frozenset(
    [
        const.PROPERTY_CRC32,
        const.PROPERTY_INNER_MULTI_DISPATCH,
        DELETE_KEY,
        ENQUEUE_MS,
        DEQUEUE_MS,
        ROLL_TIMES,
        PROPERTY_DELAY_TIME_LEVEL,
        PROPERTY_INNER_NUM,
    ]
)
"""A message with one of these is not plain."""

_read_record: Final = plain_record_reader(TIMER_TOPIC, NOT_PLAIN_FLAGS | const.TRANSACTION_ROLLBACK_TYPE)
_SPECIAL_MAGIC: Final = MAGIC_ROLL | MAGIC_DELETE
_SEPARATOR: Final = b"\x02"
QUEUE_ID_DIGITS: Final = 10
PLACES_MAX: Final = 1024
"""Queues of which is kept whether a plain message may be delivered to them."""


class PlainTimerDelivery:
    """Stores plain due messages. It counts like `delivery`, and moves its `log_end`."""

    def __init__(
        self,
        *,
        store: MessageStore,
        sink: MessageSink,
        stats: BrokerStats,
        metrics: TimerMetrics,
        delivery: TimerDelivery,
    ) -> None:
        self._store = store
        self._sink = sink
        self._stats = stats
        self._metrics = metrics
        self._delivery = delivery
        self._codes = TagsCodes()

    def put(self, units: Sequence[Unit]) -> int:
        """Stores the messages of the first of these units of one slot, whose records are in memory, and
        returns how many. Stops at a message that is not plain."""
        writer = self._sink.local_writer
        file = self._store.log.files.find(units[0].offset)
        if writer is None or file is None or (writer.may_reject and writer.rejection("false") is not None):
            return 0
        targets: dict[tuple[str, str], _Target] = {}
        append, present = self._store.append, now_ms()
        done = 0
        write_ms, more = -1, b""
        for unit in units:
            message = _read(file, unit)
            if message is None:
                break
            record, properties = message
            place = properties.get(REAL_TOPIC, ""), properties.get(REAL_QUEUE_ID, "")
            target = targets.get(place)
            if target is None:
                target = targets[place] = _Target(self._store.queue(place[0], int(place[1])))
            if unit.write_time_ms != write_ms:  # the same for many
                write_ms = unit.write_time_ms
                more = f"{ENQUEUE_MS}\x01{write_ms}\x02{DEQUEUE_MS}\x01{present}\x02".encode()
            try:
                status, at, _, written = append_copy(
                    append,
                    target.queue,
                    record,
                    properties,
                    properties=record[2] + more,
                    sys_flag=record[0][SYS_FLAG],
                    codes=self._codes,
                )
            except Exception as error:
                if not concerns_record(error):
                    raise
                break  # `delivery` sets the message aside
            if status is not PutStatus.PUT_OK:
                break
            self._delivery.log_end = at + written
            target.messages += 1
            target.bytes += written
            done += 1
        if done and writer.on_append is not None:
            writer.on_append()
        self._count(targets)
        return done

    def _count(self, targets: dict[tuple[str, str], _Target]) -> None:
        for (topic, _), target in targets.items():
            if not target.messages:
                continue
            self._delivery.delivered += target.messages
            traffic = self._stats.put_traffic(topic, target.queue.queue_id)
            traffic.messages += target.messages
            traffic.bytes += target.bytes
            traffic.requests += target.messages
            self._metrics.count_dequeued(topic, target.messages)
            self._metrics.add(topic, -target.messages)


class _Target:
    """A queue to which messages of one call are delivered."""

    __slots__ = ("bytes", "messages", "queue")

    def __init__(self, queue: ConsumeQueue) -> None:
        self.queue = queue
        self.messages = self.bytes = 0


def _read(file: MappedFile, unit: Unit) -> tuple[PlainRecord, dict[str, str]] | None:
    """The record of a unit in this file, and its properties; None if its message is not plain."""
    at, size = unit.offset - file.start, unit.size
    if unit.magic & _SPECIAL_MAGIC or not 0 <= at <= at + size <= file.wrote:
        return None
    record = _read_record(file.map, at, size, unit.offset)
    if record is None:
        return None
    properties = _properties_of(record[2])
    if properties is None:
        return None
    if not SPECIAL_PROPERTIES.isdisjoint(properties):
        return None
    if properties.get(OUT_MS) != str(unit.time_ms) or not _is_place(
        properties.get(REAL_TOPIC, ""), properties.get(REAL_QUEUE_ID, "")
    ):
        return None
    return record, properties


def _properties_of(stored: bytes) -> dict[str, str] | None:
    """What `parse_properties` returns; None if they are not ASCII as `format_properties` would encode them.
    It splits each entry once and checks the rest together, since every due message is read here."""
    if not (stored.isascii() and stored.endswith(_SEPARATOR)):
        return None
    entries = stored[:-1].decode("ascii").split("\x02")
    try:
        properties = dict([entry.split("\x01", 1) for entry in entries])
    except ValueError:  # an entry without a value
        return None
    if len(properties) != len(entries) or "" in properties or not all(properties.values()):
        return None
    return properties


@lru_cache(maxsize=PLACES_MAX)
def _is_place(topic: str, queue_id: str) -> bool:
    """Whether a plain message may be delivered to this queue."""
    return (
        len(topic) <= TOPIC_BYTES_MAX
        and is_queue_name(topic)
        and topic not in NOT_DELIVERED_TOPICS
        and len(queue_id) <= QUEUE_ID_DIGITS
        and queue_id.isdecimal()
        and int(queue_id) <= QUEUE_ID_MAX
    )
