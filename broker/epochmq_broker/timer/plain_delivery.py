"""Delivers plain due messages: the fast path of `delivery`.

It appends a message with the body of its record, and its properties with two more at the end, without
building a message in between. It leaves all other messages to `TimerDelivery`, and has changed nothing then:
messages that roll, delete others or leave this broker, and those whose record is damaged, whose properties
are not in the form in which they would be encoded again, or that cannot be stored now. A test checks that
both store the same record.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from epochmq_broker.clock import now_ms
from epochmq_broker.escape.message_sink import MessageSink
from epochmq_broker.message_writer import TIMER_TOPIC, TOPIC_BYTES_MAX
from epochmq_broker.stats import BrokerStats
from epochmq_broker.store.message_store import MessageStore
from epochmq_broker.store.statuses import PutStatus
from epochmq_broker.timer.delivery import TimerDelivery
from epochmq_broker.timer.records import (
    DELETE_KEY,
    DEQUEUE_MS,
    ENQUEUE_MS,
    OUT_MS,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    ROLL_TIMES,
)
from epochmq_broker.timer.timer_log import Unit
from epochmq_broker.timer.timer_metrics import TimerMetrics
from epochmq_protocol import message_const as const
from epochmq_protocol.javahash import tags_code
from epochmq_protocol.message import FIXED_V4, parse_properties

SPECIAL_PROPERTIES: Final = frozenset(
    [
        const.PROPERTY_CRC32,
        const.PROPERTY_INNER_MULTI_DISPATCH,
        DELETE_KEY,
        ENQUEUE_MS,
        DEQUEUE_MS,
        ROLL_TIMES,
        "DELAY",
        "INNER_NUM",
    ]
)
"""A message with one of these is not plain."""
SPECIAL_FLAGS: Final = (
    const.BORNHOST_V6_FLAG
    | const.STOREHOSTADDRESS_V6_FLAG
    | const.INNER_BATCH_FLAG
    | const.TRANSACTION_ROLLBACK_TYPE
)  # of sysFlag

_TOPIC_FIELD: Final = bytes([len(TIMER_TOPIC)]) + TIMER_TOPIC.encode()
_CRC_MASK: Final = 0x7FFF_FFFF
_SEPARATOR: Final = b"\x02"


class PlainTimerDelivery:
    """Stores plain due messages. It counts like `delivery`, and moves its `log_end`."""

    def __init__(
        self,
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

    def put(self, unit: Unit) -> bool:
        """Stores the message of a unit, whose record is in memory. Returns False, and has changed nothing, if
        the message is not plain."""
        data = None if unit.rolls or unit.deletes else self._store.read(unit.offset, unit.size)
        if data is None or len(data) < FIXED_V4.size + len(_TOPIC_FIELD) + 2:
            return False
        (
            size, magic, crc, _, flag, _, physical, sys_flag, born_timestamp, born_host, _, store_host,
            reconsume_times, _, body_size,
        ) = FIXED_V4.unpack_from(data)  # fmt: skip
        if size != len(data) or magic != const.MAGIC_V1 or physical != unit.offset:
            return False
        if sys_flag & SPECIAL_FLAGS or body_size < 0:
            return False
        topic_at = FIXED_V4.size + body_size
        properties_at = topic_at + len(_TOPIC_FIELD) + 2
        stored = data[properties_at:]
        if (
            data[topic_at : properties_at - 2] != _TOPIC_FIELD
            or int.from_bytes(data[properties_at - 2 : properties_at], "big") != len(stored)
            or not (stored.isascii() and stored.endswith(_SEPARATOR))
        ):
            return False
        body = data[FIXED_V4.size : topic_at]
        properties = parse_properties(stored)
        get = properties.get
        topic, queue_id = get(REAL_TOPIC, ""), get(REAL_QUEUE_ID, "")
        if (
            stored.count(_SEPARATOR) != len(properties)  # as `format_properties` would encode them
            or not SPECIAL_PROPERTIES.isdisjoint(properties)
            or get(OUT_MS) != str(unit.time_ms)
            or not 0 < len(topic) <= TOPIC_BYTES_MAX
            or not queue_id.isdecimal()
            or crc32(body) & _CRC_MASK != crc
        ):
            return False
        writer = self._sink.local_writer
        if writer is None or (writer.may_reject and writer.rejection("false") is not None):
            return False
        tags = get("TAGS")
        number = int(queue_id)
        status, at, _, written = self._store.append(
            self._store.queue(topic, number),
            body=body,
            properties=stored
            + f"{ENQUEUE_MS}\x01{unit.write_time_ms}\x02{DEQUEUE_MS}\x01{now_ms()}\x02".encode(),
            flag=flag,
            sys_flag=sys_flag,
            born_timestamp=born_timestamp,
            born_host=born_host,
            store_host=store_host,
            reconsume_times=reconsume_times,
            tags_code=tags_code(tags) if tags else 0,
            uniq_key=get("UNIQ_KEY"),
            keys=get("KEYS"),
        )
        if status is not PutStatus.PUT_OK:
            return False
        if writer.on_append is not None:
            writer.on_append()
        self._delivery.log_end = at + written
        self._delivery.delivered += 1
        traffic = self._stats.put_traffic(topic, number)
        traffic.messages += 1
        traffic.bytes += written
        traffic.requests += 1
        self._metrics.count_dequeued(topic)
        self._metrics.add(topic, -1)
        return True
