"""Asks the nameservers for the routes of topics, on every broker (RocketMQ's TopicRouteInfoManager).

An answer is used for `loadBalancePollNameServerInterval`. If no nameserver responds then, the last answer is
used on. A nameserver is not asked about a topic more than once at a time. The nameserver that answered last
is asked first, and the next one after `NEXT_AFTER_S` without an answer: one that is down costs no timeout."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from msgspec import Struct

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_protocol.bodies import MessageQueue, from_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import request
from epochmq_protocol.headers_namesrv import GetRouteInfoRequestHeader
from epochmq_protocol.route import TopicRouteData
from epochmq_protocol.topics import PERM_READ, is_retry_topic
from epochmq_protocol.transport.request_client import RequestClient

log = logging.getLogger(__name__)

TIMEOUT_MS: Final = 3000
TOPICS_MAX: Final = 10_000
EMPTY_FRESH_S: Final = 1.0
"""How long an answer without readable queues is used."""
NEXT_AFTER_S: Final = 0.2
"""How long one nameserver may take before the next one is asked, too."""


class _KnownRoute(Struct, frozen=True):
    """A nameserver's answer, at a time of the loop's clock."""

    asked_s: float
    route: TopicRouteData
    readable: frozenset[MessageQueue]


class _Answer(Struct, frozen=True):
    """The answer of one nameserver; without a route if it does not know the topic."""

    nameserver: str
    route: TopicRouteData | None


class TopicRoutes:
    """The routes of topics, as the nameservers know them."""

    def __init__(self, live: LiveConfig, client: RequestClient) -> None:
        self._live = live
        self._client = client
        self._known: dict[str, _KnownRoute] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._answered = ""  # the nameserver that answered last

    async def readable_queues(self, topic: str) -> frozenset[MessageQueue] | None:
        """The queues of a topic that may be read; None if no nameserver knows the topic."""
        known = await self._find(topic, None)
        return None if known is None else known.readable

    async def route(self, topic: str, fresh_s: float | None = None) -> TopicRouteData | None:
        """The route of a topic, not to be changed; None if no nameserver knows the topic. With `fresh_s`, an
        answer that is older than so many seconds is renewed."""
        known = await self._find(topic, fresh_s)
        return None if known is None else known.route

    async def _find(self, topic: str, fresh_s: float | None) -> _KnownRoute | None:
        known = self._known.get(topic)
        if known is None or self._is_stale(known, fresh_s):
            task = self._asking.get(topic)
            if task is None:
                task = asyncio.create_task(self._ask(topic), name=f"the route of {topic}")
                self._asking[topic] = task
                task.add_done_callback(lambda _task: self._asking.pop(topic, None))
            await asyncio.shield(task)
            known = self._known.get(topic)
        return known

    def _is_stale(self, known: _KnownRoute, fresh_s: float | None) -> bool:
        limit_s = self._live.current.load_balance_poll_name_server_interval / 1000
        if not known.readable:
            limit_s = EMPTY_FRESH_S
        if fresh_s is not None:
            limit_s = min(limit_s, fresh_s)
        return asyncio.get_running_loop().time() - known.asked_s > limit_s

    async def _ask(self, topic: str) -> None:
        """Asks the nameservers until one answers. Keeps the route, or forgets that of an unknown topic."""
        waiting = sorted(self._live.nameservers, key=lambda address: address != self._answered)
        asked: set[asyncio.Task[_Answer | None]] = set()
        try:
            while waiting or asked:
                if waiting:
                    address = waiting.pop(0)
                    asked.add(asyncio.create_task(self._ask_one(address, topic), name=f"ask {address}"))
                done, asked = await asyncio.wait(
                    asked,
                    timeout=NEXT_AFTER_S if waiting else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for answer in filter(None, (task.result() for task in done)):
                    self._answered = answer.nameserver
                    if answer.route is not None:
                        self._keep(topic, answer.route)
                    elif not is_retry_topic(topic):
                        self._known.pop(topic, None)
                    return
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def _ask_one(self, address: str, topic: str) -> _Answer | None:
        """The answer of one nameserver; None if it did not answer, or not the question."""
        command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic))
        try:
            answer = await self._client.call(address, command, TIMEOUT_MS)
            if answer.code == ResponseCode.SUCCESS and answer.body:
                return _Answer(address, from_json(TopicRouteData, answer.body))
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                return _Answer(address, None)
            log.warning("nameserver %s has no route of %s: code %d", address, topic, answer.code)
        except EpochMQError as error:
            log.warning("nameserver %s did not tell the route of %s: %s", address, topic, error)
        return None

    def _keep(self, topic: str, route: TopicRouteData) -> None:
        if len(self._known) >= TOPICS_MAX:
            self._known.clear()
        queues = frozenset(
            MessageQueue(topic, data.broker_name, queue_id)
            for data in route.queue_datas
            if data.perm & PERM_READ
            for queue_id in range(data.read_queue_nums)
        )
        self._known[topic] = _KnownRoute(asyncio.get_running_loop().time(), route, queues)
