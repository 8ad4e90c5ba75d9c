"""Evaluates which messages a subscription selects by tag (RocketMQ's FilterAPI and ExpressionMessageFilter).

The broker compares hashes of tags, the consumer the tags themselves. SQL92 expressions are evaluated by the
package `filters`.
"""
# pure: rules over values

from __future__ import annotations

from epochmq_protocol.bodies import SubscriptionData
from epochmq_protocol.javahash import java_hash

SUB_ALL = "*"
TAG = "TAG"


class SubscriptionError(ValueError):
    """The subscription's expression is empty or malformed."""


def is_tag_type(expression_type: str | None) -> bool:
    """Whether the expression selects by tag (ExpressionType.isTagType)."""
    return not expression_type or expression_type == TAG


def parse_subscription(
    topic: str, expression: str | None, expression_type: str | None, version: int
) -> SubscriptionData:
    """Builds the subscription of a pull that carries its expression (FilterAPI.build). Raises
    SubscriptionError."""
    if not is_tag_type(expression_type):
        if not expression:
            raise SubscriptionError(f"Expression can't be null! {expression_type}")
        return SubscriptionData(
            topic=topic, sub_string=expression, expression_type=expression_type, sub_version=version
        )
    if not expression or expression == SUB_ALL:
        return SubscriptionData(topic=topic, sub_string=SUB_ALL, expression_type=TAG, sub_version=version)
    words = expression.split("||")
    if not any(words):
        raise SubscriptionError("subString split error")
    tags = {word.strip() for word in words if word.strip()}
    return SubscriptionData(
        topic=topic,
        sub_string=expression,
        tags_set=tags,
        code_set={java_hash(tag) for tag in tags},
        expression_type=TAG,
        sub_version=version,
    )


def wanted_codes(subscription: SubscriptionData) -> frozenset[int] | None:
    """The hashes of the selected tags; None if every message matches."""
    if subscription.class_filter_mode or not is_tag_type(subscription.expression_type):
        return None
    if subscription.sub_string == SUB_ALL:
        return None
    return frozenset(subscription.code_set or ())
