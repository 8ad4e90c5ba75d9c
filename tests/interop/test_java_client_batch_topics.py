"""RocketMQ's Java client sends batches to topics of type BatchCQ, and consumes them. Queue offsets are those
of single messages; pulls return whole batches."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop.scenarios import ScenarioReport

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

BASES = [0, 1, 3, 6, 10]
BODIES = [f"{number}-{at}" for number in range(1, 6) for at in range(number)]
INNER_BATCH = 0xC0


@pytest.mark.scenario("batch_topic")
def test_a_batch_gets_the_place_of_its_first_message_and_one_id(report: ScenarioReport) -> None:
    results = report["results"]
    assert [result["queue_offset"] for result in results] == BASES
    assert {result["queue_id"] for result in results} == {0}
    for result in results:
        assert result["status"] == "SEND_OK"
        assert "," not in result["msg_id"] + result["offset_msg_id"]
    assert len({result["msg_id"] for result in results}) == len(results)


@pytest.mark.scenario("batch_topic")
def test_a_consumer_gets_the_messages_of_all_batches(report: ScenarioReport) -> None:
    stored = report["stored"]
    assert [message["body"] for message in stored] == BODIES
    assert [message["queue_offset"] for message in stored] == list(range(15))
    for message in stored:
        number, at = message["body"].split("-")
        assert message["keys"] == f"key-{number}-{at}"
        assert message["tags"] == f"tag{int(at) % 2}"
        assert message["flag"] == int(at)
        assert message["sys_flag"] == INNER_BATCH
        assert message["properties"]["number"] == at
        assert not message["properties"].keys() & {"CLUSTER", "INNER_NUM", "INNER_BASE"}


@pytest.mark.scenario("batch_topic")
def test_minimum_and_maximum_count_messages(report: ScenarioReport) -> None:
    assert report["limits_before"] == report["limits_unused"] == [-1, 0]
    assert report["limits_after"] == [0, 15]


def expected_pull(offset: int, count: int) -> dict[str, Any]:
    """What a pull at this offset returns: the batch with the offset, and further ones while they fit."""
    answer: dict[str, Any] = {"offset": offset, "count": count, "min": 0, "max": 15, "found": []}
    if offset >= 15:
        status = "NO_NEW_MSG" if offset == 15 else "OFFSET_ILLEGAL"
        return answer | {"status": status, "next": 15}
    number = max(at for at, base in enumerate(BASES) if base <= offset)
    while number < 5 and (not answer["found"] or len(answer["found"]) + number + 1 <= count):
        answer["found"] += range(BASES[number], BASES[number] + number + 1)
        number += 1
    return answer | {"status": "FOUND", "next": answer["found"][-1] + 1}


@pytest.mark.scenario("batch_topic")
def test_a_pull_returns_whole_batches_from_any_offset(report: ScenarioReport) -> None:
    for pulled in report["pulls"]:
        assert pulled == expected_pull(pulled["offset"], pulled["count"])


@pytest.mark.scenario("batch_topic")
def test_a_tag_does_not_select_batches_because_a_batch_has_no_tag(report: ScenarioReport) -> None:
    pulled = report["tagged_pull"]
    assert (pulled["status"], pulled["next"], pulled["found"]) == ("NO_MATCHED_MSG", 15, [])


@pytest.mark.scenario("batch_topic")
def test_a_time_leads_to_the_next_batch_and_after_the_last_to_the_last(report: ScenarioReport) -> None:
    assert report["times"] == [*BASES, 10]
    assert report["earliest"] == report["stored"][0]["store_timestamp"]


@pytest.mark.scenario("batch_topic")
def test_the_id_of_a_batch_shows_the_whole_batch(report: ScenarioReport) -> None:
    viewed = report["viewed"]
    assert viewed["queue_offset"] == 3
    assert viewed["sys_flag"] == INNER_BATCH
    properties = viewed["properties"]
    assert (properties["INNER_NUM"], properties["INNER_BASE"]) == ("3", "3")
    assert set(properties) == {
        *("UNIQ_KEY", "WAIT", "CLUSTER", "MSG_REGION", "TRACE_ON", "INNER_NUM", "INNER_BASE")
    }
    assert viewed["length"] > 3 * 22


@pytest.mark.scenario("batch_topic")
def test_a_push_consumer_consumes_every_message_and_later_batches(report: ScenarioReport) -> None:
    assert report["consumed"] == [*BODIES, "9-0", "9-1"]


@pytest.mark.scenario("batch_topic_singles")
def test_messages_that_are_no_batch_are_consumed_between_batches(report: ScenarioReport) -> None:
    assert [result["status"] for result in report["results"]] == ["SEND_OK"] * 4
    assert [result["queue_offset"] for result in report["results"]] == [0, 1, 3, 4]
    assert report["limits"] == [0, 6]
    pulls = {pulled["offset"]: pulled for pulled in report["pulls"]}
    assert (pulls[0]["found"], pulls[0]["next"]) == ([0, 1, 2, 3, 4, 5], 6)
    assert pulls[1]["found"] == pulls[2]["found"] == [1, 2, 3, 4, 5]
    assert pulls[4]["found"] == pulls[5]["found"] == [4, 5]
    assert (pulls[6]["status"], pulls[6]["next"]) == ("NO_NEW_MSG", 6)
