"""RocketMQ's Java client sends messages with a delivery time, and recalls them. Each comes once, not early,
with the properties that RocketMQ gives it."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.interop.scenarios import ScenarioReport

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

LATE_MS = 30_000  # on a busy machine

BY_BROKER = {"CLUSTER", "MSG_REGION", "TRACE_ON"}
BY_CLIENT = {"UNIQ_KEY", "WAIT", "MIN_OFFSET", "MAX_OFFSET"}
BY_TIMER = {"TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"}

Stored = dict[str, Any]


def rounded(due_ms: int) -> int:
    """The time by which RocketMQ files a message."""
    return due_ms - 1000 if due_ms % 1000 == 0 else due_ms // 1000 * 1000


@pytest.fixture
def stored(report: ScenarioReport) -> dict[str, Stored]:
    """The delivered messages by their bodies; each came once."""
    bodies = [message["body"] for message in report["stored"]]
    assert len(bodies) == len(set(bodies))
    return {message["body"]: message for message in report["stored"]}


@pytest.mark.scenario("timer")
@pytest.mark.parametrize(
    ("body", "name", "delay_ms"),
    [("delay_ms", "TIMER_DELAY_MS", 2500), ("delay_sec", "TIMER_DELAY_SEC", 3000)],
)
def test_a_delay_is_counted_from_the_send(
    report: ScenarioReport, stored: dict[str, Stored], body: str, name: str, delay_ms: int
) -> None:
    sent = next(result for result in report["results"] if result["body"] == body)
    came = stored[body]
    assert 0 <= came["store_timestamp"] - sent["before"] - delay_ms < LATE_MS
    assert set(came["properties"]) - {"KEYS", "TAGS"} == BY_BROKER | BY_CLIENT | BY_TIMER | {name}


@pytest.mark.scenario("timer")
@pytest.mark.parametrize("body", ["deliver_ms", "whole_second"])
def test_a_message_comes_at_its_time_and_says_when_it_was_due(
    report: ScenarioReport, stored: dict[str, Stored], body: str
) -> None:
    sent = next(result for result in report["results"] if result["body"] == body)
    came = stored[body]
    properties = came["properties"]
    assert 0 <= came["store_timestamp"] - sent["due"] < LATE_MS
    assert set(properties) == BY_BROKER | BY_CLIENT | BY_TIMER | {"TIMER_DELIVER_MS"}
    assert properties["TIMER_DELIVER_MS"] == str(sent["due"])
    assert properties["TIMER_OUT_MS"] == str(rounded(sent["due"]))
    assert properties["REAL_TOPIC"] == came["topic"]
    assert properties["REAL_QID"] == str(came["queue_id"])
    assert int(properties["TIMER_ENQUEUE_MS"]) % 1000 == 0
    assert sent["due"] <= int(properties["TIMER_DEQUEUE_MS"]) <= came["store_timestamp"]
    assert properties["WAIT"] == "true"


@pytest.mark.scenario("timer")
def test_the_result_of_the_send_has_a_handle_to_recall_the_message(report: ScenarioReport) -> None:
    for result in report["results"]:
        handle = result["recall_handle"]
        if result["body"] in ("past", "level"):
            assert handle is None
            continue
        version, topic, broker, due, key = base64.urlsafe_b64decode(handle).decode().split(" ")
        assert (version, topic, broker, key) == ("v1", "T_timer", "broker-a", result["msg_id"])
        assert int(due) % 1000 == 1


@pytest.mark.scenario("timer")
def test_a_time_in_the_past_and_a_delay_level_need_no_timer(stored: dict[str, Stored]) -> None:
    assert set(stored["past"]["properties"]) == BY_BROKER | BY_CLIENT | {"TIMER_DELIVER_MS"}
    assert set(stored["level"]["properties"]) == BY_BROKER | BY_CLIENT | {"DELAY", "REAL_TOPIC", "REAL_QID"}


@pytest.mark.scenario("timer_rejections")
def test_impossible_times_are_rejected_with_rocketmqs_code_and_remark(report: ScenarioReport) -> None:
    illegal = (
        "13 timer message illegal, the delay time should not be bigger than the max delay 259200000ms; "
        "or if set del msg, the delay time should be bigger than the current time"
    )
    for name, answer in report["answers"].items():
        assert answer.startswith(illegal), name
    assert report["stored"] == []


@pytest.mark.scenario("timer_recall")
def test_a_recalled_message_does_not_come(report: ScenarioReport) -> None:
    assert report["answers"] == [result["msg_id"] for result in report["results"][:2]]
    assert sorted(message["body"] for message in report["stored"]) == ["recall-2", "recall-3"]
    assert report["wrong"]["past"].startswith("604 recall failed, timestamp invalid")
    assert sorted(report["again"]) == ["recall-2", "recall-3"]


@pytest.mark.scenario("timer_delete")
def test_a_message_deletes_another_that_is_due_at_the_same_time(report: ScenarioReport) -> None:
    assert sorted(report["stored"]) == ["delete-0", "delete-2", "end"]


@pytest.mark.scenario("timer_many")
def test_many_messages_come_once_and_not_early(report: ScenarioReport, stored: dict[str, Stored]) -> None:
    assert len(stored) == 300
    for sent in report["results"]:
        assert 0 <= stored[sent["body"]]["store_timestamp"] - sent["due"] < LATE_MS
