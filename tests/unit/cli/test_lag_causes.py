"""Tests which causes of a group's lag are named, for which facts."""

from __future__ import annotations

from typing import Any

import pytest

from epochmq.verbs.lag_causes import QUEUES_NAMED_MAX, causes_of_lag


def queue(number: int, lag: int, in_flight: int = 0, topic: str = "sales") -> dict[str, Any]:
    consumed = {"broker": "b", "queue": number, "maxOffset": 40 + lag, "consumed": 40}
    return {"topic": topic, "lag": lag, "inFlight": in_flight, **consumed}


def group(*queues: dict[str, Any], members: int = 1, **other: Any) -> dict[str, Any]:
    return {
        "group": "billing",
        "model": "CLUSTERING",
        "settings": [{"broker": "b", "consumeEnable": True}],
        "members": [{"clientId": str(number)} for number in range(members)],
        "subscriptions": [{"topic": "sales"}, {"topic": "%RETRY%billing"}] if members else [],
        "queues": list(queues),
    } | other


def test_a_group_that_has_read_everything_has_no_cause() -> None:
    assert causes_of_lag(group(queue(0, 0), queue(1, 0), members=0)) == []


def test_a_group_without_members_is_told_how_to_see_who_is_connected() -> None:
    (cause,) = causes_of_lag(group(queue(0, 2), queue(1, 3), members=0))
    assert cause.startswith("no member is connected to read the 5 messages")
    assert cause.endswith("epochmq client list")


def test_a_closed_group_is_named_with_its_broker() -> None:
    settings = [{"broker": "x", "consumeEnable": False}, {"broker": "y", "consumeEnable": True}]
    causes = causes_of_lag(group(queue(0, 2, 2), settings=settings))
    assert causes[0] == "broker x gives this group no messages: its settings have consumeEnable=false"
    assert not any("broker y" in cause for cause in causes)


def test_a_topic_without_a_subscription_stays_unread() -> None:
    causes = causes_of_lag(group(queue(0, 7, topic="old"), queue(0, 1, topic="%RETRY%billing")))
    assert "topic old: no member subscribes to it, so its 7 messages stay unread" in causes
    assert not any("%RETRY%billing: no member" in cause for cause in causes)


def test_pulled_messages_without_an_acknowledgement_point_to_the_application() -> None:
    causes = causes_of_lag(group(queue(0, 9, 4), queue(1, 9, 5), queue(2, 1, 1)))
    assert causes == [
        "topic sales: the members have pulled 10 messages that they have not acknowledged: they are slow, or "
        "fail at these messages; see the application's log"
    ]


def test_queues_that_nobody_pulls_are_named_with_the_next_message() -> None:
    causes = causes_of_lag(group(*(queue(number, 3) for number in range(QUEUES_NAMED_MAX + 2))))
    (cause,) = (one for one in causes if "in flight" in one)
    assert "b:0, b:1, b:2, b:3, b:4 and 2 more" in cause
    assert cause.endswith("epochmq message peek sales --queue b:0 --offset 40")


def test_a_lag_of_few_queues_is_said_to_be_so() -> None:
    causes = causes_of_lag(group(queue(0, 9, 9), *(queue(number, 0) for number in (1, 2, 3))))
    assert any("the whole lag is in 1 of 4 queues" in cause for cause in causes)


@pytest.mark.parametrize(
    ("members", "model", "is_named"), [(1, "CLUSTERING", False), (2, "CLUSTERING", True)]
)
def test_members_beyond_the_queues_are_no_remedy(members: int, model: str, is_named: bool) -> None:
    causes = causes_of_lag(group(queue(0, 9, 9), queue(1, 9, 9), members=members, model=model))
    assert any("epochmq topic alter sales --queues N" in cause for cause in causes) is is_named
