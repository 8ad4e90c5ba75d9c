"""A nameserver, and brokers with given request handlers, in a thread of this process: for verbs that are run
as a person types them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from epochmq_protocol.bodies import ClusterInfo
from epochmq_protocol.bodies_base import to_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import Command, response
from epochmq_protocol.route import BrokerData
from epochmq_protocol.transport import RemotingConnection, RemotingServer
from epochmq_protocol.transport.connection import RequestHandler
from tests.support.net import loopback

Handlers = Mapping[int, RequestHandler]
START_MAX_S = 60


class FakeBrokers:
    """A context manager. `brokers` are the handlers of each broker by (name, id); `absent` are registered
    brokers without a process."""

    def __init__(
        self, brokers: Mapping[tuple[str, int], Handlers], absent: Mapping[tuple[str, int], str] | None = None
    ) -> None:
        self.host = loopback(55)
        self.addresses: dict[tuple[str, int], str] = dict(absent or {})
        self._servers = {name: RemotingServer(handlers) for name, handlers in brokers.items()}
        self._nameserver = RemotingServer({RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info})
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(START_MAX_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(START_MAX_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_MAX_S)
        self._loop.close()

    @property
    def options(self) -> list[str]:
        """The options that lead a verb here."""
        return ["--nameserver", f"{self.host}:{self._nameserver.port}"]

    async def _start(self) -> None:
        await self._nameserver.start(self.host, 0)
        for name, server in self._servers.items():
            await server.start(self.host, 0)
            self.addresses[name] = f"{self.host}:{server.port}"

    async def _stop(self) -> None:
        for server in (*self._servers.values(), self._nameserver):
            await server.stop(0)

    def _cluster_info(self, connection: RemotingConnection, command: Command) -> Command:
        groups: dict[str, dict[int, str]] = {}
        for (name, broker_id), address in self.addresses.items():
            groups.setdefault(name, {})[broker_id] = address
        known = ClusterInfo(
            {name: BrokerData("c", name, addresses) for name, addresses in groups.items()}, {"c": set(groups)}
        )
        return response(command, ResponseCode.SUCCESS, body=to_json(known))
