"""Routes come from the first nameserver that answers: one that is down costs no timeout."""

from __future__ import annotations

import asyncio

import pytest

from epochmq_broker.config.broker_config import LiveConfig, from_properties
from epochmq_broker.writing import topic_routes
from epochmq_broker.writing.topic_routes import NEXT_AFTER_S, TopicRoutes
from epochmq_protocol.bodies import MessageQueue, to_json
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import CallTimeoutError, ConnectError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.route import QueueData, TopicRouteData

DEAD, REFUSING, ALIVE = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"
TOPIC = "orders"
NEVER_S = 3600.0
"""Longer than a test may take."""


class Nameservers:
    """`DEAD` takes packets and answers none, `REFUSING` has no process, `ALIVE` answers with `code`."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.cancelled = 0
        self.code = ResponseCode.SUCCESS

    async def call(self, address: str, command: Command, timeout_ms: float = NEVER_S * 1000) -> Command:
        self.asked.append(address)
        if address == REFUSING:
            raise ConnectError(f"no connection to {address}: refused")
        if address == DEAD:
            try:
                await asyncio.sleep(timeout_ms / 1000)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            raise CallTimeoutError(f"no response from {address}")
        route = TopicRouteData(queue_datas=[QueueData("broker-a", 1, 1, 6, 0)])
        return response(command, self.code, body=to_json(route))


def routes(nameservers: Nameservers, *addresses: str) -> TopicRoutes:
    settings = {"namesrvAddr": ";".join(addresses), "loadBalancePollNameServerInterval": "1"}
    return TopicRoutes(LiveConfig(from_properties(settings).config), nameservers)


async def test_a_dead_nameserver_delays_the_first_answer_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_routes, "TIMEOUT_MS", int(NEVER_S * 1000))
    nameservers = Nameservers()
    made = routes(nameservers, DEAD, ALIVE)
    began = asyncio.get_running_loop().time()
    assert await made.readable_queues(TOPIC) == {MessageQueue(TOPIC, "broker-a", 0)}
    assert asyncio.get_running_loop().time() - began >= NEXT_AFTER_S
    assert nameservers.asked == [DEAD, ALIVE]
    assert nameservers.cancelled == 1, "the other one was asked meanwhile, and no question is left behind"
    assert await made.route(TOPIC, fresh_s=-1) is not None
    assert nameservers.asked == [DEAD, ALIVE, ALIVE], "the one that answered is asked first"


async def test_a_nameserver_that_refuses_is_skipped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_routes, "NEXT_AFTER_S", NEVER_S)
    nameservers = Nameservers()
    assert await routes(nameservers, REFUSING, ALIVE).readable_queues(TOPIC) is not None
    assert nameservers.asked == [REFUSING, ALIVE]


async def test_an_unknown_topic_is_an_answer_and_an_error_is_none() -> None:
    nameservers = Nameservers()
    made = routes(nameservers, ALIVE, REFUSING)
    assert await made.readable_queues(TOPIC) is not None
    nameservers.code = ResponseCode.SYSTEM_ERROR
    assert await made.route(TOPIC, fresh_s=-1) is not None, "the last answer is used on"
    assert nameservers.asked == [ALIVE, ALIVE, REFUSING]
    nameservers.code = ResponseCode.TOPIC_NOT_EXIST
    assert await made.route(TOPIC, fresh_s=-1) is None
    assert nameservers.asked[3:] == [ALIVE]


async def test_without_any_answer_the_question_ends() -> None:
    nameservers = Nameservers()
    assert await routes(nameservers, REFUSING).readable_queues(TOPIC) is None
    assert set(nameservers.asked) == {REFUSING}
