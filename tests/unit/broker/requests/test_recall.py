"""A producer takes back timer messages by their handles."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochmq_broker.services.timer.recall_handle import RecallHandle
from epochmq_protocol import message as records
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import Command, request
from epochmq_protocol.headers_client import RecallMessageRequestHeader
from tests.unit.broker.kit import UNIQ_KEY, Bench, running, send_command, until

TIMER = "rmq_sys_wheel_timer"
SETTINGS = {"recallMessageEnable": "true", "timerPrecisionMs": "100"}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path, SETTINGS) as made:
        yield made


def send(bench: Bench, uniq_key: str, delay_ms: int) -> str:
    """Sends a timer message; returns its handle."""
    properties = {"UNIQ_KEY": uniq_key, "TIMER_DELAY_MS": str(delay_ms)}
    answer = bench.peer().call(send_command("T", uniq_key.encode(), properties))
    assert answer.ext is not None
    return answer.ext["recallHandle"]


def recall(bench: Bench, handle: str, topic: str = "T") -> Command:
    """The response to a recall."""
    header = RecallMessageRequestHeader(producer_group="p", topic=topic, recall_handle=handle)
    return bench.peer().call(request(RequestCode.RECALL_MESSAGE, header))


async def test_a_recalled_message_is_not_delivered_and_the_others_are(bench: Bench) -> None:
    handle = send(bench, UNIQ_KEY, 1000)
    send(bench, "another", 1000)
    fields = RecallHandle.decode(handle)
    assert (fields.topic, fields.broker_name, fields.uniq_key) == ("T", "broker-a", UNIQ_KEY)
    answer = recall(bench, handle)
    assert (answer.code, answer.ext) == (0, {"MSG_REGION": "DefaultRegion", "msgId": UNIQ_KEY})
    stored = bench.record(TIMER, 0, 2)
    assert stored.body == b"0"
    properties = records.parse_properties(stored.properties)
    assert properties["TIMER_DEL_UNIQKEY"] == f"T+{UNIQ_KEY}"
    assert (
        properties["TIMER_OUT_MS"]
        == records.parse_properties(bench.record(TIMER, 0, 0).properties)["TIMER_OUT_MS"]
    )
    assert properties["TAGS"] == "_RECALL_TAG_"
    assert properties["PGROUP"] == "p"
    timer = bench.broker.timer
    assert timer is not None
    await until(lambda: timer.timers.queue_offset == 3)
    assert timer.timers.pending == 1
    assert timer.metrics.count("T") == 1
    await until(lambda: timer.timers.read_time_ms > int(fields.timestamp) and bench.count("T", 0) > 0)
    assert bench.count("T", 0) == 1
    assert bench.record("T", 0, 0).body == b"another"
    assert timer.metrics.count("T") == 0


@pytest.mark.parametrize(
    ("handle", "remark"),
    [
        ("", "recall handle is invalid"),
        ("%%", "recall handle is invalid"),
        (RecallHandle("T", "broker-a", "1", "").encode(), "recall handle is invalid"),
        (RecallHandle("T2", "broker-a", "1", "k").encode(), "recall failed, topic not match"),
        (RecallHandle("T", "broker-b", "1", "k").encode(), "recall failed, broker service not available"),
        (RecallHandle("T", "broker-a", "1", "k").encode(), "recall failed, timestamp invalid"),
        (RecallHandle("T", "broker-a", "x", "k").encode(), "recall failed, timestamp invalid"),
        (RecallHandle("T", "broker-a", "9" * 18, "k").encode(), "recall failed, timestamp invalid"),
    ],
)
async def test_an_invalid_handle_is_rejected(bench: Bench, handle: str, remark: str) -> None:
    send(bench, UNIQ_KEY, 60_000)
    answer = recall(bench, handle)
    assert (answer.code, answer.remark) == (ResponseCode.ILLEGAL_OPERATION, remark)
    assert bench.count(TIMER) == 1


async def test_an_unknown_topic_is_rejected(bench: Bench) -> None:
    answer = recall(bench, "", topic="None")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark == "recall failed, the topic[None] not exist"


async def test_recalls_are_forbidden_by_default(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        answer = recall(bench, "x")
        assert (answer.code, answer.remark) == (
            ResponseCode.NO_PERMISSION,
            "recall failed, operation is forbidden",
        )


async def test_without_the_wheel_timer_messages_and_recalls_are_rejected(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS | {"timerWheelEnable": "false"}) as bench:
        answer = bench.peer().call(send_command("BenchmarkTest", properties={"TIMER_DELAY_SEC": "9"}))
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "accurate timer message is not enabled, timerWheelEnable is false",
        )
        due = str(int(time.time() * 1000) + 9000)
        handle = RecallHandle("BenchmarkTest", "broker-a", due, "k").encode()
        answer = recall(bench, handle, topic="BenchmarkTest")
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "recall failed, execute error")
        for code in (RequestCode.GET_TIMER_CHECK_POINT, RequestCode.GET_TIMER_METRICS):
            assert bench.peer().call(request(code, None)).code == ResponseCode.SYSTEM_ERROR
