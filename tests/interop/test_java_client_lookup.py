"""The Java client finds messages by key, id, time and offset, and reaches the broker by the VIP port and
TLS."""

from __future__ import annotations

import pytest

from tests.interop.scenarios import ScenarioReport

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]


BUSY_MS = 15_000
"""An upper bound for what a busy machine adds."""


@pytest.mark.scenario("query")
def test_a_message_is_found_by_each_of_its_keys(report: ScenarioReport) -> None:
    (own,) = report["own"]
    assert own["body"] == "query-3"
    assert own["keys"] == "own-3 shared"
    assert sorted(report["shared"]) == sorted(f"query-{i}" for i in range(10))
    assert "CODE: 208" in report["absent"]  # the client's error when no broker found a message


@pytest.mark.scenario("query")
def test_a_message_is_viewed_by_its_unique_key_and_by_its_offset_id(report: ScenarioReport) -> None:
    result = report["result"]
    for seen in (report["view_unique"], report["view_offset_id"]):
        assert seen["body"] == "query-5"
        assert seen["msg_id"] == result["msg_id"]
        assert (seen["queue_id"], seen["queue_offset"]) == (result["queue_id"], result["queue_offset"])


@pytest.mark.scenario("offsets")
def test_offsets_are_found_by_time_and_by_queue(report: ScenarioReport) -> None:
    assert (report["empty_min"], report["empty_max"]) == (0, 0)
    assert (report["min"], report["max"]) == (0, 20)
    assert report["by_time"] == {"before": 0, "between": 10, "after": 20}
    assert report["lite_by_time"] == 10
    assert report["earliest_store_time"] == report["first_store_time"]


@pytest.mark.scenario("offsets")
def test_a_seek_continues_at_that_offset(report: ScenarioReport) -> None:
    assert report["after_seek"] == [f"late-{i}" for i in range(10)]


PULLS = {
    "empty_at_0": ("NO_NEW_MSG", 0, 0, 0),
    "empty_at_7": ("OFFSET_ILLEGAL", 0, 0, 0),
    "at_0": ("FOUND", 32, 40, 32),
    "at_35": ("FOUND", 40, 40, 5),
    "at_end": ("NO_NEW_MSG", 40, 40, 0),
    "beyond": ("OFFSET_ILLEGAL", 40, 40, 0),
    "odd": ("FOUND", 40, 40, 20),
    "odd_at_38": ("FOUND", 40, 40, 1),
    "none": ("NO_MATCHED_MSG", 40, 40, 0),
    "one": ("FOUND", 4, 40, 1),
}


@pytest.mark.scenario("pull_edges")
@pytest.mark.parametrize("pull", PULLS)
def test_a_pull_at_any_offset_gets_messages_and_the_next_offset(report: ScenarioReport, pull: str) -> None:
    told = report[pull]
    assert (told["status"], told["next"], told["max"], told["count"]) == PULLS[pull]
    assert told["min"] == 0


@pytest.mark.scenario("hold")
def test_a_pull_waits_at_the_broker_for_its_time_or_for_a_message(report: ScenarioReport) -> None:
    ended, woken = report["ended"], report["woken"]
    assert (ended["status"], ended["next"], ended["count"]) == ("NO_NEW_MSG", 0, 0)
    look_round_ms = 5_000  # how often the broker checks for pulls whose time is over
    assert 2_900 < report["ended_ms"] < 3_000 + look_round_ms + BUSY_MS
    assert report["waited"]
    assert (woken["status"], woken["next"], woken["count"]) == ("FOUND", 1, 1)
    assert report["woken_ms"] < 3_000  # not at the broker's next check


NO_EXTERNAL_VIP = pytest.mark.not_secured("there is no VIP port for clients outside")
ROADS = [
    pytest.param("vip", marks=[pytest.mark.scenario("vip"), NO_EXTERNAL_VIP]),
    pytest.param("tls", marks=pytest.mark.scenario("tls")),
]


@pytest.mark.parametrize("road", ROADS)
def test_the_vip_port_and_tls_carry_messages_both_ways(report: ScenarioReport, road: str) -> None:
    received = report["received"]
    texts = sorted(m["body"] for m in received if m["body"] is not None)
    assert texts == sorted(f"road-{i}" for i in range(30)), road
    (large,) = (m for m in received if m["body"] is None)
    assert (large["length"], large["crc"]) == (600_000, report["sent_crc"])


@pytest.mark.scenario("trace")
def test_traces_of_sends_and_consumption_are_kept(report: ScenarioReport) -> None:
    assert sorted(report["received"]) == [f"traced-{i}" for i in range(5)]
    assert report["traced"] == report["ids"]
    assert report["kinds"] == ["Pub", "SubBefore", "SubAfter"]


@pytest.mark.scenario("request_reply")
def test_a_reply_is_pushed_to_the_requester(report: ScenarioReport) -> None:
    assert report["reply_errors"] == []
    assert sorted(report["answers"]) == [f"answer to question-{i}" for i in range(3)]
    for reply in report["described"]:
        assert reply["topic"] == "TestCluster_REPLY_TOPIC"
        assert int(reply["properties"]["PUSH_REPLY_TIME"]) > 0
        assert reply["properties"]["MSG_TYPE"] == "reply"
