"""Consumption by POP: with RocketMQ's Java push consumer, and request by request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.interop.scenarios import ScenarioReport
from tests.interop.secured_cluster import SecuredCluster
from tests.support.cluster import Cluster

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

EMPTY_POP = {"invisibleTime": "0", "popTime": "0", "restNum": "0", "reviveQid": "0"}
POPPED_MS, CHANGED_MS = 20_000, 10_000
NO_REMARK = "not set any response code"
NO_FAQ = "apply first please! "  # RocketMQ adds a link


def bodies(answer: ScenarioReport) -> list[str]:
    """The bodies of the messages of a response."""
    return [message["body"] for message in answer["messages"]]


@pytest.mark.scenario("pop_push")
def test_a_push_consumer_pops_every_message_once_and_a_failed_one_again(report: ScenarioReport) -> None:
    received = report["received"]
    assert report["assigned"] == ["T_pop_push -1"]
    once = [message["body"] for message in received if message["body"] != "twice"]
    assert sorted(once) == sorted(report["sent"])
    failed = [message for message in received if message["body"] == "twice"]
    assert [message["reconsume_times"] for message in failed] == [0, 1, 2]
    for number, message in enumerate(failed):
        assert (message["topic"], message["tags"], message["keys"]) == ("T_pop_push", "tag", "key")
        assert message["msg_id"] == failed[0]["msg_id"]
        properties = message["properties"]
        assert properties["own"] == "value"
        words = properties["POP_CK"].split(" ")
        assert (len(words), words[2], words[4], words[5]) == (8, "20000", "1" if number else "0", "broker-a")
    first, second, third = (message["arrived"] for message in failed)
    assert second - first >= 2000
    assert third - second >= 2000
    assert report["retry_queues"] == 1


@pytest.mark.soak
@pytest.mark.scenario("pop_switch")
def test_no_message_is_lost_when_a_group_changes_between_pull_and_pop(report: ScenarioReport) -> None:
    assert report["modes"] == ["POP", "PULL"]
    assert "send_error" not in report
    assert report["received"] == report["sent"]


@pytest.mark.scenario("pop_requests")
def test_pops_acknowledgements_and_what_comes_again(report: ScenarioReport) -> None:
    assert report["notification"]["fields"] == {"hasMsg": "true", "pollingFull": "false"}
    assert report["notification"]["remark"] == NO_REMARK
    assert report["no_notification"]["fields"] == {"hasMsg": "false", "pollingFull": "false"}
    peek = report["peek"]
    assert (peek["code"], peek["remark"], peek["fields"]["restNum"], len(peek["messages"])) == (
        0,
        "FOUND",
        "5",
        5,
    )
    assert (report["peek_empty"]["code"], report["peek_empty"]["remark"]) == (19, "NO_MESSAGE_IN_QUEUE")
    first, second, empty = report["first"], report["second"], report["empty"]
    assert bodies(first) == ["request-0", "request-1"]
    assert {**first["fields"], "popTime": "", "reviveQid": ""} == {
        "popTime": "",
        "invisibleTime": "60000",
        "reviveQid": "",
        "restNum": "3",
        "startOffsetInfo": "0 0 0",
        "msgOffsetInfo": "0 0 0,1",
    }
    assert (second["fields"]["msgOffsetInfo"], second["fields"]["restNum"]) == ("0 0 2,3,4", "0")
    assert (empty["code"], empty["remark"]) == (210, "NO_MESSAGE_IN_QUEUE")
    assert (empty["fields"]["startOffsetInfo"], empty["fields"]["msgOffsetInfo"]) == ("", "")
    assert (report["ack"]["code"], report["ack"]["remark"], report["batch"]["code"]) == (0, None, 0)
    changed = report["changed"]
    assert (changed["code"], changed["remark"], changed["fields"]["invisibleTime"]) == (
        0,
        NO_REMARK,
        str(CHANGED_MS),
    )
    assert changed["fields"]["reviveQid"] == first["fields"]["reviveQid"]

    again = {message["body"]: message for message in report["again"]}
    assert again.keys() == {"request-1", "request-3"}
    for message in again.values():
        assert (message["topic"], message["reconsume_times"], message["ack"]) == ("T_pop_requests", 1, 0)
        assert (message["tags"], message["keys"], message["properties"]["own"]) == ("tag", "key", "value")
    assert again["request-1"]["properties"]["1ST_POP_TIME"] == changed["fields"]["popTime"]
    assert again["request-3"]["properties"]["1ST_POP_TIME"] == second["fields"]["popTime"]
    for message in report["stored_again"]:
        assert message["topic"] == "%RETRY%G_pop_requests_T_pop_requests"
        assert "POP_CK" not in message["properties"]


@pytest.mark.scenario("pop_requests")
def test_checkpoints_and_acknowledgements_are_stored_as_by_rocketmq(report: ScenarioReport) -> None:
    second = report["second"]["fields"]
    pop_time, changed_at = second["popTime"], report["changed"]["fields"]["popTime"]
    expected = {
        "ck": {
            f'{{"bm":0,"bn":"broker-a","c":"G_pop_requests","d":[0],"it":{CHANGED_MS},"n":1,"pt":{changed_at},"q":0,'
            f'"reviveTime":{int(changed_at) + CHANGED_MS},"ro":0,"so":1,"t":"T_pop_requests"}}',
            f'{{"bm":0,"bn":"broker-a","c":"G_pop_requests","d":[0,1,2],"it":{POPPED_MS},"n":3,"pt":{pop_time},"q":0,'
            f'"reviveTime":{int(pop_time) + POPPED_MS},"ro":0,"so":2,"t":"T_pop_requests"}}',
        },
        "bAck": {
            f'{{"ao":-1,"aol":[2,4],"bn":"broker-a","c":"G_pop_requests","pt":{pop_time},"q":0,"so":2,'
            '"t":"T_pop_requests"}'
        },
    }
    assert report["revive_queues"] == 8
    records = report["revive_records"]
    for tag, wanted in expected.items():
        assert {record["body"] for record in records if record["tags"] == tag} == wanted
    for record in records:
        body, properties = json.loads(record["body"]), record["properties"]
        queue = first_queue(report) if body["so"] == 1 else int(second["reviveQid"])
        assert record["queue_id"] == queue
        due = (
            int(body["pt"])
            + (CHANGED_MS if body["so"] == 1 else POPPED_MS)
            - (1000 if record["tags"] == "ck" else 0)
        )
        assert properties["TIMER_DELIVER_MS"] == str(due)
        last = "ck" if record["tags"] == "ck" else "ack"
        offset = body["so"] if last == "ck" else -1
        assert (
            properties["UNIQ_KEY"] == f"T_pop_requests@0@{offset}@G_pop_requests@{body['pt']}@broker-a@{last}"
        )


def first_queue(report: ScenarioReport) -> int:
    """The revive queue of the first POP."""
    return int(report["first"]["fields"]["reviveQid"])


@pytest.mark.scenario("pop_rejections")
def test_rejected_requests_get_rocketmqs_codes_and_remarks(report: ScenarioReport, cluster: Cluster) -> None:
    found: dict[str, dict[str, Any]] = report["responses"]
    unknown = f"topic[unknown_topic_of_pop] not exist, {NO_FAQ}"
    illegal = "queueId[{}] is illegal, topic:[T_pop_rejections] topicConfig.readQueueNums:[1] consumer:["
    for name, code, start in (
        ("pop_topic", 17, unknown),
        ("pop_count", 29, "the broker["),
        ("pop_queue", 29, illegal.format(7)),
        ("pop_expression", 23, "parse the consumer's subscription failed"),
        ("pop_late", 210, "the broker["),
        ("ack_topic", 17, unknown),
        ("ack_queue", 13, illegal.format(7)),
        ("ack_offset", 208, "offset is illegal, key:T_pop_rejections@0, commit:9, store:0~1"),
        ("change_queue", 13, illegal.format(7)),
        ("change_offset", 208, NO_REMARK),
        ("polling", 0, NO_REMARK),
        ("polling_queue", 29, illegal.format(3)),
    ):
        assert found[name]["code"] == code, name
        assert found[name]["remark"].startswith(start), name
    assert found["pop_count"]["remark"].endswith("] pop message's num is greater than 32")
    assert found["pop_late"]["remark"].endswith("] pop message is timeout too much")
    # With aclStrict, a batch of acknowledgements must say what it acknowledges.
    empty = (16, "parse authorization context error.") if isinstance(cluster, SecuredCluster) else (208, None)
    assert (found["batch_empty"]["code"], found["batch_empty"]["remark"]) == empty
    for name in ("pop_topic", "pop_count", "pop_queue", "pop_expression", "pop_late"):
        assert found[name]["fields"] == EMPTY_POP
    for name in ("change_queue", "change_offset"):
        assert found[name]["fields"] == {"invisibleTime": "0", "popTime": "0", "reviveQid": "0"}
    for name in ("polling", "polling_queue"):
        assert found[name]["fields"] == {"pollingNum": "0"}


@pytest.mark.scenario("pop_orderly")
def test_orderly_pops_block_their_queue(report: ScenarioReport) -> None:
    found: dict[str, dict[str, Any]] = report["responses"]
    first, blocked, again = found["first"], found["blocked"], found["again"]
    assert bodies(first) == bodies(found["repeated"]) == ["order-0", "order-1"]
    assert (first["fields"]["reviveQid"], first["fields"]["restNum"]) == ("999", "1")
    assert first["fields"]["orderCountInfo"] == found["repeated"]["fields"]["orderCountInfo"] == "0 0 0"
    assert (blocked["code"], blocked["fields"]["restNum"], blocked["fields"]["orderCountInfo"]) == (
        210,
        "0",
        "",
    )
    assert (found["old_ack"]["code"], found["ack"]["code"]) == (0, 0)
    wrong = found["wrong_ack"]
    assert wrong["code"] == 13
    assert wrong["remark"].startswith(
        "offset is illegal, key:T_pop_orderly@G_pop_orderly@0, old:1, commit:2, next:-1, "
    )
    assert found["changed"]["fields"]["popTime"] == found["repeated"]["fields"]["popTime"]
    assert int(found["changed"]["fields"]["invisibleTime"]) > 1000
    assert bodies(again) == ["order-1", "order-2"]
    assert again["fields"]["orderCountInfo"] == "0 qo0%1 1;0 0 0"
    assert again["fields"]["startOffsetInfo"] == "0 0 1"


@pytest.mark.scenario("pop_waits")
def test_a_pop_waits_for_a_message_and_ends_with_its_time(report: ScenarioReport) -> None:
    assert (report["empty"]["code"], report["empty"]["remark"]) == (210, "NO_MESSAGE_IN_QUEUE")
    assert 900 <= report["empty_ms"] < 15_000
    assert "send_error" not in report
    assert bodies(report["found"]) == ["awaited"]
    assert report["found_ms"] < 20_000
