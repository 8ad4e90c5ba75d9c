"""Reads messages of other groups (EscapeBridge.getMessage).

The acting master of another group hands messages out, and stores their checkpoints here. When one of these
messages is not acknowledged, this broker hands it out again, and has to read it there."""

from __future__ import annotations

import logging
from typing import Final

from msgspec import Struct

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.config.clock import now_ms
from epochmq_broker.writing.topic_routes import TopicRoutes
from epochmq_protocol import message as records
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.headers_client import PullMessageRequestHeader
from epochmq_protocol.message import MessageExt
from epochmq_protocol.route import MASTER_ID, TopicRouteData
from epochmq_protocol.transport.request_client import RequestClient

log = logging.getLogger(__name__)

PULL_TIMEOUT_MS: Final = 10_000
ROUTE_FRESH_S: Final = 1.0
"""If a group is missing in a route older than this, the route is asked for again."""
SUBSCRIPTION_FLAG: Final = 4
"""The request has its own subscription; the group need not have consumers (PullSysFlag)."""
NOT_FOUND: Final = frozenset(
    {
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


class RemoteMessage(Struct, frozen=True):
    """The result of a read. Without a message, `retries` says whether a later read may find it; otherwise it
    does not exist any more."""

    message: MessageExt | None
    retries: bool = False


class RemoteMessageReader:
    """Reads single messages of other groups."""

    def __init__(self, live: LiveConfig, routes: TopicRoutes, client: RequestClient) -> None:
        self._live = live
        self._routes = routes
        self._client = client

    async def get_message(self, topic: str, queue_id: int, offset: int, broker_name: str) -> RemoteMessage:
        """The message at an offset of a queue of another group, from its master, or from a replica while the
        route has no master. As in RocketMQ, a rejected request is repeated later."""
        address = await self._address(topic, broker_name)
        if address is None:
            log.warning("no address of broker %s is known for topic %s", broker_name, topic)
            return RemoteMessage(None, retries=True)
        command = self._pull_request(topic, queue_id, offset, broker_name)
        try:
            answer = await self._client.call(address, command, PULL_TIMEOUT_MS)
            if answer.code == ResponseCode.SUCCESS and answer.body:
                return RemoteMessage(records.decode_records(answer.body)[0])
        except EpochMQError as error:
            log.warning("message %s-%d %d of broker %s: %s", topic, queue_id, offset, broker_name, error)
            return RemoteMessage(None, retries=True)
        return RemoteMessage(None, retries=answer.code not in NOT_FOUND)

    async def _address(self, topic: str, broker_name: str) -> str | None:
        """The address of a group's master, or of any of its brokers."""
        for fresh_s in (None, ROUTE_FRESH_S):
            route = await self._routes.route(topic, fresh_s)
            address = None if route is None else broker_address(route, broker_name)
            if address is not None:
                return address
        return None

    def _pull_request(self, topic: str, queue_id: int, offset: int, broker_name: str) -> Command:
        """As BrokerOuterAPI.pullMessageFromSpecificBrokerAsync builds it."""
        config = self._live.current
        header = PullMessageRequestHeader(
            consumer_group=f"InnerConsumerGroup_{config.broker_name}_{config.broker_id}",
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=1,
            sys_flag=SUBSCRIPTION_FLAG,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription="*",
            sub_version=now_ms(),
            max_msg_bytes=2**31 - 1,
            expression_type="TAG",
            bname=broker_name,
        )
        return request(RequestCode.PULL_MESSAGE, header)


def broker_address(route: TopicRouteData, broker_name: str) -> str | None:
    """The address of a group's master in a route, or of its replica with the smallest id (RocketMQ: any).
    None if the route does not have the group."""
    for data in route.broker_datas:
        if data.broker_name == broker_name and data.broker_addrs:
            return data.broker_addrs.get(MASTER_ID) or data.broker_addrs[min(data.broker_addrs)]
    return None
