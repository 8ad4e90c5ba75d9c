"""Calls nameservers and brokers of a cluster for the administration verbs, with RocketMQ's requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from epochmq.client.routes import RouteLookup
from epochmq_protocol.bodies import ClusterInfo, TopicList
from epochmq_protocol.bodies_base import from_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError, RequestError, RetryableError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.headers_base import Header
from epochmq_protocol.route import MASTER_ID, TopicRouteData
from epochmq_protocol.signatures import SessionCredentials
from epochmq_protocol.transport import RemotingClient
from epochmq_protocol.transport.tls import TlsSettings

B = TypeVar("B")
T = TypeVar("T")
R = TypeVar("R")

CALLS_MAX = 32
"""How many calls run at a time, over all brokers."""


@dataclass(frozen=True, slots=True, order=True)
class BrokerAddress:
    """One broker as the nameservers know it. Broker id 0 is the master."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str

    @property
    def is_master(self) -> bool:
        """Whether it is registered as the master of its group."""
        return self.broker_id == MASTER_ID


class AdminClient:
    """Calls one cluster. It is an asynchronous context manager. `timeout_ms` limits each call."""

    def __init__(
        self,
        nameservers: Sequence[str],
        *,
        credentials: SessionCredentials | None = None,
        tls: TlsSettings | None = None,
        timeout_ms: float = 5000,
    ) -> None:
        self.nameservers = list(nameservers)
        self.timeout_ms = timeout_ms
        self._remoting = RemotingClient(credentials=credentials, tls=tls)
        self.routes = RouteLookup(self._remoting, nameservers)
        self._slots = asyncio.Semaphore(CALLS_MAX)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._remoting.close()

    # one call

    async def call(
        self,
        address: str,
        code: RequestCode,
        header: Header | None = None,
        body: bytes = b"",
        *,
        accepted: Iterable[int] = (ResponseCode.SUCCESS,),
        fields: dict[str, str] | None = None,
    ) -> Command:
        """Calls a broker or nameserver. `fields` are those that the header's class lacks.

        Raises RequestError for a response with a code that is not accepted, and RetryableError if there is no
        response. Both name the address."""
        async with self._slots:
            response = await self._remoting.call(
                address, request(code, header, body, fields), self.timeout_ms
            )
        if response.code not in accepted:
            remark = response.remark or f"it responded with code {response.code}"
            raise RequestError(response.code, f"{address}: {remark}")
        return response

    async def read(
        self, kind: type[B], address: str, code: RequestCode, header: Header | None = None, body: bytes = b""
    ) -> B:
        """Calls, and decodes the response's body."""
        return from_json(kind, (await self.call(address, code, header, body)).body)

    async def gather(self, action: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
        """Runs an action for each item, all at the same time, and returns the results in their order. If
        actions fail, raises the first error when all have ended."""
        results = await asyncio.gather(*(action(item) for item in items), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if not isinstance(result, BaseException)]

    async def found(self, action: Callable[[T], Awaitable[R]], items: Iterable[T], *absent: int) -> list[R]:
        """As `gather`, without the items for which a broker responds with one of these codes."""
        missing = object()

        async def guarded(item: T) -> R | object:
            try:
                return await action(item)
            except RequestError as error:
                if error.code in absent:
                    return missing
                raise

        return [one for one in await self.gather(guarded, items) if one is not missing]  # type: ignore[misc] # filtered

    # nameservers

    async def every_nameserver(self, code: RequestCode, header: Header) -> None:
        """Calls all nameservers, as RocketMQ's tools do for what each of them keeps."""

        async def call(nameserver: str) -> None:
            await self.call(nameserver, code, header)

        await self.gather(call, self.nameservers)

    async def any_nameserver(self, code: RequestCode, header: Header | None = None) -> Command:
        """Calls the first nameserver that responds. Raises RequestError for an error response."""
        failed: RetryableError | None = None
        for nameserver in self.nameservers:
            try:
                return await self.call(nameserver, code, header)
            except RetryableError as error:
                failed = error
        assert failed is not None, "there is a nameserver"
        raise failed

    async def topics(self) -> list[str]:
        """The names of all topics, in order."""
        response = await self.any_nameserver(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(set(from_json(TopicList, response.body).topic_list))

    async def route(self, topic: str) -> TopicRouteData:
        """The route of a topic. Raises RequestError if the topic does not exist."""
        route = await self.routes.lookup(topic)
        if route is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {topic} does not exist; `epochmq topic list` shows those that do",
            )
        return route

    async def brokers(
        self, *, cluster: str | None = None, broker_names: Sequence[str] = ()
    ) -> list[BrokerAddress]:
        """The registered brokers in order; only those of a cluster, or of the named groups. Raises
        RequestError if there is none, or one of the names is unknown."""
        response = await self.any_nameserver(RequestCode.GET_BROKER_CLUSTER_INFO)
        info = from_json(ClusterInfo, response.body)
        known = sorted(
            BrokerAddress(data.cluster, name, broker_id, address)
            for name, data in info.broker_addr_table.items()
            for broker_id, address in data.broker_addrs.items()
        )
        if not known:
            raise RequestError(
                ResponseCode.BROKER_NOT_EXIST, f"no broker is registered at {';'.join(self.nameservers)}"
            )
        clusters, names = sorted({one.cluster for one in known}), sorted({one.broker_name for one in known})
        if cluster is not None and cluster not in clusters:
            raise RequestError(
                ResponseCode.BROKER_NOT_EXIST,
                f"cluster {cluster} is unknown; there is: {', '.join(clusters)}",
            )
        for name in broker_names:
            if name not in names:
                raise RequestError(
                    ResponseCode.BROKER_NOT_EXIST, f"broker {name} is unknown; there is: {', '.join(names)}"
                )
        return [
            one
            for one in known
            if (cluster is None or one.cluster == cluster)
            and (not broker_names or one.broker_name in broker_names)
        ]

    async def masters(
        self, *, cluster: str | None = None, broker_names: Sequence[str] = ()
    ) -> list[BrokerAddress]:
        """The masters among `brokers`. Raises RequestError if a group has none: what is written now would
        be missing there."""
        brokers = await self.brokers(cluster=cluster, broker_names=broker_names)
        found = [one for one in brokers if one.is_master]
        lacking = sorted({one.broker_name for one in brokers} - {one.broker_name for one in found})
        if lacking:
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"broker group {', '.join(lacking)} has no master now; see `epochmq status`, and try again",
            )
        return found


def failure_text(error: EpochMQError) -> str:
    """The error of one broker among several, in a line."""
    return str(error).replace("\n", " ")
