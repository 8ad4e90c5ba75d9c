"""Tests that the broker's ports hold every request that a switchover must not overtake."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import cast

import pytest

from epochmq_broker.broker import Broker
from epochmq_broker.config.broker_config import from_properties
from epochmq_broker.membership.controlled.request_gate import HELD_CODES, HELD_ONLY_CODES
from epochmq_protocol.frame import request
from epochmq_protocol.transport.connection import RemotingConnection

CONTROLLED = {
    "enableControllerMode": "true",
    "controllerAddr": "127.0.0.1:1",
}
NOBODY = cast(RemotingConnection, None)


@pytest.mark.parametrize("code", sorted(HELD_CODES | HELD_ONLY_CODES))
async def test_a_held_request_reaches_no_handler(tmp_path: Path, code: int) -> None:
    broker = Broker(from_properties({**CONTROLLED, "storePathRootDir": str(tmp_path)}))
    handlers = broker.processors.main_port_handlers(broker.handlers)
    broker.mode.replicas.gate.hold()
    answer = handlers[code](NOBODY, request(code))
    assert isinstance(answer, Awaitable)
    task = asyncio.ensure_future(answer)
    while not broker.mode.replicas.gate.held:
        await asyncio.sleep(0)
        assert not task.done(), task.exception()
    task.cancel()
