"""RocketMQ's Java client sends in every way it can. Each message is stored once, at the place that the send
result names, with all its properties."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.interop.java_sends import Stored, assert_dense, assert_told_and_stored_agree, place
from tests.interop.scenarios import ScenarioReport

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]


@pytest.mark.scenario("sync")
def test_a_sync_send_returns_its_place_and_is_stored_with_all_its_properties(
    report: ScenarioReport,
) -> None:
    results, stored = report["results"], report["stored"]
    assert_told_and_stored_agree(results, stored)
    assert_dense(stored)
    assert {m["queue_id"] for m in stored} == {0, 1, 2, 3}
    for message in stored:
        number = int(message["body"].removeprefix("sync-"))
        assert message["tags"] == f"tag{number % 3}"
        assert message["keys"] == f"key-{number}"
        assert message["flag"] == number
        properties = message["properties"]
        assert properties["number"] == str(number)
        assert properties["WAIT"] == "true"
        assert 0 <= message["store_timestamp"] - message["born_timestamp"] < 60_000


@pytest.mark.scenario("sync")
def test_the_broker_adds_its_own_properties_and_returns_region_and_trace(report: ScenarioReport) -> None:
    for message in report["stored"]:
        properties = message["properties"]
        assert properties["CLUSTER"] == "TestCluster"
        assert properties["MSG_REGION"] == "DefaultRegion"
        assert properties["TRACE_ON"] == "true"
        assert set(properties) == {
            *("CLUSTER", "MSG_REGION", "TRACE_ON", "UNIQ_KEY", "WAIT", "KEYS", "TAGS", "number"),
            *("MIN_OFFSET", "MAX_OFFSET"),  # set by the client, from the pull's response
        }
    assert {(r["region"], r["trace_on"]) for r in report["results"]} == {("DefaultRegion", True)}


@pytest.mark.scenario("async")
def test_async_sends_with_many_in_flight_are_each_answered_and_stored_once(report: ScenarioReport) -> None:
    assert report["answered"]
    assert report["errors"] == []
    assert_told_and_stored_agree(report["results"], report["stored"])
    assert_dense(report["stored"])


@pytest.mark.scenario("oneway")
def test_one_way_sends_are_stored(report: ScenarioReport) -> None:
    assert sorted(report["stored"]) == sorted(f"oneway-{i}" for i in range(100))


@pytest.mark.scenario("batch")
def test_a_batch_is_stored_together_in_one_queue_in_its_order(report: ScenarioReport) -> None:
    stored = sorted(report["stored"], key=place)
    batch = [m for m in stored if m["body"].startswith("batch-")]
    assert [m["body"] for m in batch] == [f"batch-{i}" for i in range(20)]
    result = report["result"]
    assert result["status"] == "SEND_OK"
    first = result["queue_offset"]
    assert [place(m) for m in batch] == [(result["queue_id"], first + i) for i in range(20)]
    for number, message in enumerate(batch):
        assert message["keys"] == f"batch-key-{number}"
        assert message["tags"] == "tag"
        assert message["properties"]["number"] == str(number)
    assert len(result["offset_msg_id"].split(",")) == 20


@pytest.mark.scenario("large_batch")
def test_a_batch_of_thousands_stays_together_while_others_send_to_its_queue(report: ScenarioReport) -> None:
    stored = {(queue, offset): body for queue, offset, body in report["stored"]}
    singles, results = report["single_results"], report["results"]
    assert len(stored) == len(report["stored"]) == len(singles) + 15_000
    assert {queue for queue, _ in stored} == {2}
    for single in singles:
        assert (single["status"], stored[place(single)]) == ("SEND_OK", single["body"])
    for result in results:
        assert result["status"] == "SEND_OK"
        assert len(set(result["offset_msg_id"].split(","))) == 5_000
        queue, first = place(result)
        assert [stored[queue, first + number] for number in range(5_000)] == [
            f"batch-{number}" for number in range(5_000)
        ]


@pytest.mark.scenario("batch")
def test_elements_of_a_batch_carry_the_unique_key_of_the_batch(report: ScenarioReport) -> None:
    batch = [m for m in report["stored"] if m["body"].startswith("batch-")]
    ids = report["result"]["msg_id"].split(",")
    assert len(set(ids)) == 20
    common = {m["properties"]["UNIQ_KEY"] for m in batch}
    assert len(common) == 1
    assert common.isdisjoint(ids)
    assert {m["properties"]["CLUSTER"] for m in batch} == {"TestCluster"}


@pytest.mark.scenario("batch")
def test_a_batch_goes_to_the_queue_it_is_sent_to(report: ScenarioReport) -> None:
    placed = sorted((m for m in report["stored"] if m["body"].startswith("placed-")), key=place)
    assert [m["body"] for m in placed] == [f"placed-{i}" for i in range(5)]
    assert {m["queue_id"] for m in placed} == {3} == {report["placed_result"]["queue_id"]}


@pytest.mark.scenario("selector")
def test_a_selector_keeps_each_key_in_one_queue_and_in_order(report: ScenarioReport) -> None:
    by_key: dict[int, list[Stored]] = defaultdict(list)
    for message in sorted(report["stored"], key=place):
        by_key[int(message["body"].split("-")[1])].append(message)
    assert sorted(by_key) == list(range(8))
    for key, messages in by_key.items():
        assert {m["queue_id"] for m in messages} == {key % 4}
        assert [m["body"] for m in messages] == [f"order-{key}-{i}" for i in range(25)]


@pytest.mark.scenario("unicode")
def test_any_text_survives_in_body_tag_key_and_properties(report: ScenarioReport) -> None:
    (message,) = report["stored"]
    assert message["body"] == "\U0001d11e naïve 消息 \0 end"
    assert message["tags"] == "métier"
    assert message["keys"] == "ключ-七"
    assert message["properties"]["Straße"] == "🚀 = ok, 100 %"
    assert message["properties"]["quote"] == '"a\\b" {x:1} \' \t'
    assert [m["msg_id"] for m in report["by_key"]] == [message["msg_id"]]


@pytest.mark.scenario("big")
def test_compressed_large_and_tiny_bodies_are_read_unchanged(report: ScenarioReport) -> None:
    stored = sorted(report["stored"], key=place)
    assert [m["length"] for m in stored] == [20_000, 3_900_000, 1]
    assert [m["crc"] for m in stored] == report["crcs"]
    compression_zlib = 3 << 8
    assert [m["sys_flag"] for m in stored] == [compression_zlib, compression_zlib, 0]


@pytest.mark.scenario("big")
def test_a_body_over_the_limit_is_rejected_as_illegal(report: ScenarioReport) -> None:
    message_illegal = 13
    assert report["too_big"] == message_illegal


@pytest.mark.scenario("auto_create")
def test_a_first_send_creates_the_topic_no_wider_than_client_and_broker_allow(report: ScenarioReport) -> None:
    assert report["before"] == 0
    assert report["result"]["status"] == "SEND_OK"
    assert report["stored"] == ["first"]
    assert report["queues"] == 4  # what the client asks for
    assert report["wide_queues"] == 8  # what the broker gives at most


@pytest.mark.scenario("topic_127")
def test_a_topic_name_of_127_characters_works_like_any_other(report: ScenarioReport) -> None:
    (message,) = report["stored"]
    assert message["topic"] == "t" * 127
    assert message["body"] == "long name"
    assert place(message) == place(report["result"])
    assert [m["body"] for m in report["by_key"]] == ["long name"]


@pytest.mark.scenario("refusals")
def test_rejections_have_rocketmqs_codes(report: ScenarioReport) -> None:
    invalid_parameter, topic_not_exist = 29, 17
    assert report["queue_absent"] == invalid_parameter
    assert report["pull_queue_absent"] == invalid_parameter
    assert report["pull_topic_unknown"] == topic_not_exist
