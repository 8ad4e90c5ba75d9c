"""Which messages a subscription wants, as far as tags decide (RocketMQ's FilterAPI and
ExpressionMessageFilter).

A broker compares hashes of tags, the consumer the tags themselves. SQL92 expressions need
enablePropertyFilter, which this broker does not offer yet.
"""
# pure: rules over values

from __future__ import annotations

from epochmq_protocol.bodies import SubscriptionData
from epochmq_protocol.javahash import java_hash

SUB_ALL = "*"
TAG = "TAG"


class SubscriptionError(ValueError):
    """An expression that says nothing."""


def is_tag_type(expression_type: str | None) -> bool:
    """Whether the expression is about tags (ExpressionType.isTagType)."""
    return not expression_type or expression_type == TAG


def parse_subscription(
    topic: str, expression: str | None, expression_type: str | None, version: int
) -> SubscriptionData:
    """The subscription a pull carries (FilterAPI.build). Raises SubscriptionError."""
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
    """Tags codes that match; None when every message does."""
    if subscription.class_filter_mode or not is_tag_type(subscription.expression_type):
        return None
    if subscription.sub_string == SUB_ALL:
        return None
    return frozenset(subscription.code_set or ())
