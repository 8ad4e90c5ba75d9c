"""Removes what is no longer needed from the mappings of static topics, every five minutes in the hours of
`deleteWhen` (RocketMQ's TopicQueueMappingCleanService)."""

from __future__ import annotations

import asyncio
import logging
import time

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.tables.static_topics.cleaning_rules import (
    earliest_items,
    leaders_in_route,
    other_leaders,
    superseded,
    without_expired,
)
from epochmq_broker.tables.static_topics.mapping_table import StaticTopicTable
from epochmq_broker.tables.static_topics.remote_queues import RemoteQueues
from epochmq_protocol.bodies import MessageQueue, TopicOffset, TopicStatsTable, from_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import request
from epochmq_protocol.headers_namesrv import GetRouteInfoRequestHeader
from epochmq_protocol.route import TopicRouteData
from epochmq_protocol.topics import TopicConfigAndQueueMapping, TopicQueueMappingDetail

PERIOD_S = 300.0

log = logging.getLogger(__name__)


class MappingCleaner:
    """Cleans the mappings of one broker, while it is the master."""

    def __init__(self, live: LiveConfig, static: StaticTopicTable, remote: RemoteQueues) -> None:
        self._live = live
        self._static = static
        self._remote = remote
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts to clean periodically; needs a running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="clean mappings")

    def stop(self) -> None:
        """Ends the cleaning."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            hours = self._live.current.delete_when.split(";")
            if any(int(hour) == time.localtime().tm_hour for hour in hours if hour.strip()):
                try:
                    await self.clean()
                except Exception:  # the next round must still come
                    log.exception("mappings of static topics could not be cleaned")

    async def clean(self) -> None:
        """Cleans all mappings now. Brokers that do not respond are left for the next round."""
        own = self._live.current.broker_name
        for topic in list(self._static.table):
            detail = self._static.table.get(topic)
            if detail is not None and detail.bname == own:
                await self._drop_expired(topic, detail)
            detail = self._static.table.get(topic)
            if detail is not None and detail.bname == own:
                await self._forget_superseded(topic, detail)

    async def _drop_expired(self, topic: str, detail: TopicQueueMappingDetail) -> None:
        offsets: dict[MessageQueue, TopicOffset] = {}
        for broker in sorted({item.bname or "" for item in earliest_items(detail).values()}):
            body = await self._ask(broker, RequestCode.GET_TOPIC_STATS_INFO, topic, lo="false")
            if body is not None:
                offsets |= from_json(TopicStatsTable, body).offset_table
        kept = without_expired(detail, offsets)
        if kept and self._static.table.get(topic) is detail:
            log.info(
                "static topic %s: the messages of the earliest items of queues %s expired", topic, [*kept]
            )
            self._static.drop_items(topic, kept)

    async def _forget_superseded(self, topic: str, detail: TopicQueueMappingDetail) -> None:
        given_away = other_leaders(detail)
        if not given_away:
            return
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        try:
            answer = await self._remote.nameserver(request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header))
            route = from_json(TopicRouteData, answer.body)
        except EpochMQError as error:
            log.warning("the route of static topic %s could not be read: %s", topic, error)
            return
        leaders = leaders_in_route(route.topic_queue_mapping_by_broker or {}, detail.scope)
        remote: dict[str, TopicQueueMappingDetail] = {}
        for broker in sorted({leaders[queue_id] for queue_id in given_away if queue_id in leaders}):
            body = await self._ask(broker, RequestCode.GET_TOPIC_CONFIG, topic, lo="true")
            mapping = None if body is None else from_json(TopicConfigAndQueueMapping, body).mapping_detail
            if mapping is not None and mapping.bname == broker:
                remote[broker] = mapping
        forgotten = superseded(detail, leaders, remote)
        if forgotten and self._static.table.get(topic) is detail:
            log.info("static topic %s: other brokers lead the queues %s by now", topic, [*forgotten])
            self._static.drop_items(topic, forgotten)

    async def _ask(self, broker: str, code: int, topic: str, *, lo: str) -> bytes | None:
        """The body of a broker's response about a topic, None if it gives none."""
        try:
            answer = await self._remote.call(broker, code, {"topic": topic}, lo=lo)
        except EpochMQError as error:
            log.warning("broker %s did not tell about static topic %s: %s", broker, topic, error)
            return None
        return answer.body if answer.code == ResponseCode.SUCCESS else None
