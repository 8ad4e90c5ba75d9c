"""A broker's registration with nameservers that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from epochmq_broker.config.broker_config import LiveConfig, from_properties
from epochmq_broker.membership.registration import NameserverRegistration
from epochmq_broker.tables.static_topics.mapping_table import StaticTopicTable
from epochmq_broker.tables.topics import TopicTable
from epochmq_protocol.bodies import ClusterInfo, KVTable, from_json, to_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import CallTimeoutError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.route import BrokerData
from epochmq_protocol.topics import (
    RegisterBrokerBody,
)

FIRST, SECOND = "127.53.8.1:9876", "127.53.8.2:9876"


class Link:
    """Replaces a connection."""

    def __init__(self) -> None:
        self.on_close: list[Callable[[Link], None]] = []


class Nameservers:
    """Replaces a RemotingClient: records the requests to each address, and responds, fails or hangs as
    configured."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Command]] = []
        self.oneways: list[tuple[str, int, float]] = []
        """Address, code and time limit in milliseconds of each of them that gets no response."""
        self.dead: set[str] = set()
        self.hanging: set[str] = set()
        self.order_config: dict[str, str] = {}
        self.links: dict[str, Link] = {}
        self.masters: list[str] = []
        """What is asked for next is the first of these, until there is one left."""
        self._changed = asyncio.Condition()

    async def connect(self, addr: str) -> Link:
        """RemotingClient.connect."""
        return self.links.setdefault(addr, Link())

    def lose(self, addr: str) -> None:
        """Closes the connection to an address."""
        link = self.links.pop(addr)
        for listener in link.on_close:
            listener(link)

    async def call(self, addr: str, command: Command, timeout_ms: float = 3000) -> Command:
        """RemotingClient.call."""
        if addr in self.hanging:
            await asyncio.Event().wait()
        if addr in self.dead:
            raise CallTimeoutError(f"{addr} is dead")
        async with self._changed:
            self.requests.append((addr, command))
            self._changed.notify_all()
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            master = self.masters.pop(0) if len(self.masters) > 1 else self.masters[0]
            group = BrokerData("cluster", "b", {0: master})
            return response(command, ResponseCode.SUCCESS, body=to_json(ClusterInfo({"b": group})))
        body = to_json(KVTable(table=self.order_config)) if self.order_config else b""
        return response(command, ResponseCode.SUCCESS, body=body)

    async def oneway(self, addr: str, command: Command, timeout_ms: float = 3000) -> None:
        """RemotingClient.oneway."""
        if addr in self.dead:
            raise CallTimeoutError(f"{addr} is dead")
        self.oneways.append((addr, command.code, timeout_ms))
        async with self._changed:
            self.requests.append((addr, command))
            self._changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until the requests to an address satisfy the condition."""
        async with asyncio.timeout(120), self._changed:
            await self._changed.wait_for(condition)

    def registrations(self, addr: str) -> list[RegisterBrokerBody]:
        """Returns the bodies of all registrations at an address."""
        return [
            from_json(RegisterBrokerBody, command.body)
            for address, command in self.requests
            if address == addr and command.code == RequestCode.REGISTER_BROKER
        ]


class Bench:
    """A registration with two nameservers."""

    def __init__(self, **settings: str) -> None:
        text = {
            "namesrvAddr": f"{FIRST};{SECOND}",
            "brokerName": "b",
            "brokerIP1": "127.53.8.9",
            "listenPort": "20911",
        }
        self.live = LiveConfig(from_properties(text | settings).config)
        self.topics = TopicTable(self.live.current, lambda: 1_700_000_000_000)
        self.servers = Nameservers()
        self.static = StaticTopicTable(
            Path("unused"), lambda: 1_700_000_000_000, lambda path, data, *, survives_kill: None
        )
        self.static.on_change.append(self.topics.derived_changed)
        self.registration = NameserverRegistration(self.live, self.topics, self.static, self.servers)
