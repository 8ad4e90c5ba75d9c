"""Every kind of consumer of RocketMQ's Java client gets every message, in order where promised, and in
time."""

from __future__ import annotations

import statistics
from itertools import groupby

import pytest

from tests.interop.scenarios import ScenarioReport

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]


LATE_MS = 30_000
"""An upper bound for what a busy machine adds to a delay."""


def bodies(prefix: str, count: int) -> list[str]:
    """The bodies a scenario sent, sorted as text."""
    return sorted(f"{prefix}{i}" for i in range(count))


@pytest.mark.scenario("push_concurrent")
def test_a_push_consumer_gets_each_message_once(report: ScenarioReport) -> None:
    received = [m["body"] for m in report["received"]]
    assert sorted(received) == sorted(bodies("before-", 100) + bodies("after-", 200))
    assert {m["reconsume_times"] for m in report["received"]} == {0}


@pytest.mark.scenario("push_orderly")
def test_an_orderly_consumer_gets_each_queue_in_order_and_never_twice_at_once(report: ScenarioReport) -> None:
    assert report["done"] == 150
    assert report["overlaps"] == 0
    for queue in range(3):
        received = report["by_queue"][str(queue)]
        assert [text for text, _ in groupby(received)] == [f"order-{queue}-{i}" for i in range(50)]


@pytest.mark.scenario("push_orderly")
def test_a_suspended_queue_continues_with_the_message_it_stopped_at(report: ScenarioReport) -> None:
    for queue in range(3):
        received = report["by_queue"][str(queue)]
        assert received.count(f"order-{queue}-5") == 2
        assert len(received) == 51


@pytest.mark.scenario("lite_pull")
def test_a_lite_pull_consumer_continues_at_the_committed_offset(report: ScenarioReport) -> None:
    assert sorted(report["first"]) == bodies("one-", 50)
    assert sum(report["committed"].values()) == 50
    assert sorted(report["second"]) == bodies("two-", 20)


@pytest.mark.scenario("tag_filter")
def test_a_tag_subscription_gets_its_tags_only(report: ScenarioReport) -> None:
    assert sorted(report["chosen"]) == sorted(f"tag-{i}" for i in range(120) if i % 6 in (0, 2))


@pytest.mark.scenario("tag_filter")
def test_tags_with_the_same_hash_are_distinguished(report: ScenarioReport) -> None:
    assert sorted(report["twin"]) == sorted(f"tag-{i}" for i in range(120) if i % 6 == 3)


@pytest.mark.scenario("broadcast")
def test_every_broadcast_consumer_gets_every_message(report: ScenarioReport) -> None:
    assert sorted(report["first"]) == bodies("all-", 60)
    assert sorted(report["second"]) == bodies("all-", 60)


@pytest.mark.scenario("delay")
def test_a_delayed_message_arrives_soon_after_its_delay(report: ScenarioReport) -> None:
    level_ms = {1: 1_000, 2: 5_000, 3: 10_000}
    received = report["received"]
    assert sorted(m["body"] for m in received) == bodies("delay-", 12)
    for message in received:
        level = 1 + int(message["body"].removeprefix("delay-")) % 3
        held_ms = message["store_timestamp"] - message["born_timestamp"]
        assert 0 <= held_ms - level_ms[level] < LATE_MS, message["body"]


@pytest.mark.scenario("delay")
def test_a_delivered_delayed_message_keeps_the_properties_of_its_delay(report: ScenarioReport) -> None:
    for message in report["received"]:
        level = 1 + int(message["body"].removeprefix("delay-")) % 3
        properties = message["properties"]
        assert message["topic"] == "T_delay"
        assert message["tags"] == "late"
        assert properties["DELAY"] == str(level)
        assert properties["REAL_TOPIC"] == "T_delay"
        assert properties["REAL_QID"] == str(message["queue_id"])


@pytest.mark.scenario("long_poll")
def test_a_waiting_consumer_has_a_message_within_200_ms_of_its_acknowledgement(
    report: ScenarioReport,
) -> None:
    delays_ms = sorted(report["delays_ms"])
    assert len(delays_ms) == 100
    # A pull that is not woken waits for the broker's next check, every 5 s. A few are late because another
    # process has the processor at that moment.
    assert statistics.median(delays_ms) < 100
    assert delays_ms[-11] < 200, f"slowest: {delays_ms[-15:]}"


@pytest.mark.scenario("restart")
def test_a_restarted_consumer_continues_behind_the_consumed_messages(report: ScenarioReport) -> None:
    for round_ in ("first", "second", "third"):
        assert sorted(report[round_]) == bodies(f"{round_}-", 25)


@pytest.mark.scenario("from_timestamp")
def test_a_new_group_that_asks_for_a_time_in_a_young_queue_starts_at_its_first_message(
    report: ScenarioReport,
) -> None:
    """While a queue's first message is in memory, the broker answers a new group with offset 0."""
    assert sorted(report["received"]) == sorted(bodies("old-", 20) + bodies("new-", 20))


@pytest.mark.scenario("from_last")
def test_a_new_group_that_asks_for_the_end_of_a_young_queue_starts_at_its_first_message(
    report: ScenarioReport,
) -> None:
    assert sorted(report["received"]) == sorted(bodies("old-", 20) + bodies("new-", 20))


@pytest.mark.scenario("resubscribe")
def test_a_running_consumer_subscribes_to_another_topic(report: ScenarioReport) -> None:
    assert sorted(report["first"]) == bodies("first-", 10)
    assert sorted(report["both"]) == sorted(bodies("second-", 10) + bodies("late-", 10))


@pytest.mark.scenario("many")
def test_20_000_messages_under_load_arrive_once_each(report: ScenarioReport) -> None:
    assert report["answered"]
    assert report["failed"] == 0
    assert report["different"] == 20_000
    assert report["duplicates"] == 0
