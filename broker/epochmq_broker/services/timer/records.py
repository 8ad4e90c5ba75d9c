"""Reads records of the timer topic, and builds the messages that are delivered or stored again.

A delivered record keeps the properties with which the timer topic stored it, REAL_TOPIC, REAL_QID and TIMER_*
included: RocketMQ encodes the properties before it removes these (TimerMessageStore.convertMessage).
"""

from __future__ import annotations

from mmap import mmap
from typing import Final

from msgspec import Struct as Record

from epochmq_broker.writing.inner_message import InnerMessage, copy_of_record
from epochmq_protocol import message as records
from epochmq_protocol import message_const as const
from epochmq_protocol import record_layout
from epochmq_protocol.errors import RemoteProtocolError
from epochmq_protocol.message_const import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DEL_UNIQKEY,
    PROPERTY_TIMER_DEQUEUE_MS,
    PROPERTY_TIMER_ENQUEUE_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TIMER_ROLL_TIMES,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    PROPERTY_WAIT_STORE_MSG_OK,
    stored_name,
)
from epochmq_protocol.topics import TIMER_TOPIC
from epochmq_store import record as layout

NEVER_ENQUEUED: Final = 2**63 - 1
"""TIMER_ENQUEUE_MS of a message that was due before it reached the wheel (Long.MAX_VALUE)."""

OUT_MS: Final = PROPERTY_TIMER_OUT_MS
ENQUEUE_MS: Final = PROPERTY_TIMER_ENQUEUE_MS
DEQUEUE_MS: Final = PROPERTY_TIMER_DEQUEUE_MS
ROLL_TIMES: Final = PROPERTY_TIMER_ROLL_TIMES
DELETE_KEY: Final = PROPERTY_TIMER_DEL_UNIQKEY
REAL_TOPIC: Final = PROPERTY_REAL_TOPIC
REAL_QUEUE_ID: Final = PROPERTY_REAL_QUEUE_ID

_STORED_OUT_MS: Final = stored_name(OUT_MS)
_STORED_REAL_TOPIC: Final = stored_name(REAL_TOPIC)
_STORED_DELETE_KEY: Final = stored_name(DELETE_KEY)
_TOPIC = TIMER_TOPIC.encode()
_LONG_DIGITS = 19


class TimerRecord(Record, frozen=True, gc=False):
    """What the wheel needs of a record of the timer topic. Times are epoch ms."""

    out_ms: int
    """When the message is due; delivered in the following interval of the wheel's precision."""
    store_timestamp: int
    real_topic: str
    deletes: bool
    """Whether the message deletes another one."""
    born_timestamp: int


def read_timer_record(log: mmap | bytes, at: int, size: int, physical: int) -> TimerRecord | None:
    """Reads the record of `size` bytes at this position of a log file. None if it is not a message of the
    timer topic with a delivery time and a real topic, at this physical offset."""
    if size < record_layout.HEAD_V4.size + 3 or at + size > len(log):
        return None
    flags = record_layout.INT.unpack_from(log, at + record_layout.SYS_FLAG_AT)[0]
    head = record_layout.HEADS_BY_FLAG[flags & record_layout.HOSTS_V6]
    if size < head.size + 3:
        return None
    fields = head.unpack_from(log, at)
    magic, body_size = fields[record_layout.MAGIC], fields[record_layout.BODY_SIZE]
    if fields[record_layout.SIZE] != size or fields[record_layout.PHYSICAL_OFFSET] != physical:
        return None
    position = at + head.size + body_size
    if magic not in (const.MAGIC_V1, const.MAGIC_V2) or body_size < 0 or position + 3 > at + size:
        return None
    position += 1 if magic == const.MAGIC_V1 else 2
    end = position + len(_TOPIC)
    if log[position:end] != _TOPIC or log[position - 1] != len(_TOPIC):
        return None
    properties = log[end + 2 : at + size]
    out_ms = layout.property_value(properties, _STORED_OUT_MS)
    real_topic = layout.property_value(properties, _STORED_REAL_TOPIC)
    if out_ms is None or real_topic is None or not out_ms.isdigit() or len(out_ms) > _LONG_DIGITS:
        return None
    return TimerRecord(
        int(out_ms),
        fields[record_layout.STORE_TIMESTAMP],
        real_topic.decode("utf-8", "replace"),
        layout.property_value(properties, _STORED_DELETE_KEY) is not None,
        fields[record_layout.BORN_TIMESTAMP],
    )


def delete_key(real_topic: str, uniq_key: str) -> str:
    """The value of TIMER_DEL_UNIQKEY that deletes a message (TimerMessageStore.buildDeleteKey)."""
    return f"{real_topic}+{uniq_key}"


class DueMessage(Record):
    """A message of the timer topic that was read because it is due."""

    message: records.MessageExt
    properties: dict[str, str]

    @classmethod
    def decode(cls, data: bytes) -> DueMessage:
        """Decodes a record. Raises RemoteProtocolError or ValueError if it is not a timer message. Its queue
        is not checked: `to_store` may raise KeyError or ValueError."""
        message = records.decode_record(data)
        if message.topic != TIMER_TOPIC:
            raise RemoteProtocolError(f"topic {message.topic}: expected {TIMER_TOPIC}")
        properties = records.parse_properties(message.properties)
        for name in (OUT_MS, REAL_TOPIC):
            if name not in properties:
                raise ValueError(f"{name} is missing")
        int(properties[OUT_MS])
        return cls(message, properties)

    @property
    def out_ms(self) -> int:
        """When the message is due."""
        return int(self.properties[OUT_MS])

    @property
    def real_topic(self) -> str:
        """The topic to which the message is delivered."""
        return self.properties[REAL_TOPIC]

    @property
    def deletes(self) -> str | None:
        """The key of the message that this one deletes."""
        return self.properties.get(DELETE_KEY)

    @property
    def key(self) -> str | None:
        """The key by which another message deletes this one."""
        uniq_key = self.properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
        return None if uniq_key is None else delete_key(self.real_topic, uniq_key)

    def to_store(self, enqueue_ms: int, present_ms: int, *, rolls: bool) -> InnerMessage:
        """The message to store: in its own topic, or again in the timer topic (`rolls`)."""
        properties = dict(self.properties)
        properties[ENQUEUE_MS] = str(enqueue_ms)
        if rolls:
            properties[ROLL_TIMES] = str(int(properties.get(ROLL_TIMES, "0")) + 1)
        properties[DEQUEUE_MS] = str(present_ms)
        rendered = records.format_properties(properties)
        topic, queue_id = TIMER_TOPIC, self.message.queue_id
        if not rolls:
            topic, queue_id = properties.pop(REAL_TOPIC), int(properties.pop(REAL_QUEUE_ID))
        properties[PROPERTY_WAIT_STORE_MSG_OK] = "false"
        return copy_of_record(self.message, topic, queue_id, properties, rendered)


def wheel_time(out_ms: int, base_ms: int, window_ms: int) -> tuple[int, bool]:
    """(The time of the slot for a message that is due at `out_ms`, whether it is stored again then), if it
    enters the wheel at `base_ms`. The wheel reaches `window_ms` ahead (TimerMessageStore.doEnqueue)."""
    excess = out_ms - base_ms - window_ms
    if excess < 0:
        return out_ms, False
    return base_ms + (window_ms // 2 if excess < window_ms // 3 else window_ms), True
