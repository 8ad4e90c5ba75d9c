"""Attribute changes have RocketMQ's syntax and limits."""

from __future__ import annotations

import pytest

from epochmq_broker.tables.attributes import (
    GROUP_ATTRIBUTES,
    TOPIC_ATTRIBUTES,
    alter_attributes,
    parse_attributes,
    priority_factor,
)
from epochmq_protocol.errors import RequestError
from epochmq_protocol.subscription_groups import SubscriptionGroupConfig


def test_a_header_has_additions_with_a_value_and_deletions_without() -> None:
    assert parse_attributes("+message.type=FIFO,-reserve.time") == {
        "+message.type": "FIFO",
        "-reserve.time": "",
    }
    assert parse_attributes(None) == parse_attributes("") == {}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("message.type=FIFO", "add/alter attribute format is wrong: message.type"),
        ("message.type", "delete attribute format is wrong: message.type"),
        ("+a=1,+a=2", "key duplication: +a"),
    ],
)
def test_a_malformed_header_names_the_key(text: str, fault: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_attributes(text)
    assert caught.value.remark == fault


@pytest.mark.parametrize(
    ("current", "changes", "after"),
    [
        (None, {"+message.type": "FIFO"}, {"message.type": "FIFO"}),
        (None, {"+queue.type": "SimpleCQ"}, {"queue.type": "SimpleCQ"}),
        (None, {"+queue.type": "BatchCQ"}, {"queue.type": "BatchCQ"}),
        ({}, {"+reserve.time": "-1"}, {"reserve.time": "-1"}),
        ({"message.type": "FIFO"}, {"+message.type": "NORMAL"}, {"message.type": "NORMAL"}),
        ({"message.type": "FIFO"}, {"-message.type": ""}, {}),
        ({"message.type": "FIFO"}, {}, {"message.type": "FIFO"}),
    ],
)
def test_allowed_changes(
    current: dict[str, str] | None, changes: dict[str, str], after: dict[str, str]
) -> None:
    assert alter_attributes(TOPIC_ATTRIBUTES, current, changes) == after


@pytest.mark.parametrize(
    ("current", "changes", "fault"),
    [
        (
            None,
            {"-message.type": ""},
            "only add attribute is supported while creating topic. key: message.type",
        ),
        (
            None,
            {"message.type": "FIFO"},
            "only add attribute is supported while creating topic. key: essage.type",
        ),
        ({}, {"message.type": "FIFO"}, "wrong format key: essage.type"),
        ({}, {"-message.type": ""}, "attempt to delete a nonexistent key: message.type"),
        ({}, {"+queue.type": "BatchCQ"}, "attempt to update an unchangeable attribute. key: queue.type"),
        (None, {"+cleanup.policy": "KEEP"}, "value is not in set: [COMPACTION, DELETE]"),
        (
            {},
            {"+cleanup.policy": "COMPACTION"},
            "attempt to update an unchangeable attribute. key: cleanup.policy",
        ),
        ({}, {"+nothing": "1"}, "unsupported key: nothing"),
        ({}, {"+reserve.time": "-2"}, "value is not in range(-1, 9223372036854775807)"),
        ({}, {"+reserve.time": "x"}, 'For input string: "x"'),
        ({}, {"+": "x"}, "kv string format wrong."),
        ({}, {"+a+b": "x"}, "kv string format wrong."),
        (
            {"message.type": "A"},
            {"+message.type": "FIFO", "-message.type": ""},
            "alter duplication key. key: message.type",
        ),
    ],
)
def test_rejected_changes_give_the_reason(
    current: dict[str, str] | None, changes: dict[str, str], fault: str
) -> None:
    with pytest.raises(RequestError) as caught:
        alter_attributes(TOPIC_ATTRIBUTES, current, changes)
    assert caught.value.remark == fault


def test_the_attribute_of_a_group_is_its_priority_factor() -> None:
    altered = alter_attributes(GROUP_ATTRIBUTES, {}, {"+priority.factor": "30"})
    group = SubscriptionGroupConfig(group_name="g", attributes=altered)
    assert (priority_factor(group), priority_factor(SubscriptionGroupConfig(group_name="g"))) == (30, 100)
    for value in ("-1", "101", "1_0", " 1"):
        with pytest.raises(RequestError):
            alter_attributes(GROUP_ATTRIBUTES, altered, {"+priority.factor": value})
    for key in ("message.type", "lite.bind.topic"):
        with pytest.raises(RequestError, match=f"unsupported key: {key}"):
            alter_attributes(GROUP_ATTRIBUTES, {}, {f"+{key}": "x"})


def test_a_topic_of_type_lite_is_rejected() -> None:
    with pytest.raises(RequestError, match="value is not in set"):
        alter_attributes(TOPIC_ATTRIBUTES, None, {"+message.type": "LITE"})
