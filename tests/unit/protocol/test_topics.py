"""Names, permissions and versions of topics and groups follow RocketMQ."""

from __future__ import annotations

import msgspec
import pytest

from epochmq_protocol import topics
from epochmq_protocol.errors import BodyError
from epochmq_protocol.topics import DataVersion, TopicConfig, validate_topic


@pytest.mark.parametrize("name", ["a", "%RETRY%group", "A-b_c|d%9", "t" * 127])
def test_legal_topic_names_are_accepted(name: str) -> None:
    assert validate_topic(name) is None
    assert not topics.is_topic_or_group_illegal(name)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("", "blank"),
        ("  ", "blank"),
        *((name, "illegal") for name in ("a b", "тема", "../x", "a/b", "..")),
        ("t" * 128, "longer"),
    ],
)
def test_illegal_topic_names_are_rejected_with_the_reason(name: str, word: str) -> None:
    remark = validate_topic(name)
    assert remark is not None
    assert word in remark


def test_system_topics_are_recognised_and_some_reject_sends() -> None:
    assert topics.is_system_topic("TBW102")
    assert topics.is_system_topic("rmq_sys_anything")
    assert not topics.is_system_topic("orders")
    assert topics.is_not_allowed_send_topic("SCHEDULE_TOPIC_XXXX")
    assert not topics.is_not_allowed_send_topic("TBW102")


def test_group_topics_are_named_as_in_rocketmq() -> None:
    assert topics.retry_topic("g") == "%RETRY%g"
    assert topics.dlq_topic("g") == "%DLQ%g"
    assert topics.reply_topic("c") == "c_REPLY_TOPIC"
    assert topics.pop_retry_topic("t", "g") == "%RETRY%g_t"
    assert topics.pop_retry_topic("t", "g", is_v2=True) == "%RETRY%g+t"
    assert topics.is_retry_topic("%RETRY%g")
    assert topics.is_dlq_topic("%DLQ%g")


def test_permissions_are_bits() -> None:
    assert topics.is_readable(6)
    assert topics.is_writeable(6)
    assert not topics.is_inherited(6)
    assert topics.is_inherited(7)
    assert not topics.is_writeable(4)


def test_versions_are_ordered_by_state_version_then_counter_then_time() -> None:
    first = DataVersion()
    second = first.next(1000)
    assert second == DataVersion(1, 0, 1000)
    assert (first.compare(second), second.compare(first), first.compare(first)) == (-1, 1, 0)
    assert second.compare(DataVersion(0, 1, 0)) == -1
    assert DataVersion(1, 0, 999).compare(second) == -1
    with pytest.raises(AttributeError):
        first.counter = 5  # type: ignore[misc]


def test_the_one_line_form_of_a_topic_loses_only_order_and_system_flag() -> None:
    config = TopicConfig("T", 1, 2, 6, topics.TopicFilterType.MULTI_TAG, 5, True, {"a": "b"})
    assert config.encode() == 'T 1 2 6 MULTI_TAG {"a":"b"}'
    assert TopicConfig.decode(config.encode()) == msgspec.structs.replace(
        config, topic_sys_flag=0, order=False
    )
    assert TopicConfig.decode("T 1 2 6 SINGLE_TAG").attributes == {}
    assert TopicConfig.decode("T 1 2 6 SINGLE_TAG {broken").attributes == {}
    for line in ("T 1 2 6", "T x 2 6 SINGLE_TAG"):
        with pytest.raises(BodyError):
            TopicConfig.decode(line)
