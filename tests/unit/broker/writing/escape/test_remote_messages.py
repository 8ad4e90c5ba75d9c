"""A message of another group is read there; what cannot be read is told apart from what does not exist."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from epochmq_broker.writing.escape.remote_messages import RemoteMessage, RemoteMessageReader, broker_address
from epochmq_protocol import message as records
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import CallTimeoutError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers_client import PullMessageRequestHeader
from epochmq_protocol.message import MessageExt
from epochmq_protocol.route import BrokerData, TopicRouteData

HOST = records.encode_host("127.0.0.1", 10911)
STORED = MessageExt("T", b"body", b"", 3, queue_offset=41, born_host=HOST, store_host=HOST)


def route(**brokers: dict[int, str]) -> TopicRouteData:
    return TopicRouteData(broker_datas=[BrokerData("c", name, ids) for name, ids in brokers.items()])


class Group:
    """The other group, and the nameserver."""

    def __init__(self) -> None:
        self.routes: list[TopicRouteData | None] = [route(b={0: "b:1", 1: "b:2"})]
        self.fresh: list[float | None] = []
        self.pulled: list[tuple[str, PullMessageRequestHeader]] = []
        self.code = ResponseCode.SUCCESS
        self.body = records.encode_record(STORED)

    async def route(self, topic: str, fresh_s: float | None = None) -> TopicRouteData | None:
        assert topic == "T"
        self.fresh.append(fresh_s)
        return self.routes.pop(0) if len(self.routes) > 1 else self.routes[0]

    async def call(self, address: str, command: Command, timeout_ms: float = 3000) -> Command:
        assert (command.code, timeout_ms) == (RequestCode.PULL_MESSAGE, 10_000)
        self.pulled.append((address, PullMessageRequestHeader.decode(command.ext)))
        if self.code is ResponseCode.GO_AWAY:
            raise CallTimeoutError("no response")
        return response(command, self.code, body=self.body)

    async def read(self) -> RemoteMessage:
        live: Any = SimpleNamespace(current=SimpleNamespace(broker_name="a", broker_id=2))
        surroundings: Any = (self, self)
        return await RemoteMessageReader(live, *surroundings).get_message("T", 3, 41, "b")


async def test_a_message_is_pulled_from_the_master_of_its_group() -> None:
    group = Group()
    found = await group.read()
    assert found.message is not None
    assert (found.message.body, found.message.queue_offset) == (b"body", 41)
    ((address, header),) = group.pulled
    assert address == "b:1"
    assert (header.topic, header.queue_id, header.queue_offset, header.max_msg_nums) == ("T", 3, 41, 1)
    assert (header.sys_flag, header.subscription, header.bname) == (4, "*", "b")
    assert header.consumer_group == "InnerConsumerGroup_a_2"
    assert header.suspend_timeout_millis == header.commit_offset == 0


@pytest.mark.parametrize(
    ("code", "retries"),
    [
        (ResponseCode.PULL_NOT_FOUND, False),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, False),
        (ResponseCode.PULL_OFFSET_MOVED, False),
        (ResponseCode.TOPIC_NOT_EXIST, True),
        (ResponseCode.SYSTEM_BUSY, True),
        (ResponseCode.GO_AWAY, True),
    ],
)
async def test_only_a_queue_without_the_message_ends_the_attempts(
    code: ResponseCode, *, retries: bool
) -> None:
    group = Group()
    group.code, group.body = code, b""
    assert await group.read() == RemoteMessage(None, retries=retries)


async def test_a_damaged_answer_is_no_message() -> None:
    group = Group()
    group.body = group.body[:-1]
    assert await group.read() == RemoteMessage(None, retries=True)


async def test_an_old_route_without_the_group_is_asked_for_again() -> None:
    group = Group()
    group.routes = [None, route(b={1: "b:2"})]
    assert (await group.read()).message is not None
    assert [address for address, _ in group.pulled] == ["b:2"]
    assert group.fresh[0] is None
    assert group.fresh[1] is not None
    group.routes = [route(c={0: "c:1"})]
    assert await group.read() == RemoteMessage(None, retries=True)


def test_the_master_of_a_group_is_preferred() -> None:
    found = route(b={2: "b:3", 0: "b:1"}, c={3: "c:4", 2: "c:3"}, d={})
    assert [broker_address(found, name) for name in "bcde"] == ["b:1", "c:3", None, None]
