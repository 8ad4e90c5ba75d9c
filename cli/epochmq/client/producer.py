"""Sends messages: chooses a queue of the topic, and retries on another broker if the broker does not respond
in time, the connection is lost, or the broker rejects the message for now."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from epochmq.client.ids import ClientUniqKeyGenerator
from epochmq.client.routes import RouteLookup, masters, writeable_queues
from epochmq.client.signing import environment_credentials
from epochmq_protocol import message
from epochmq_protocol.bodies_base import MessageQueue
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import ConnectError, RequestError, RetryableError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.headers_client import SendMessageRequestHeaderV2, SendMessageResponseHeader
from epochmq_protocol.signatures import SessionCredentials
from epochmq_protocol.topics import AUTO_CREATE_TOPIC_KEY_TOPIC, validate_topic
from epochmq_protocol.transport import RemotingClient
from epochmq_protocol.transport.tls import TlsSettings

ATTEMPT_MAX_MS = 3000
"""The time limit of one attempt; after it another broker is tried."""
RETRY_PAUSE_S = 0.1
RETRY_PAUSE_MAX_S = 1.0
ROUTE_MAX_AGE_S = 30.0
DEFAULT_ROUTE_MAX_AGE_S = 1.0
"""The age limit of a route that was made for a topic that does not exist yet, from the route of the default
topic (`TBW102`). The first message creates the topic and its own route."""
DEFAULT_QUEUE_NUMS = 4
"""If a send creates a topic: the number of its queues on each broker (Java: defaultTopicQueueNums)."""

RETRY_CODES = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.GO_AWAY,
    }
)
"""Response codes after which RocketMQ's producer tries another queue."""


class SendStatus(StrEnum):
    """The status of a message that a broker stored. All but SEND_OK mean less durability than configured."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


STATUSES = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}


@dataclass(frozen=True, slots=True)
class SendResult:
    """Where a message was stored. `msg_id` is the producer's unique key, `offset_msg_id` the broker's message
    id."""

    status: SendStatus
    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    msg_id: str
    offset_msg_id: str


@dataclass(frozen=True, slots=True)
class _CachedRoute:
    queues: Sequence[MessageQueue]
    addresses: Mapping[str, str]
    valid_until_s: float


class Producer:
    """Sends messages to any number of topics. Call `close` at the end."""

    def __init__(
        self,
        nameservers: Sequence[str],
        group: str,
        *,
        timeout_ms: float = 5000,
        credentials: SessionCredentials | None = None,
        tls: TlsSettings | None = None,
    ) -> None:
        """`timeout_ms` limits a send with all its attempts. Without `credentials` the environment's count."""
        self._group = group
        self._timeout_ms = timeout_ms
        self._remoting = RemotingClient(credentials=credentials or environment_credentials(), tls=tls)
        self._routes = RouteLookup(self._remoting, nameservers)
        self._cached_routes: dict[str, _CachedRoute] = {}
        self._round_robin = itertools.count(time.time_ns() & 0xFFFF)
        self._unique_keys = ClientUniqKeyGenerator()

    async def close(self) -> None:
        """Closes all connections."""
        await self._remoting.close()

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> SendResult:
        """Sends one message and returns where it was stored. Retries until the time limit, on another broker
        if there is one. `properties` are further ones.

        Raises RequestError if a broker rejects the message, and RetryableError (CallTimeoutError, …) if the
        last attempt fails. After a time-out or a lost connection the message may have been stored, even
        twice."""
        if problem := validate_topic(topic):
            raise RequestError(ResponseCode.INVALID_PARAMETER, problem)
        if not body:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL, "the message is empty; RocketMQ accepts no empty messages"
            )
        deadline = time.monotonic() + self._timeout_ms / 1000
        sent = {
            **(properties or {}),
            message.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX: self._unique_keys.next(),
        }
        if tags:
            sent[message.PROPERTY_TAGS] = tags
        if keys:
            sent[message.PROPERTY_KEYS] = keys
        failed_broker: str | None = None
        pause_s = RETRY_PAUSE_S
        while True:
            left_ms = max((deadline - time.monotonic()) * 1000, 1)
            try:
                route = await self._route(topic)
                queue = self._choose(route, failed_broker)
                failed_broker = queue.broker_name
                return await self._attempt(route, queue, body, sent, min(left_ms, ATTEMPT_MAX_MS))
            except RequestError as error:
                if error.code not in RETRY_CODES or time.monotonic() + pause_s > deadline:
                    raise
            except RetryableError:
                if time.monotonic() + pause_s > deadline:
                    raise
            # The cached route may be outdated.
            self._cached_routes.pop(topic, None)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_PAUSE_MAX_S)

    async def _route(self, topic: str) -> _CachedRoute:
        cached = self._cached_routes.get(topic)
        now = time.monotonic()
        if cached is not None and now < cached.valid_until_s:
            return cached
        topic_route, max_age_s = await self._routes.lookup(topic), ROUTE_MAX_AGE_S
        queue_nums_max: int | None = None
        if topic_route is None:
            topic_route = await self._routes.lookup(AUTO_CREATE_TOPIC_KEY_TOPIC)
            max_age_s, queue_nums_max = DEFAULT_ROUTE_MAX_AGE_S, DEFAULT_QUEUE_NUMS
        if topic_route is None:
            if not await self._routes.has_brokers():
                raise ConnectError("no broker is registered at the nameserver")
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"topic {topic} does not exist, and no broker creates topics (autoCreateTopicEnable=false)",
            )
        queues = writeable_queues(topic, topic_route, queue_nums_max)
        if not queues:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"topic {topic} has no writable queue on a broker with a master"
            )
        route = self._cached_routes[topic] = _CachedRoute(queues, masters(topic_route), now + max_age_s)
        return route

    def _choose(self, route: _CachedRoute, failed_broker: str | None) -> MessageQueue:
        """The next queue in round-robin order, if possible not on the broker of the last attempt."""
        queues = [queue for queue in route.queues if queue.broker_name != failed_broker] or route.queues
        return queues[next(self._round_robin) % len(queues)]

    async def _attempt(
        self,
        route: _CachedRoute,
        queue: MessageQueue,
        body: bytes,
        properties: dict[str, str],
        timeout_ms: float,
    ) -> SendResult:
        header = SendMessageRequestHeaderV2(
            producer_group=self._group,
            topic=queue.topic,
            default_topic=AUTO_CREATE_TOPIC_KEY_TOPIC,
            default_topic_queue_nums=DEFAULT_QUEUE_NUMS,
            queue_id=queue.queue_id,
            sys_flag=0,
            born_timestamp=time.time_ns() // 1_000_000,
            flag=0,
            properties=message.format_properties(properties).decode(),
            reconsume_times=0,
            unit_mode=False,
            batch=False,
            broker_name=queue.broker_name,
        )
        address = route.addresses[queue.broker_name]
        response = await self._remoting.call(
            address, request(RequestCode.SEND_MESSAGE_V2, header, body), timeout_ms
        )
        return _result(queue, properties, response)


def _result(queue: MessageQueue, properties: Mapping[str, str], response: Command) -> SendResult:
    status = STATUSES.get(ResponseCode(response.code)) if response.code in STATUSES else None
    if status is None:
        raise RequestError(
            response.code, response.remark or f"{queue.broker_name} responded with code {response.code}"
        )
    header = SendMessageResponseHeader.decode(response.ext)
    return SendResult(
        status=status,
        topic=queue.topic,
        broker_name=queue.broker_name,
        queue_id=header.queue_id,
        queue_offset=header.queue_offset,
        msg_id=properties[message.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX],
        offset_msg_id=header.msg_id,
    )
