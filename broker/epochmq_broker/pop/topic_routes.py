"""Asks the nameservers for the queues of topics, on every broker (RocketMQ's TopicRouteInfoManager).

An answer is used for `loadBalancePollNameServerInterval`. If no nameserver responds then, the last answer is
used on. A nameserver is not asked about a topic more than once at a time."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from epochmq_broker.config import LiveConfig
from epochmq_protocol.bodies import MessageQueue, from_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.headers import GetRouteInfoRequestHeader
from epochmq_protocol.route import TopicRouteData
from epochmq_protocol.topics import PERM_READ, is_retry_topic

log = logging.getLogger(__name__)

TIMEOUT_MS: Final = 3000
TOPICS_MAX: Final = 10_000
EMPTY_FRESH_S: Final = 1.0
"""How long an answer without queues is used."""


class RouteClient(Protocol):
    """The part of `RemotingClient` that asks nameservers."""

    async def call(self, address: str, command: Command, timeout_ms: float = 3000) -> Command:
        """The response of the peer at `address`."""
        ...


class TopicRoutes:
    """The queues of topics, as the nameservers know them."""

    def __init__(self, live: LiveConfig, client: RouteClient) -> None:
        self._live = live
        self._client = client
        self._known: dict[str, tuple[float, frozenset[MessageQueue]]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def readable_queues(self, topic: str) -> frozenset[MessageQueue] | None:
        """The queues of a topic that may be read; None if no nameserver knows the topic."""
        known = self._known.get(topic)
        if known is None or self._is_stale(known):
            task = self._asking.get(topic)
            if task is None:
                task = asyncio.create_task(self._ask(topic), name=f"the route of {topic}")
                self._asking[topic] = task
                task.add_done_callback(lambda _task: self._asking.pop(topic, None))
            await asyncio.shield(task)
            known = self._known.get(topic)
        return None if known is None else known[1]

    def _is_stale(self, known: tuple[float, frozenset[MessageQueue]]) -> bool:
        fresh_s = (
            self._live.current.load_balance_poll_name_server_interval / 1000 if known[1] else EMPTY_FRESH_S
        )
        return asyncio.get_running_loop().time() - known[0] > fresh_s

    async def _ask(self, topic: str) -> None:
        command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic))
        for address in self._live.current.nameservers:
            try:
                answer = await self._client.call(address, command, TIMEOUT_MS)
                if answer.code == ResponseCode.SUCCESS and answer.body:
                    self._keep(topic, from_json(TopicRouteData, answer.body))
                    return
                if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                    if not is_retry_topic(topic):
                        self._known.pop(topic, None)
                    return
                log.warning("nameserver %s has no route of %s: code %d", address, topic, answer.code)
            except EpochMQError as error:
                log.warning("nameserver %s did not tell the route of %s: %s", address, topic, error)

    def _keep(self, topic: str, route: TopicRouteData) -> None:
        if len(self._known) >= TOPICS_MAX:
            self._known.clear()
        queues = frozenset(
            MessageQueue(topic, data.broker_name, queue_id)
            for data in route.queue_datas
            if data.perm & PERM_READ
            for queue_id in range(data.read_queue_nums)
        )
        self._known[topic] = (asyncio.get_running_loop().time(), queues)
