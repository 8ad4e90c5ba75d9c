"""A topic without a unit was deleted, was made again, or has lost its queues."""

from __future__ import annotations

import pytest

from epochmq_spark.checks.former_topics import LoggedTopic, parse_topics, topics_without_units

TOPIC = LoggedTopic("g", "a", "orders", 7, 100, 900)
OTHER = LoggedTopic("g", "b", "orders", 7, 100, 900)
KNOWN, GONE = frozenset({"orders", "payments"}), frozenset({"payments"})
STOPPED = {"g": {"a": 1000, "b": 1000}}


@pytest.mark.parametrize(
    ("logged", "tables", "dispatched", "expected"),
    [
        ([TOPIC], {"a": GONE, "b": GONE}, STOPPED, ["topic.deleted"]),
        ([TOPIC], {"a": GONE, "b": KNOWN}, STOPPED, ["topic.without-queues"]),
        ([TOPIC], {"a": KNOWN, "b": KNOWN}, STOPPED, ["topic.without-queues"]),
        ([TOPIC, OTHER], {"a": KNOWN, "b": KNOWN}, STOPPED, ["topic.made-again"] * 2),
        ([TOPIC], {"a": KNOWN}, {"g": {"a": 1000}}, ["topic.without-queues"]),
        ([TOPIC], {"b": KNOWN}, STOPPED, []),
        ([TOPIC], {}, STOPPED, []),
        ([TOPIC], {"a": KNOWN, "b": KNOWN}, {"g": {"a": 0, "b": 0}}, []),
        ([LoggedTopic("g", "a", "rmq_sys_wheel_timer", 7, 100, 900)], {"a": GONE}, STOPPED, []),
    ],
    ids=[
        "deleted",
        "listed-by-another",
        "another-has-units",
        "none-has-units",
        "alone",
        "own-table-unreadable",
        "no-tables",
        "killed",
        "system-topic",
    ],
)
def test_a_topic_without_units(
    logged: list[LoggedTopic],
    tables: dict[str, frozenset[str]],
    dispatched: dict[str, dict[str, int]],
    expected: list[str],
) -> None:
    rows, keys = topics_without_units(logged, {"g": tables}, dispatched)
    assert [row["kind"] for row in rows] == expected
    assert len(keys) == len(expected)
    assert all((row["start_offset"], row["end_offset"]) == (100, 900) for row in rows)


def test_a_table_of_topics_is_parsed() -> None:
    assert parse_topics(b'{"topicConfigTable":{"T":{"perm":6}}}') == {"T"}
    with pytest.raises(ValueError, match="no topicConfigTable"):
        parse_topics(b"[]")
