"""Encodes and decodes the texts that identify messages in POP requests and responses (ExtraInfoUtil,
KeyBuilder).

`extraInfo` identifies one message: the first queue offset of its POP checkpoint, the time of the POP, the
time for which it is invisible, the queue of the revive topic, the retry flag, the broker, and its queue and
queue offset. `startOffsetInfo`, `msgOffsetInfo` and `orderCountInfo` describe one POP response, by queue."""
# pure: rules over values

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.topics import RETRY_GROUP_TOPIC_PREFIX, is_retry_topic, pop_retry_topic

ORDER_REVIVE_QUEUE: Final = 999
"""The number in place of a revive queue that marks an orderly POP, which writes no checkpoints."""

NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"
"""Retry flags: a message of the topic itself, of its retry topic, of its retry topic of version 2."""


class ExtraInfo(Struct, frozen=True):
    """Identifies a message that a consumer received. Times in ms. A text with fewer than eight fields is
    legal: an acknowledgement needs the first six."""

    start_offset: int
    pop_time: int
    invisible_time: int
    revive_queue_id: int
    retry: str
    broker_name: str
    queue_id: int = -1
    queue_offset: int = -1

    @property
    def is_order(self) -> bool:
        """Whether the message was received by an orderly POP."""
        return self.revive_queue_id == ORDER_REVIVE_QUEUE

    @property
    def revive_time(self) -> int:
        """When the message becomes visible again, in epoch ms."""
        return self.pop_time + self.invisible_time

    def encode(self) -> str:
        """The text with all eight fields."""
        return (
            f"{self.start_offset} {self.pop_time} {self.invisible_time} {self.revive_queue_id} {self.retry} "
            f"{self.broker_name} {self.queue_id} {self.queue_offset}"
        )


def parse_extra_info(text: str) -> ExtraInfo:
    """Reads an `extraInfo`. Raises RequestError SYSTEM_ERROR."""
    words = text.rstrip(" ").split(" ")
    if len(words) < 6:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"extraInfo={text!r:.200}: expected at least 6 fields separated by blanks, it has {len(words)}",
        )
    try:
        return ExtraInfo(
            _number(words[0]),
            _number(words[1]),
            _number(words[2]),
            _number(words[3]),
            words[4],
            words[5],
            _number(words[6]) if len(words) > 6 else -1,
            _number(words[7]) if len(words) > 7 else -1,
        )
    except ValueError:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"extraInfo={text!r:.200}: expected numbers in fields 1 to 4, 7 and 8"
        ) from None


def _number(text: str) -> int:
    """A number of 64 bits. Raises ValueError."""
    number = int(text)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(text)
    return number


# topics


def retry_flag(topic: str) -> str:
    """The retry flag of a topic's messages."""
    if not is_retry_topic(topic):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY_V1


def topic_of_retry_flag(topic: str, group: str, retry: str) -> str:
    """The topic that holds the messages that a group received with this retry flag. Raises RequestError
    SYSTEM_ERROR for an unknown flag."""
    if retry == NORMAL:
        return topic
    if retry == RETRY_V1:
        return pop_retry_topic(topic, group)
    if retry == RETRY_V2:
        return pop_retry_topic(topic, group, is_v2=True)
    raise RequestError(ResponseCode.SYSTEM_ERROR, f"retry={retry!r:.50}: expected 0, 1 or 2")


def topic_without_retry(topic: str, group: str) -> str:
    """The topic that a POP retry topic of this group belongs to. Returns any other topic as it is."""
    if not is_retry_topic(topic):
        return topic
    prefix = f"{RETRY_GROUP_TOPIC_PREFIX}{group}"
    return topic[len(prefix) + 1 :]  # behind the separator, a `+` or a `_`


# POP responses


def start_offset_entry(topic: str, queue_id: int, start_offset: int) -> str:
    """One entry of a response's `startOffsetInfo`."""
    return f"{retry_flag(topic)} {queue_id} {start_offset}"


def message_offsets_entry(topic: str, queue_id: int, offsets: Sequence[int]) -> str:
    """One entry of a response's `msgOffsetInfo`."""
    return f"{retry_flag(topic)} {queue_id} {','.join(map(str, offsets))}"


def queue_order_count_entry(topic: str, queue_id: int, count: int) -> str:
    """An entry of `orderCountInfo`: the least number of times that the queue's messages were received
    before."""
    return f"{retry_flag(topic)} {queue_id} {count}"


def offset_order_count_entry(topic: str, queue_id: int, offset: int, count: int) -> str:
    """An entry of `orderCountInfo`: how often one message was received before. RocketMQ's prefix `qo` says
    that queue id and queue offset follow."""
    return f"{retry_flag(topic)} qo{queue_id}%{offset} {count}"


def join_entries(entries: Sequence[str]) -> str:
    """Joins entries to the text of one header field."""
    return ";".join(entries)
