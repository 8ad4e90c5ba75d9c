"""Tests that the broker's ports hold every request that a switchover must not overtake."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import cast

import pytest

from epochmq_broker.broker import Broker
from epochmq_broker.config.broker_config import from_properties
from epochmq_broker.membership.controlled.handover import Handover
from epochmq_broker.requests.fast_handler import Port
from epochmq_broker.requests.request_rules import codes_where
from epochmq_protocol.frame import request
from epochmq_protocol.transport.connection import RemotingConnection

CONTROLLED = {
    "enableControllerMode": "true",
    "controllerAddr": "127.0.0.1:1",
}
HELD_CODES = codes_where(lambda rule: rule.handover in (Handover.HELD, Handover.HELD_ONLY))
NOBODY = cast(RemotingConnection, None)


@pytest.mark.parametrize("code", sorted(HELD_CODES))
async def test_a_held_request_reaches_no_handler(tmp_path: Path, code: int) -> None:
    broker = Broker(from_properties({**CONTROLLED, "storePathRootDir": str(tmp_path)}))
    handlers = broker.pipeline.handlers(Port.MAIN)
    assert broker.mode.gate is not None
    broker.mode.gate.hold()
    answer = handlers[code](NOBODY, request(code))
    assert isinstance(answer, Awaitable)
    task = asyncio.ensure_future(answer)
    while not broker.mode.replicas.gate.held:
        await asyncio.sleep(0)
        assert not task.done(), task.exception()
    task.cancel()
