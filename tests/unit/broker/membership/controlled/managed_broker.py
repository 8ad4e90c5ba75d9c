"""A broker under a controller that the test plays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from epochmq_broker.broker import Broker
from epochmq_protocol.codes import RequestCode as Code
from epochmq_protocol.frame import Command, request
from epochmq_protocol.transport.client import RemotingClient
from tests.support.group_traffic import send_header
from tests.unit.broker.membership.controlled.fake_controller import FakeController


@asynccontextmanager
async def fake_controller(**settings: Any) -> AsyncIterator[FakeController]:
    controller = await FakeController(**settings).start()
    try:
        yield controller
    finally:
        await controller.stop()


async def send(one: Broker, number: int = 0) -> Command:
    """Sends one message to the broker's port."""
    async with RemotingClient() as client:
        command = request(Code.SEND_MESSAGE_V2, ext=send_header(0, f"{number:032X}"), body=b"hello")
        return await client.call(one.live.current.broker_addr, command, 60_000)
