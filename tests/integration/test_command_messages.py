"""`epochmq message` and `epochmq dlq` against a nameserver and a broker, as people type them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from epochmq_protocol import message as records
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import request
from epochmq_protocol.headers_client import SendMessageRequestHeaderV2
from epochmq_protocol.topics import RMQ_SYS_TRACE_TOPIC
from epochmq_protocol.transport.client import RemotingClient
from tests.support.cluster import OurCluster
from tests.support.command import EpochmqCommand
from tests.support.process import PATIENCE_S

OCTET = 99
TOPIC = "orders"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurCluster]:
    settings = {"enablePropertyFilter": True}
    with OurCluster(tmp_path_factory.mktemp("cluster"), octet=OCTET, broker=settings) as started:
        yield started


@pytest.fixture(scope="module")
def command(cluster: OurCluster, tmp_path_factory: pytest.TempPathFactory) -> EpochmqCommand:
    made = EpochmqCommand(cluster.nameserver_address, tmp_path_factory.mktemp("home"))
    made.run("topic", "create", TOPIC, "--queues", "2")
    for tag in ("red", "blue"):
        lines = b"".join(b"%s %d\n" % (tag.encode(), n) for n in range(10))
        made.run("produce", TOPIC, "--tags", tag, "--keys", f"all {tag}-key", "--timeout", "60", stdin=lines)
    return made


async def stored(cluster: OurCluster, topic: str, body: bytes, **properties: str) -> None:
    """Stores a message as a client of another language would."""
    header = SendMessageRequestHeaderV2(
        producer_group="p",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=0,
        born_timestamp=time.time_ns() // 1_000_000,
        flag=0,
        properties=records.format_properties(properties).decode(),
    )
    client = RemotingClient()
    try:
        response = await client.call(
            cluster.broker_address, request(RequestCode.SEND_MESSAGE_V2, header, body), PATIENCE_S * 1000
        )
    finally:
        await client.close()
    assert response.code == ResponseCode.SUCCESS, response.remark


def test_the_newest_messages_are_shown_oldest_first(command: EpochmqCommand) -> None:
    found = command.json("message", "peek", TOPIC, "--count", "4")
    assert len(found) == 4
    assert all(one["body"].startswith("blue") for one in found)
    times = [one["storeTimestamp"] for one in found]
    assert times == sorted(times)


def test_messages_are_found_by_offset_time_tag_sql_and_key(command: EpochmqCommand) -> None:
    at_three = command.json("message", "peek", TOPIC, "--queue", "broker-a:1", "--offset", "3", "-c", "2")
    assert [one["queueOffset"] for one in at_three] == [3, 4]
    assert len(command.json("message", "peek", TOPIC, "--time", "1h", "-c", "100")) == 20
    assert command.json("message", "peek", TOPIC, "--until", "1h") == []
    for options in (["--tag", "red"], ["--sql", "TAGS = 'red'"], ["--key", "red-key"]):
        found = command.json("message", "peek", TOPIC, *options, "-c", "100")
        assert sorted(one["body"] for one in found) == [f"red {n}" for n in range(10)], options


def test_looking_at_messages_commits_nothing(command: EpochmqCommand) -> None:
    command.run("message", "peek", TOPIC)
    command.run("message", "export", TOPIC)
    assert command.json("group", "lag", "TOOLS_CONSUMER") == []


def test_a_message_is_found_by_each_of_its_ids(command: EpochmqCommand) -> None:
    (wanted,) = command.json("message", "peek", TOPIC, "-c", "1")
    by_offset_id = command.json("message", "get", wanted["offsetMsgId"])
    by_unique_key = command.json("message", "get", wanted["msgId"], "--topic", TOPIC)
    assert by_offset_id["body"] == by_unique_key["body"] == wanted["body"]
    assert command.text("message", "get", wanted["msgId"], "--topic", TOPIC, "--raw") == wanted["body"]
    assert "--topic TOPIC" in command.failure("message", "get", wanted["msgId"])


def test_an_export_has_every_message_once_and_replaces_no_file(
    command: EpochmqCommand, tmp_path: Path
) -> None:
    file = tmp_path / "orders.jsonl"
    command.run("message", "export", TOPIC, "--file", str(file))
    bodies = [json.loads(line)["body"] for line in file.read_text().splitlines()]
    assert sorted(bodies) == sorted(f"{tag} {n}" for tag in ("red", "blue") for n in range(10))
    assert "exists" in command.failure("message", "export", TOPIC, "--file", str(file), expected=2)
    assert len(file.read_text().splitlines()) == 20


async def test_a_message_is_sent_again_with_what_applications_set(
    command: EpochmqCommand, cluster: OurCluster
) -> None:
    command.run("topic", "create", "first", "--queues", "1")
    command.run("topic", "create", "second", "--queues", "1")
    properties = {"TAGS": "red", "KEYS": "k", "color": "green", "BUYER_ID": "3", "UNIQ_KEY": "A" * 32}
    await stored(cluster, "first", b"\xff\x00", **properties)
    (sent,) = command.json("message", "resend", "A" * 32, "--topic", "first", "--to", "second", "--yes")
    assert (sent["topic"], sent["originMsgId"]) == ("second", "A" * 32)
    (copy,) = command.json("message", "peek", "second")
    assert copy["bodyBase64"] == "/wA="
    kept = {name: copy["properties"].get(name) for name in ("TAGS", "KEYS", "color", "BUYER_ID")}
    assert kept == {"TAGS": "red", "KEYS": "k", "color": "green", "BUYER_ID": None}
    assert copy["msgId"] != "A" * 32


def test_a_priority_goes_to_the_queue_of_its_number(command: EpochmqCommand) -> None:
    command.run("topic", "create", "urgent", "--queues", "3", "--type", "PRIORITY")
    stored_in = [
        json.loads(command.text("produce", "urgent", "x", "--priority", priority, "-o", "json"))["queueId"]
        for priority in ("1", "0", "99", "1")
    ]
    assert stored_in == [1, 0, 2, 1]


async def test_dead_letters_go_back_to_their_group_alone(
    command: EpochmqCommand, cluster: OurCluster
) -> None:
    command.run("topic", "create", "bills", "--queues", "1")
    command.run("produce", "bills", "one")
    command.run("consume", "bills", "--group", "billing", "--count", "1")
    command.run("topic", "create", "%DLQ%billing", "--queues", "1")
    assert command.json("dlq", "list") == []
    await stored(cluster, "%DLQ%billing", b"dead", RETRY_TOPIC="bills", UNIQ_KEY="D" * 32)
    (listed,) = command.json("dlq", "list")
    assert (listed["group"], listed["messages"]) == ("billing", 1)
    (letter,) = command.json("dlq", "list", "billing")
    assert letter["body"] == "dead"
    command.run("dlq", "resend", "billing", "--id", letter["msgId"], "--yes")
    (retried,) = command.json("message", "peek", "%RETRY%billing")
    assert (retried["body"], retried["properties"]["RETRY_TOPIC"]) == ("dead", "bills")
    assert len(command.json("message", "peek", "bills")) == 1, "other groups get nothing"
    command.run("dlq", "resend", "billing", "--to-topic", "--yes")
    assert [one["body"] for one in command.json("message", "peek", "bills")] == ["one", "dead"]


async def test_the_trace_of_a_message_is_shown(command: EpochmqCommand, cluster: OurCluster) -> None:
    number = "B" * 32
    sent = ["Pub", "1700000000000", "r", "makers", TOPIC, number, "", "", "h:1", "3", "7", "0", "X", "true"]
    got = ["SubBefore", "1700000000100", "r", "eaters", "q1", number, "2", ""]
    done = ["SubAfter", "q1", number, "9", "false", "", "1", "1700000000200", "eaters"]
    body = "\x02".join("\x01".join(fields) for fields in (sent, got, done)) + "\x02"
    await stored(cluster, RMQ_SYS_TRACE_TOPIC, body.encode(), KEYS=number)
    events = command.json("message", "trace", number)
    assert [(one["event"], one["group"], one["success"]) for one in events] == [
        ("Pub", "makers", True),
        ("SubBefore", "eaters", None),
        ("SubAfter", "eaters", False),
    ]
    assert [one["tookMs"] for one in events] == [7, None, 9]
    assert command.json("message", "trace", "C" * 32) == []


def test_bench_measures_sends_and_consumption(command: EpochmqCommand) -> None:
    command.run("topic", "create", "measured", "--queues", "2")
    sent = command.json("bench", "produce", "measured", "--count", "200", "--size", "100", "--rate", "2000")
    assert (sent["messages"], sent["failed"]) == (200, 0)
    assert 0 < sent["p50Ms"] <= sent["p99Ms"] <= sent["maxMs"]
    assert sent["seconds"] >= 199 / 2000, "the rate is not exceeded"
    assert len(command.json("message", "peek", "measured", "--count", "5")[0]["body"]) == 100

    received = command.json("bench", "consume", "measured", "--count", "200")
    assert received["messages"] == 200
    assert received["maxMs"] > 0
    lags = {row["group"]: row["lag"] for row in command.json("top", "--once")["groups"]}
    assert lags["epochmq_bench"] == 0, "what was measured is acknowledged"
