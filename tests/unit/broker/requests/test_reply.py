"""Replies reach the requester over its own connection, and are stored afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochmq_protocol import message as records
from epochmq_protocol.bodies import HeartbeatData, ProducerData, to_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import Command, encode, request, response
from epochmq_protocol.headers_client import (
    ReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from tests.unit.broker.kit import UNIQ_KEY, Bench, Peer, command, running, send_command, until

REPLY_TOPIC = "TestCluster_REPLY_TOPIC"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path) as made:
        yield made


def requester(bench: Bench) -> Peer:
    """A producer named `asker` that awaits replies."""
    peer = bench.peer(address=("127.53.7.3", 41_000))
    data = HeartbeatData(client_id="asker", producer_data_set=[ProducerData(group_name="askers")])
    assert peer.call(command(RequestCode.HEART_BEAT, body=to_json(data))).code == 0
    return peer


def reply(client_id: str | None = "asker") -> Command:
    """A consumer's reply."""
    properties = {"UNIQ_KEY": UNIQ_KEY, "CORRELATION_ID": "c1", "MSG_TYPE": "reply", "TTL": "3000"}
    if client_id is not None:
        properties["REPLY_TO_CLIENT"] = client_id
    return send_command(REPLY_TOPIC, b"answer", properties, code=RequestCode.SEND_REPLY_MESSAGE_V2)


async def push_to(peer: Peer, code: int = ResponseCode.SUCCESS) -> Command:
    """Waits for the push to the requester, and responds to it with `code`."""
    await until(lambda: (peer.collect(), peer.requests)[1])
    push = peer.requests.pop()
    peer.connection.data_received(encode(response(push, code)))
    return push


async def test_a_reply_is_pushed_and_stored(bench: Bench) -> None:
    asker, consumer = requester(bench), bench.peer()
    opaque = consumer.send(reply())
    push = await push_to(asker)
    assert push.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    assert push.body == b"answer"
    header = ReplyMessageRequestHeader.decode(push.ext)
    properties = records.parse_properties(header.properties or "")
    assert properties["CORRELATION_ID"] == "c1"
    assert int(properties["PUSH_REPLY_TIME"]) > 0
    assert header.born_host == consumer.connection.remote
    answer = await consumer.answer(opaque)
    assert answer.code == ResponseCode.SUCCESS
    stored = bench.record(REPLY_TOPIC, 0, 0)
    assert (answer.ext or {})["msgId"] == stored.msg_id
    assert "PUSH_REPLY_TIME" not in records.parse_properties(stored.properties)


async def test_a_reply_with_the_long_header_is_pushed(bench: Bench) -> None:
    asker, consumer = requester(bench), bench.peer()
    short = SendMessageRequestHeaderV2.decode(reply().ext)
    fields = {name: getattr(short, name) for name in SendMessageRequestHeader.__struct_fields__}
    opaque = consumer.send(
        request(RequestCode.SEND_REPLY_MESSAGE, SendMessageRequestHeader(**fields), b"long")
    )
    assert (await push_to(asker)).body == b"long"
    assert (await consumer.answer(opaque)).code == ResponseCode.SUCCESS


async def test_a_missing_requester_is_reported(bench: Bench) -> None:
    consumer = bench.peer()
    answer = await consumer.answer(consumer.send(reply("nobody")))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "push reply message fail, channel of <nobody> not found."
    assert bench.count(REPLY_TOPIC) == 1


async def test_a_reply_without_a_requester_is_rejected(bench: Bench) -> None:
    consumer = bench.peer()
    answer = await consumer.answer(consumer.send(reply(None)))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "REPLY_TO_CLIENT" in (answer.remark or "")


async def test_a_requester_that_rejects_the_reply(bench: Bench) -> None:
    asker, consumer = requester(bench), bench.peer()
    opaque = consumer.send(reply())
    await push_to(asker, ResponseCode.SYSTEM_ERROR)
    assert (await consumer.answer(opaque)).code == ResponseCode.SYSTEM_ERROR


async def test_replies_are_not_stored_if_storing_is_disabled(tmp_path: Path) -> None:
    async with running(tmp_path, {"storeReplyMessageEnable": "false"}) as bench:
        asker, consumer = requester(bench), bench.peer()
        opaque = consumer.send(reply())
        await push_to(asker)
        answer = await consumer.answer(opaque)
        assert (answer.ext or {})["msgId"] == "0"
        assert bench.count(REPLY_TOPIC) == 0


async def test_a_reply_to_a_topic_without_write_permission(bench: Bench) -> None:
    consumer = bench.peer()
    rejected = reply()
    assert rejected.ext is not None
    rejected.ext["b"] = "SELF_TEST_TOPIC"
    assert (await consumer.answer(consumer.send(rejected))).code == ResponseCode.NO_PERMISSION
