"""RocketMQ's Java client with binary headers (rocketmq.serialize.type=ROCKETMQ) and LZ4 compression."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.interop.java_sends import (
    assert_dense,
    assert_stored_by_answers,
    assert_told_and_stored_agree,
    place,
)
from tests.interop.scenarios import ScenarioReport

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]


@pytest.mark.binary_scenario("sync")
def test_a_sync_send_with_a_binary_header_is_stored_with_all_its_properties(
    binary_report: ScenarioReport,
) -> None:
    stored = binary_report["stored"]
    assert_told_and_stored_agree(binary_report["results"], stored)
    assert_dense(stored)
    for message in stored:
        number = message["body"].removeprefix("sync-")
        assert message["keys"] == f"key-{number}"
        assert message["properties"]["number"] == number
        assert message["flag"] == int(number)


@pytest.mark.binary_scenario("async")
def test_async_sends_with_binary_headers_are_each_answered_and_stored_once(
    binary_report: ScenarioReport,
) -> None:
    assert binary_report["errors"] == []
    assert_told_and_stored_agree(binary_report["results"], binary_report["stored"])


@pytest.mark.binary_scenario("oneway")
def test_one_way_sends_with_binary_headers_are_stored(binary_report: ScenarioReport) -> None:
    assert sorted(binary_report["stored"]) == sorted(f"oneway-{i}" for i in range(100))


@pytest.mark.binary_scenario("batch")
def test_a_batch_with_a_binary_header_is_stored_together(binary_report: ScenarioReport) -> None:
    batch = sorted((m for m in binary_report["stored"] if m["body"].startswith("batch-")), key=place)
    assert [m["body"] for m in batch] == [f"batch-{i}" for i in range(20)]


@pytest.mark.binary_scenario("unicode")
def test_any_text_survives_a_binary_header(binary_report: ScenarioReport) -> None:
    (message,) = binary_report["stored"]
    assert message["tags"] == "métier"
    assert message["properties"]["Straße"] == "🚀 = ok, 100 %"
    assert [m["msg_id"] for m in binary_report["by_key"]] == [message["msg_id"]]


@pytest.mark.binary_scenario("big")
def test_bodies_compressed_by_lz4_are_read_unchanged(binary_report: ScenarioReport) -> None:
    stored = sorted(binary_report["stored"], key=place)
    assert [m["crc"] for m in stored] == binary_report["crcs"]
    compression_lz4 = 1 << 8
    assert stored[0]["sys_flag"] == compression_lz4


@pytest.mark.binary_scenario("push_concurrent")
def test_a_push_consumer_with_binary_headers_gets_each_message_once(binary_report: ScenarioReport) -> None:
    received = sorted(m["body"] for m in binary_report["received"])
    assert received == sorted([f"before-{i}" for i in range(100)] + [f"after-{i}" for i in range(200)])


@pytest.mark.binary_scenario("lite_pull")
def test_a_lite_pull_consumer_with_binary_headers_continues_at_its_committed_offset(
    binary_report: ScenarioReport,
) -> None:
    assert sorted(binary_report["first"]) == sorted(f"one-{i}" for i in range(50))
    assert sorted(binary_report["second"]) == sorted(f"two-{i}" for i in range(20))


@pytest.mark.binary_scenario("request_reply")
def test_a_reply_is_pushed_to_a_client_with_binary_headers(binary_report: ScenarioReport) -> None:
    assert binary_report["reply_errors"] == []
    assert sorted(binary_report["answers"]) == [f"answer to question-{i}" for i in range(3)]


@pytest.mark.binary_scenario("transaction_check")
def test_transactions_end_and_are_checked_with_binary_headers(binary_report: ScenarioReport) -> None:
    # A producer that the machine stops for a moment is asked once more, and answers once more.
    asked = Counter(m["body"] for m in binary_report["checked"])
    answers = {
        "throw commit 1": asked["throw commit 1"],
        "unknown commit 1": asked["unknown commit 1"],
        "unknown commit 2": asked["unknown commit 2"] - 1,
    }
    assert_stored_by_answers((m["body"] for m in binary_report["stored"]), answers)
    assert asked["unknown rollback 2"] >= 2
    assert binary_report["quiet"]
