"""A nameserver, and clients that ask it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from epochmq_controller.nameserver import config
from epochmq_controller.nameserver.server import Nameserver
from epochmq_protocol import fastjson
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.frame import Command, request
from epochmq_protocol.topics import RegisterBrokerBody, TopicConfigSerializeWrapper
from epochmq_protocol.transport import RemotingClient
from tests.support.net import loopback
from tests.unit.controller.nameserver.brokers import wrapper

Code = RequestCode
MASTER, SLAVE = "10.0.0.1:10911", "10.0.0.2:10911"


class Asker:
    """A nameserver and a client."""

    def __init__(self, nameserver: Nameserver, client: RemotingClient) -> None:
        self.nameserver = nameserver
        self.client = client
        self.address = f"{nameserver.server.host}:{nameserver.server.port}"

    async def ask(self, code: int, body: bytes = b"", *, version: int | None = None, **ext: str) -> Command:
        command = request(code, body=body, ext=ext)
        if version is not None:
            command.version = version
        return await self.client.call(self.address, command, 60_000)

    async def register(
        self,
        broker_id: int = 0,
        address: str = MASTER,
        topics: TopicConfigSerializeWrapper | None = None,
        *,
        body: bytes | None = None,
        version: int | None = None,
        **ext: str,
    ) -> Command:
        whole = RegisterBrokerBody(topic_config_serialize_wrapper=topics if topics is not None else wrapper())
        fields = {
            "clusterName": "c",
            "brokerName": "broker-a",
            "brokerAddr": address,
            "brokerId": str(broker_id),
            "haServerAddr": f"ha-{address}",
            "enableActingMaster": "false",
            **ext,
        }
        data = whole.encode() if body is None else body
        return await self.ask(Code.REGISTER_BROKER, data, version=version, **fields)

    async def eventually(self, condition: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(60):
                while not condition():  # noqa: ASYNC110 - the nameserver knows nothing of tests
                    await asyncio.sleep(0.002)
        except TimeoutError:
            raise AssertionError(f"not within 60 s: {what}") from None


@asynccontextmanager
async def asking(tmp_path: Path, text: str = "") -> AsyncIterator[Asker]:
    settings = {
        "bindAddress": loopback(51),
        "listenPort": "0",
        "kvConfigPath": str(tmp_path / "kvConfig.json"),
        "configStorePath": str(tmp_path / "namesrv.conf"),
    }
    nameserver = Nameserver(config.load(text, settings))
    await nameserver.start()
    try:
        async with RemotingClient() as client:
            yield Asker(nameserver, client)
    finally:
        await nameserver.stop()


def plain(answer: Command) -> Any:
    """The body of a successful response as plain values."""
    assert answer.code == 0, answer
    return fastjson.loads(answer.body)
