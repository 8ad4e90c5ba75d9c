"""Chooses the queue of a message by its priority, as RocketMQ does since 5.4 (SendMessageProcessor).

The property `_SYS_MSG_PRIORITY_` names the priority, 0 or more; the client's method `setPriority` sets it.
The topic's type does not matter here. POPs go by priority if it is PRIORITY (`pop`).
"""
# pure: rules over properties

from __future__ import annotations

from epochmq_broker.tables.filters.java_values import EvaluationError, parse_integer
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.message_const import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_PRIORITY,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRANSACTION_PREPARED,
)
from epochmq_protocol.topics import TopicConfig

_OF_OTHER_TYPES = (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_SHARDING_KEY,
)


def priority_of(properties: dict[str, str]) -> int:
    """A message's priority; -1 without one (Message.getPriority)."""
    try:
        return max(-1, parse_integer(properties.get(PROPERTY_PRIORITY, "")))
    except EvaluationError:
        return -1


def queue_by_priority(properties: dict[str, str], topic: TopicConfig, queue_id: int) -> int:
    """The queue of a message that its producer sent to `queue_id`. A priority chooses the queue of its
    number, at most the last queue. A message of a transaction, with a delay, or with a message group cannot
    have a priority, too: this removes it. Raises RequestError if the topic has no write queue."""
    priority = priority_of(properties)
    if priority < 0:
        return queue_id
    is_half = properties.get(PROPERTY_TRANSACTION_PREPARED, "").lower() == "true"
    if is_half or any(name in properties for name in _OF_OTHER_TYPES):
        del properties[PROPERTY_PRIORITY]
        return queue_id
    if topic.write_queue_nums <= 0:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"topic[{topic.topic_name}] has no write queue")
    return min(priority, topic.write_queue_nums - 1)
