"""Consumers of one group, and messages that they fail on, with RocketMQ's Java client."""

from __future__ import annotations

import pytest

from tests.interop.scenarios import ScenarioReport

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

# Without a notification from the broker, clients check their group only every 20 s.
NOTICE_MS = 15_000


def assert_nothing_lost(report: ScenarioReport) -> None:
    """Asserts that both consumers took part and one of them consumed every message."""
    assert report["missing"] == []
    assert "send_error" not in report
    assert report["stayed"] > 0
    assert report["left"] > 0


@pytest.mark.scenario("takeover_shutdown")
def test_two_consumers_share_the_queues_and_one_takes_over_when_the_other_shuts_down(
    report: ScenarioReport,
) -> None:
    assert_nothing_lost(report)
    assert report["takeover_ms"] < NOTICE_MS


@pytest.mark.scenario("takeover_orderly")
def test_orderly_consumers_release_their_locked_queues_to_others(report: ScenarioReport) -> None:
    assert_nothing_lost(report)
    assert report["takeover_ms"] < NOTICE_MS


@pytest.mark.scenario("takeover_kill")
def test_one_consumer_takes_over_when_the_other_is_killed(report: ScenarioReport) -> None:
    assert_nothing_lost(report)
    assert report["takeover_ms"] < NOTICE_MS


@pytest.mark.scenario("retry")
def test_a_failed_message_is_delivered_again_with_its_count_and_properties(report: ScenarioReport) -> None:
    received = report["received"]
    assert sorted((m["body"], m["reconsume_times"]) for m in received) == [
        ("never", 0),
        ("twice", 0),
        ("twice", 1),
        ("twice", 2),
    ]
    first, second, third = sorted(
        (m for m in received if m["body"] == "twice"), key=lambda m: m["reconsume_times"]
    )
    for again in (second, third):
        assert again["topic"] == "T_retry"  # the client restores it from RETRY_TOPIC
        assert again["msg_id"] == first["msg_id"]
        assert (again["tags"], again["keys"]) == ("tag", "key-twice")
        properties = again["properties"]
        assert properties["own"] == "value"
        assert properties["RETRY_TOPIC"] == "T_retry"
        assert properties["REAL_TOPIC"] == "%RETRY%G_retry"
        assert properties["DELAY"] == "1"
    assert second["properties"]["ORIGIN_MESSAGE_ID"] == third["properties"]["ORIGIN_MESSAGE_ID"]
    assert third["arrived"] - second["arrived"] >= 900  # delay level 1
    assert report["retry_queues"] == 1


@pytest.mark.scenario("dead_letter")
def test_a_message_that_fails_too_often_ends_in_the_dead_letter_queue(report: ScenarioReport) -> None:
    assert [m["reconsume_times"] for m in report["received"]] == [0, 1]
    (dead,) = report["dead"]
    assert dead["topic"] == "%DLQ%G_dead_letter"
    assert dead["body"] == "poison"
    assert dead["reconsume_times"] == 2
    assert dead["msg_id"] == report["result"]["msg_id"]
    properties = dead["properties"]
    assert properties["RETRY_TOPIC"] == "T_dead_letter"
    assert properties["ORIGIN_MESSAGE_ID"] == report["result"]["offset_msg_id"]
    assert properties["DELAY"] == "0"
    assert properties["WAIT"] == "false"
    assert properties["own"] == "value"


@pytest.mark.scenario("orderly_dead_letter")
def test_an_orderly_consumer_gives_up_on_a_message_and_continues(report: ScenarioReport) -> None:
    received = [(m["body"], m["reconsume_times"]) for m in report["received"]]
    assert received == [("good-1", 0), ("poison", 0), ("poison", 1), ("poison", 2), ("good-2", 0)]
    (dead,) = report["dead"]
    assert dead["topic"] == "%DLQ%G_orderly_dead_letter"
    assert (dead["body"], dead["reconsume_times"]) == ("poison", 3)
    properties = dead["properties"]
    assert properties["RETRY_TOPIC"] == "T_orderly_dead_letter"
    assert properties["MAX_RECONSUME_TIMES"] == "2"
    assert properties["DELAY"] == "-1"
