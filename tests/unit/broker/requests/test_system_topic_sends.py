"""Clients cannot write to the topics that services of the broker read, by any request. Brokers can."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from epochmq_protocol import message as records
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.message import BatchElement, encode_batch
from epochmq_protocol.topics import is_service_topic
from tests.unit.broker.kit import BORN_MS, UNIQ_KEY, Bench, running, send_command
from tests.unit.broker.services.transactions.support import (
    HALF,
    QUIET,
    end_command,
    half_command,
    half_properties,
)

TIMER, REVIVE, QUARANTINE = "rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_TestCluster", "rmq_sys_quarantine"
SERVICE_TOPICS = [TIMER, REVIVE, QUARANTINE, "rmq_sys_SYNC_BROKER_MEMBER_broker-a"]
CLIENTS_TOPICS = [
    "RMQ_SYS_TRACE_TOPIC",
    "rmq_sys_TRACE_DATA_cn",
    "TBW102",
    "BenchmarkTest",
    "TestCluster_REPLY_TOPIC",
    "TestCluster",
    "broker-a",
    "T",
]
"""Topics that RocketMQ's clients and tools write to."""
POISON = {"UNIQ_KEY": UNIQ_KEY, "TIMER_OUT_MS": "1", "REAL_TOPIC": "../x", "REAL_QID": "0"}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path, QUIET) as made:
        yield made


@pytest.mark.parametrize("topic", SERVICE_TOPICS)
@pytest.mark.parametrize(
    "code",
    [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2],
    ids=lambda code: code.name,
)
@pytest.mark.parametrize("ordinary", [False, True])
@pytest.mark.parametrize("queue_id", [0, -1])
async def test_no_client_writes_to_a_topic_of_a_service(
    bench: Bench, topic: str, code: RequestCode, ordinary: bool, queue_id: int
) -> None:
    is_batch = code is RequestCode.SEND_BATCH_MESSAGE
    body = encode_batch([BatchElement(b"x")]) if is_batch else b"x"
    command = send_command(topic, body, POISON, code=code, queue_id=queue_id, batch=is_batch)
    answer = await asked(bench, command, ordinary=ordinary)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert "rejectSystemTopicSends=false" in (answer.remark or "")
    assert bench.count(topic) == 0


async def asked(bench: Bench, command: Any, *, ordinary: bool = False) -> Any:
    peer = bench.peer(ordinary=ordinary)
    return await peer.answer(peer.send(command), timeout_s=30)


@pytest.mark.parametrize("topic", CLIENTS_TOPICS)
@pytest.mark.parametrize("ordinary", [False, True])
async def test_topics_that_clients_write_to_stay_open(bench: Bench, topic: str, ordinary: bool) -> None:
    assert not is_service_topic(topic)
    answer = await asked(bench, send_command(topic), ordinary=ordinary)
    assert "rejectSystemTopicSends" not in (answer.remark or "")
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)


@pytest.mark.parametrize("topic", [TIMER, REVIVE])
async def test_a_broker_that_acts_for_its_master_writes_to_them(bench: Bench, topic: str) -> None:
    command = send_command(topic, producer_group="InnerProducerGroup_broker-b_1")
    assert (await asked(bench, command)).code == ResponseCode.SUCCESS
    assert bench.count(topic) == 1


async def test_the_key_opens_the_topics_while_the_broker_runs(bench: Bench) -> None:
    bench.broker.live.update({"rejectSystemTopicSends": "false"})
    assert (await asked(bench, send_command(REVIVE))).code == ResponseCode.SUCCESS
    assert bench.count(REVIVE) == 1


@pytest.mark.parametrize("topic", [TIMER, REVIVE, "SCHEDULE_TOPIC_XXXX", HALF])
@pytest.mark.parametrize("ordinary", [False, True])
async def test_no_commit_writes_to_them(bench: Bench, topic: str, ordinary: bool) -> None:
    """A client may have forged the half message."""
    store = bench.broker.store
    properties = half_properties(REAL_TOPIC=topic, REAL_QID="0")
    store.append(
        store.queue(HALF, 0),
        body=b"x",
        properties=records.format_properties(properties),
        born_timestamp=BORN_MS,
        born_host=records.encode_host("127.0.0.1", 1),
    )
    half, before = bench.record(HALF, 0, 0), bench.count(topic)
    answer = await asked(bench, end_command(half), ordinary=ordinary)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert bench.count(topic) == before


@pytest.mark.parametrize("number", ["-1", "99999999999", "x"])
@pytest.mark.parametrize("ordinary", [False, True])
async def test_a_commit_to_a_queue_that_cannot_exist_is_rejected(
    bench: Bench, number: str, ordinary: bool
) -> None:
    store = bench.broker.store
    assert (await asked(bench, half_command())).code == ResponseCode.SUCCESS  # creates the topic
    store.append(
        store.queue(HALF, 0),
        body=b"x",
        properties=records.format_properties(half_properties(REAL_TOPIC="T", REAL_QID=number)),
        born_timestamp=BORN_MS,
        born_host=records.encode_host("127.0.0.1", 1),
    )
    answer = await asked(bench, end_command(bench.record(HALF, 0, 1)), ordinary=ordinary)
    assert answer.code in (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SYSTEM_ERROR)
    assert (await asked(bench, send_command("T"))).code == ResponseCode.SUCCESS
