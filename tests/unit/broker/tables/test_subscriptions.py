"""The messages that a subscription expression selects."""

from __future__ import annotations

import pytest

from epochmq_broker.tables.subscriptions import SubscriptionError, parse_subscription, wanted_codes
from epochmq_protocol.javahash import java_hash


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_an_empty_expression_matches_every_message(expression: str | None) -> None:
    subscription = parse_subscription("T", expression, None, 1)
    assert subscription.sub_string == "*"
    assert wanted_codes(subscription) is None


def test_tags_are_separated_by_two_bars_and_compared_by_hash() -> None:
    subscription = parse_subscription("T", "TagA || TagB||", "TAG", 1)
    assert set(subscription.tags_set or ()) == {"TagA", "TagB"}
    assert wanted_codes(subscription) == {java_hash("TagA"), java_hash("TagB")}


def test_an_expression_of_bars_alone_is_rejected() -> None:
    with pytest.raises(SubscriptionError):
        parse_subscription("T", "||", "TAG", 1)


def test_an_sql_expression_is_kept_as_it_is_and_must_not_be_empty() -> None:
    assert parse_subscription("T", "a > 1", "SQL92", 1).expression_type == "SQL92"
    with pytest.raises(SubscriptionError):
        parse_subscription("T", "", "SQL92", 1)
