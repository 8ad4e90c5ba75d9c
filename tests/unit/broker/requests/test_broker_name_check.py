"""A broker rejects requests that name another broker; their client has an old route."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import Command, request
from epochmq_protocol.headers_client import (
    ConsumerSendMsgBackRequestHeader,
    GetMaxOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from tests.unit.broker.kit import Bench, pull_command, running, send_command

TOPIC = "BenchmarkTest"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path) as made:
        yield made


def queue(**fields: object) -> dict[str, object]:
    return {"topic": TOPIC, "queue_id": 0, **fields}


def requests(name: str | None) -> dict[str, Command]:
    """One request of each kind that names a broker."""
    return {
        "send": send_command(TOPIC, broker_name=name),
        "batch": send_command(TOPIC, code=RequestCode.SEND_BATCH_MESSAGE, broker_name=name, batch=True),
        "pull": pull_command(TOPIC, bname=name),
        "send back": request(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            ConsumerSendMsgBackRequestHeader(offset=0, group="group", delay_level=0, bname=name),
        ),
        "query offset": request(
            RequestCode.QUERY_CONSUMER_OFFSET,
            QueryConsumerOffsetRequestHeader(consumer_group="group", topic=TOPIC, queue_id=0, bname=name),
        ),
        "update offset": request(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            UpdateConsumerOffsetRequestHeader(
                consumer_group="group", topic=TOPIC, queue_id=0, commit_offset=1, bname=name
            ),
        ),
        "end": request(
            RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic=TOPIC, queue_id=0, bname=name)
        ),
    }


@pytest.mark.parametrize("kind", requests(None))
@pytest.mark.parametrize("ordinary", [False, True], ids=["fast", "ordinary"])
async def test_a_request_for_another_broker_is_rejected(bench: Bench, kind: str, *, ordinary: bool) -> None:
    peer = bench.peer(ordinary=ordinary)
    assert peer.call(send_command(TOPIC)).code == ResponseCode.SUCCESS
    answer = peer.call(requests("broker-b")[kind])
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "the request is for the broker broker-b, this one is broker-a"
    assert bench.count(TOPIC) == 1
    assert bench.broker.offsets.query("group", TOPIC, 0) is None


@pytest.mark.parametrize("name", [None, "", "broker-a", "__syslo__global__"])
@pytest.mark.parametrize("ordinary", [False, True], ids=["fast", "ordinary"])
async def test_a_request_for_this_broker_or_without_a_name_is_served(
    bench: Bench, name: str | None, *, ordinary: bool
) -> None:
    peer = bench.peer(ordinary=ordinary)
    for kind in ("send", "pull", "update offset", "query offset", "end"):
        assert peer.call(requests(name)[kind]).code == ResponseCode.SUCCESS, kind
    assert bench.count(TOPIC) == 1
