"""Encodes and decodes the records of the revive topic: checkpoints and acknowledgements (PopCheckPoint,
AckMsg, BatchAckMsg, PopAckConstants).

A checkpoint (CK) lists the messages of one queue that one POP handed out. It becomes due one second before
these messages become visible again, an acknowledgement when they become visible. The timer holds both until
then."""
# pure: rules over values

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec
from msgspec import Struct, field

from epochmq_broker.writing.inner_message import InnerMessage
from epochmq_protocol import fastjson
from epochmq_protocol.bodies import convert, from_json
from epochmq_protocol.errors import RemoteProtocolError
from epochmq_protocol.integers import INT_MAX, LONG_MAX, Int, Long
from epochmq_protocol.message_const import (
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
)
from epochmq_protocol.pop_records import ACK_TAG, BATCH_ACK_TAG, CK_TAG, REVIVE_TOPIC_PREFIX, SHORT_NAMES

REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
ACK_INTERVAL_MS: Final = 1000
"""How long before its acknowledgements a checkpoint becomes due."""
RETRY_QUEUES: Final = 1
"""Queues of a POP retry topic."""
REPUT_TIMES_UNREADABLE: Final = 127

MESSAGES_MAX: Final = 127
"""Messages of one checkpoint. RocketMQ counts them in a byte."""

MergeKey = tuple[str, str, int, int, int, str]
"""What acknowledgements have in common with their checkpoint: topic, group, queue, start offset, time of the
POP and broker."""


def revive_topic(cluster: str) -> str:
    """The revive topic of a cluster."""
    return REVIVE_TOPIC_PREFIX + cluster


class PopCheckPoint(Struct, kw_only=True):
    """The messages of one queue that one POP handed out. Bit i of `bit_map` is set if message i, at
    `start_offset + diffs[i]`, is acknowledged. Times in ms. `revive_offset` is the checkpoint's own offset in
    the revive topic."""

    STRICT_FIRST: ClassVar[bool] = True

    start_offset: Long = field(name="so", default=0)
    pop_time: Long = field(name="pt", default=0)
    invisible_time: Long = field(name="it", default=0)
    bit_map: Int = field(name="bm", default=0)
    count: Int = field(name="n", default=0)
    queue_id: Int = field(name="q", default=0)
    topic: str | None = field(name="t", default=None)
    group: str | None = field(name="c", default=None)
    revive_offset: Long = field(name="ro", default=0)
    diffs: list[Int] | None = field(name="d", default=None)
    broker_name: str | None = field(name="bn", default=None)
    re_put_times: str | None = field(name="rp", default=None)

    @property
    def revive_time(self) -> int:
        """When the messages become visible again, in epoch ms."""
        return self.pop_time + self.invisible_time

    @property
    def key(self) -> MergeKey:
        """The key that its acknowledgements have, too."""
        return (
            self.topic or "",
            self.group or "",
            self.queue_id,
            self.start_offset,
            self.pop_time,
            self.broker_name or "",
        )

    @property
    def times_re_put(self) -> int:
        """How often the checkpoint was stored again because its messages could not be revived."""
        if self.re_put_times is None:
            return 0
        try:
            return int(self.re_put_times)
        except ValueError:
            return REPUT_TIMES_UNREADABLE

    def index_of(self, offset: int) -> int | None:
        """The number of the message at a queue offset; None if the checkpoint does not list it."""
        distance = offset - self.start_offset
        if distance < 0:
            return None
        if not self.diffs:  # of an old version
            return distance if distance < self.count else None
        try:
            return self.diffs.index(distance)
        except ValueError:
            return None

    def offset_of(self, index: int) -> int:
        """The queue offset of message `index`."""
        if not self.diffs:
            return self.start_offset + index
        return self.start_offset + self.diffs[index]

    def acknowledge(self, offset: int) -> bool:
        """Marks the message at a queue offset as acknowledged. Returns whether the checkpoint lists it."""
        index = self.index_of(offset)
        if index is None:
            return False
        self.bit_map |= 1 << index
        return True

    @property
    def unacknowledged(self) -> list[int]:
        """The queue offsets of the messages that are not acknowledged."""
        listed = len(self.diffs) if self.diffs else self.count
        count = min(self.count, listed)
        return [self.offset_of(index) for index in range(count) if not self.bit_map >> index & 1]

    def encode(self) -> bytes:
        """The body of the checkpoint's message, as fastjson writes it."""
        return _encode(
            bm=self.bit_map,
            bn=self.broker_name,
            c=self.group,
            d=self.diffs,
            it=self.invisible_time,
            n=self.count,
            pt=self.pop_time,
            q=self.queue_id,
            reviveTime=self.revive_time,
            ro=self.revive_offset,
            rp=self.re_put_times,
            so=self.start_offset,
            t=self.topic,
        )

    @property
    def unique_key(self) -> str:
        """The UNIQ_KEY of the checkpoint's message."""
        return (
            f"{self.topic}@{self.queue_id}@{self.start_offset}@{self.group}@{self.pop_time}"
            f"@{self.broker_name}@{CK_TAG}"
        )


class AckMsg(Struct, kw_only=True):
    """Acknowledges messages of one checkpoint: the one at `ack_offset`, or, with `ack_offsets`, these (then
    `ack_offset` is -1)."""

    STRICT_FIRST: ClassVar[bool] = True

    ack_offset: Long = field(name="ao", default=0)
    start_offset: Long = field(name="so", default=0)
    group: str = field(name="c", default="")
    topic: str = field(name="t", default="")
    queue_id: Int = field(name="q", default=0)
    pop_time: Long = field(name="pt", default=0)
    broker_name: str | None = field(name="bn", default=None)
    ack_offsets: list[Long] | None = field(name="aol", default=None)

    @property
    def is_batch(self) -> bool:
        """Whether it acknowledges several messages."""
        return self.ack_offsets is not None

    @property
    def offsets(self) -> list[int]:
        """The acknowledged queue offsets."""
        return [self.ack_offset] if self.ack_offsets is None else self.ack_offsets

    def key(self, broker_name: str = "") -> MergeKey:
        """The key of its checkpoint. `broker_name` is used if the acknowledgement names no broker."""
        return (
            self.topic,
            self.group,
            self.queue_id,
            self.start_offset,
            self.pop_time,
            self.broker_name or broker_name,
        )

    def encode(self) -> bytes:
        """The body of the acknowledgement's message, as fastjson writes it."""
        return _encode(
            ao=self.ack_offset,
            aol=self.ack_offsets,
            bn=self.broker_name,
            c=self.group,
            pt=self.pop_time,
            q=self.queue_id,
            so=self.start_offset,
            t=self.topic,
        )

    @property
    def unique_key(self) -> str:
        """The UNIQ_KEY of the message of an acknowledgement that a client sent."""
        return (
            f"{self.topic}@{self.queue_id}@{self.ack_offset}@{self.group}@{self.pop_time}"
            f"@{self.broker_name or 'null'}@{ACK_TAG}"
        )

    @property
    def batch_unique_key(self) -> str:
        """The UNIQ_KEY of the message of several acknowledgements that the broker collected."""
        offsets = ", ".join(map(str, self.offsets))
        return f"{self.topic}@{self.queue_id}@[{offsets}]@{self.group}@{self.pop_time}@{BATCH_ACK_TAG}"


def decode_checkpoint(body: bytes) -> PopCheckPoint | None:
    """Reads the body of a checkpoint's message; None without topic or group. Raises RemoteProtocolError or
    BodyError for one that is no checkpoint."""
    found = from_json(PopCheckPoint, body)
    if found.topic is None or found.group is None:
        return None
    _require("n", found.count, MESSAGES_MAX)
    _require("d", len(found.diffs or ()), MESSAGES_MAX)
    _require("q", found.queue_id, INT_MAX)
    for name, value in (("so", found.start_offset), ("pt", found.pop_time), ("it", found.invisible_time)):
        _require(name, value, LONG_MAX)
    for diff in found.diffs or ():
        _require("d", diff, INT_MAX)
    return found


def _require(name: str, value: int, value_max: int) -> None:
    if not 0 <= value <= value_max:
        raise RemoteProtocolError(f"field {name} of a checkpoint is {value}: expected 0 to {value_max}")


def decode_ack(body: bytes) -> AckMsg:
    """Reads the body of an acknowledgement's message. Raises RemoteProtocolError or BodyError."""
    if b"ackOffset" not in body and b"popTime" not in body:
        return from_json(AckMsg, body)
    value = fastjson.loads(body)  # of a version that wrote the long names
    if isinstance(value, dict):
        value = {SHORT_NAMES.get(name, name): content for name, content in value.items()}
    return convert(AckMsg, value)


def is_plain(text: str) -> bool:
    """Whether no JSON writer escapes anything of the text."""
    return text.isascii() and text.isprintable() and '"' not in text and "\\" not in text


def _encode(**fields: Any) -> bytes:
    """The fields that have a value, as fastjson writes them."""
    found = {name: value for name, value in fields.items() if value is not None}
    if all(is_plain(value) for value in found.values() if isinstance(value, str)):
        return msgspec.json.encode(found)  # the same bytes, ten times as fast
    return fastjson.dumps(found)


# messages


def checkpoint_message(
    checkpoint: PopCheckPoint, topic: str, revive_queue_id: int, host: bytes, now_ms: int
) -> InnerMessage:
    """The message that stores a checkpoint. `topic` is the revive topic, `host` this broker's encoded
    address."""
    return InnerMessage(
        topic=topic,
        queue_id=revive_queue_id,
        body=checkpoint.encode(),
        properties={
            PROPERTY_TAGS: CK_TAG,
            PROPERTY_TIMER_DELIVER_MS: str(checkpoint.revive_time - ACK_INTERVAL_MS),
            PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX: checkpoint.unique_key,
        },
        born_timestamp=now_ms,
        born_host=host,
    )


def ack_message(
    ack: AckMsg,
    topic: str,
    revive_queue_id: int,
    revive_time: int,
    host: bytes,
    now_ms: int,
    unique_key: str = "",
) -> InnerMessage:
    """The message that stores an acknowledgement. `revive_time`, in epoch ms, is that of its checkpoint."""
    return InnerMessage(
        topic=topic,
        queue_id=revive_queue_id,
        body=ack.encode(),
        properties={
            PROPERTY_TAGS: BATCH_ACK_TAG if ack.is_batch else ACK_TAG,
            PROPERTY_TIMER_DELIVER_MS: str(revive_time),
            PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX: unique_key or ack.unique_key,
        },
        born_timestamp=now_ms,
        born_host=host,
    )
