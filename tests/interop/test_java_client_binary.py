"""RocketMQ's Java client may write binary headers (rocketmq.serialize.type=ROCKETMQ) and compress by LZ4."""

from __future__ import annotations

import pytest

from tests.interop.scenarios import Facts
from tests.interop.test_java_client_send import assert_dense, assert_told_and_stored_agree, place

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]


@pytest.mark.binary_scenario("sync")
def test_a_sync_send_with_a_binary_header_is_stored_with_all_it_carried(binary_facts: Facts) -> None:
    stored = binary_facts["stored"]
    assert_told_and_stored_agree(binary_facts["results"], stored)
    assert_dense(stored)
    for message in stored:
        number = message["body"].removeprefix("sync-")
        assert message["keys"] == f"key-{number}"
        assert message["properties"]["number"] == number
        assert message["flag"] == int(number)


@pytest.mark.binary_scenario("async")
def test_async_sends_with_binary_headers_are_each_answered_and_stored_once(binary_facts: Facts) -> None:
    assert binary_facts["errors"] == []
    assert_told_and_stored_agree(binary_facts["results"], binary_facts["stored"])


@pytest.mark.binary_scenario("oneway")
def test_one_way_sends_with_binary_headers_are_stored(binary_facts: Facts) -> None:
    assert sorted(binary_facts["stored"]) == sorted(f"oneway-{i}" for i in range(100))


@pytest.mark.binary_scenario("batch")
def test_a_batch_with_a_binary_header_lies_together(binary_facts: Facts) -> None:
    batch = sorted((m for m in binary_facts["stored"] if m["body"].startswith("batch-")), key=place)
    assert [m["body"] for m in batch] == [f"batch-{i}" for i in range(20)]


@pytest.mark.binary_scenario("unicode")
def test_any_text_survives_a_binary_header(binary_facts: Facts) -> None:
    (message,) = binary_facts["stored"]
    assert message["tags"] == "métier"
    assert message["properties"]["Straße"] == "🚀 = ok, 100 %"
    assert [m["msg_id"] for m in binary_facts["by_key"]] == [message["msg_id"]]


@pytest.mark.binary_scenario("big")
def test_bodies_compressed_by_lz4_come_back_as_they_were(binary_facts: Facts) -> None:
    stored = sorted(binary_facts["stored"], key=place)
    assert [m["crc"] for m in stored] == binary_facts["crcs"]
    compression_lz4 = 1 << 8
    assert stored[0]["sys_flag"] == compression_lz4


@pytest.mark.binary_scenario("push_concurrent")
def test_a_push_consumer_with_binary_headers_gets_each_message_once(binary_facts: Facts) -> None:
    received = sorted(m["body"] for m in binary_facts["received"])
    assert received == sorted([f"before-{i}" for i in range(100)] + [f"after-{i}" for i in range(200)])


@pytest.mark.binary_scenario("lite_pull")
def test_a_lite_pull_consumer_with_binary_headers_goes_on_where_it_committed(binary_facts: Facts) -> None:
    assert sorted(binary_facts["first"]) == sorted(f"one-{i}" for i in range(50))
    assert sorted(binary_facts["second"]) == sorted(f"two-{i}" for i in range(20))


@pytest.mark.binary_scenario("request_reply")
def test_a_reply_is_pushed_to_a_client_with_binary_headers(binary_facts: Facts) -> None:
    assert binary_facts["reply_errors"] == []
    assert sorted(binary_facts["answers"]) == [f"answer to question-{i}" for i in range(3)]
