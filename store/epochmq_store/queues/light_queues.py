"""Assigns offsets in light message queues, and adds the units of a message to them (LmqDispatch,
MultiDispatchUtils, ConsumeQueue.multiDispatchLmqQueue).

A message names its light queues in the property INNER_MULTI_DISPATCH, separated by commas. The broker that
appends it writes the message's offset in each of them into INNER_MULTI_QUEUE_OFFSET. Every broker that
dispatches the record adds a unit to each of these queues: on the append path, on a replica, at recovery. A
light queue has the queue id 0 and no files until its first message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from epochmq_protocol.message_const import (
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
    stored_name,
)
from epochmq_protocol.topics import LMQ_DISPATCH_SEPARATOR, LMQ_QUEUE_ID, is_lmq, topic_allows_lmq
from epochmq_store import record
from epochmq_store.queues.consume_queue import ConsumeQueue
from epochmq_store.queues.consume_queues import ConsumeQueues, is_queue_name
from epochmq_store.statuses import PutStatus

_NAMES: Final = stored_name(PROPERTY_INNER_MULTI_DISPATCH)
_OFFSETS: Final = stored_name(PROPERTY_INNER_MULTI_QUEUE_OFFSET)
_OFFSET_DIGITS_MAX: Final = 19


def light_queue_names(text: str) -> list[str]:
    """The names in the property INNER_MULTI_DISPATCH. Empty names at the end do not count, as in Java."""
    return text.rstrip(LMQ_DISPATCH_SEPARATOR).split(LMQ_DISPATCH_SEPARATOR)


def light_queue_offsets(topic: str, properties: bytes) -> list[tuple[str, int]]:
    """(name, offset) of each light queue of a record with these stored properties. Empty if the record names
    none, or if the names and the offsets do not match: RocketMQ then dispatches to none of them."""
    if _OFFSETS not in properties or not topic_allows_lmq(topic):
        return []
    names = record.property_value(properties, _NAMES)
    offsets = record.property_value(properties, _OFFSETS)
    if names is None or offsets is None:
        return []
    known = light_queue_names(names.decode("utf-8", "replace"))
    numbers = offsets.decode("utf-8", "replace").rstrip(LMQ_DISPATCH_SEPARATOR).split(LMQ_DISPATCH_SEPARATOR)
    if len(known) != len(numbers):
        return []
    return [
        (name, int(number))
        for name, number in zip(known, numbers, strict=True)
        if is_lmq(name) and is_queue_name(name) and _is_offset(number)
    ]


def _is_offset(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _OFFSET_DIGITS_MAX


class LightQueues:
    """The light queues of one store. With `dispatches` messages get units in them (enableMultiDispatch);
    without it, offsets are counted only. `queues_max` is maxLmqConsumeQueueNum."""

    def __init__(self, queues: ConsumeQueues, *, dispatches: bool, queues_max: int) -> None:
        self._queues = queues
        self.dispatches = dispatches
        self._queues_max = queues_max
        self._counted: dict[str, int] = {}  # the next offset of each name, while nothing is dispatched

    def configure(self, *, queues_max: int) -> None:
        """Applies the number of queues that there may be."""
        self._queues_max = queues_max

    def assign(self, text: str) -> tuple[str, list[ConsumeQueue]] | PutStatus:
        """The value of INNER_MULTI_QUEUE_OFFSET for a message with this INNER_MULTI_DISPATCH, and the queues
        that get a unit. Otherwise the status of the rejection: LMQ_CONSUME_QUEUE_NUM_EXCEEDED if there would
        be too many light queues, MESSAGE_ILLEGAL if a name is no directory's name, or if a name without the
        prefix %LMQ% stands before one with it. RocketMQ accepts such a message, and can dispatch neither it
        nor any message after it."""
        names = light_queue_names(text)
        light = [name for name in names if is_lmq(name)]
        if any(is_lmq(name) for name in names[len(light) :]):
            return PutStatus.MESSAGE_ILLEGAL
        if not all(map(is_queue_name, light)):
            return PutStatus.MESSAGE_ILLEGAL
        if not self._has_room(light):
            return PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED
        offsets = [str(self._next_offset(name)) for name in light] + [""] * (len(names) - len(light))
        queues: list[ConsumeQueue] = []
        if self.dispatches and len(light) == len(names):
            queues = [self._queues[name, LMQ_QUEUE_ID] for name in dict.fromkeys(light)]
        return LMQ_DISPATCH_SEPARATOR.join(offsets), queues

    def count(self, topic: str, properties: Mapping[str, str]) -> None:
        """Advances the offsets of a message that was stored, unless its units do (LmqDispatch)."""
        if (
            self.dispatches
            or PROPERTY_INNER_MULTI_QUEUE_OFFSET not in properties
            or not topic_allows_lmq(topic)
        ):
            return
        for name in filter(is_lmq, light_queue_names(properties.get(PROPERTY_INNER_MULTI_DISPATCH, ""))):
            self._counted[name] = self._next_offset(name) + 1

    def of_record(self, topic: str, properties: bytes) -> list[tuple[ConsumeQueue, int]]:
        """(queue, offset) of each light queue of a record. maxLmqConsumeQueueNum does not apply: the broker
        that appended the record has checked it."""
        if not self.dispatches:
            return []
        return [
            (self._queues[name, LMQ_QUEUE_ID], offset)
            for name, offset in light_queue_offsets(topic, properties)
        ]

    def _has_room(self, names: list[str]) -> bool:
        if self.dispatches:
            new = sum((name, LMQ_QUEUE_ID) not in self._queues for name in set(names))
            return not new or self._queues.light_queues + new <= self._queues_max
        new = sum(name not in self._counted for name in set(names))
        return not new or len(self._counted) + new <= self._queues_max

    def _next_offset(self, name: str) -> int:
        queue = self._queues.get((name, LMQ_QUEUE_ID))
        return max(self._counted.get(name, 0), 0 if queue is None else queue.max_offset)
