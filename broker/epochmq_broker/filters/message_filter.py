"""Decides which messages a subscription selects, for pulls and pops (RocketMQ's ExpressionMessageFilter and
ExpressionForRetryMessageFilter).

A filter has up to two parts. `tags` are compared with the tag codes of the consume queue. `select` looks at
the properties of the stored message; it exists for expressions only.
"""
# pure: rules over values

from __future__ import annotations

from collections.abc import Callable

from epochmq_broker.filters.consumer_filters import ConsumerFilterTable, RegisteredFilter, compiled
from epochmq_broker.filters.sql import SqlExpression
from epochmq_broker.subscriptions import is_tag_type, wanted_codes
from epochmq_protocol.bodies import SubscriptionData
from epochmq_protocol.message import parse_properties

RETRY_PREFIX = "%RETRY%"
RETRY_TOPIC = "RETRY_TOPIC"
"""The property with the topic from which a message came to a retry topic."""

Select = Callable[[bytes], bool]
"""Whether a message with these stored properties is selected."""


class MessageFilter:
    """Selects messages: `tags` None means every tag code, `select` None every message."""

    __slots__ = ("select", "tags")

    def __init__(self, tags: frozenset[int] | None = None, select: Select | None = None) -> None:
        self.tags = tags
        self.select = select


def _selector(expression: SqlExpression) -> Select:
    matches = expression.matches
    return lambda properties: matches(parse_properties(properties))


def tag_filter(subscription: SubscriptionData) -> MessageFilter:
    """The filter of a subscription by tags."""
    return MessageFilter(wanted_codes(subscription))


def carried_filter(subscription: SubscriptionData) -> MessageFilter:
    """The filter of a subscription that a request carries. An expression that does not compile selects every
    message, as in RocketMQ."""
    if is_tag_type(subscription.expression_type):
        return tag_filter(subscription)
    expression = compiled(subscription.sub_string, subscription.expression_type)
    return MessageFilter() if expression is None else MessageFilter(None, _selector(expression))


def registered_filter(registered: RegisteredFilter) -> MessageFilter:
    """The filter of a group's registered expression."""
    expression = registered.expression
    return MessageFilter() if expression is None else MessageFilter(None, _selector(expression))


def retry_filter(table: ConsumerFilterTable, subscription: SubscriptionData) -> MessageFilter:
    """The filter of a subscription by an expression to a retry topic, with filterSupportRetry: a message is
    selected by the group's registered expression for the topic from which the message came."""
    group, plus, topic = subscription.topic.removeprefix(RETRY_PREFIX).partition("+")
    if plus and "+" in topic:  # a group's name may contain a plus; of a retry topic v2 it is the separator
        group = f"{group}{plus}{topic}"

    def select(stored: bytes) -> bool:
        properties = parse_properties(stored)
        registered = table.get(properties.get(RETRY_TOPIC, ""), group)
        if registered is None or registered.expression is None:
            return True
        return registered.expression.matches(properties)

    return MessageFilter(None, select)
