"""Notifications of brokers: bounded, and none is dropped without a trace."""

from __future__ import annotations

import asyncio
import logging

import pytest

from epochmq_controller.controller import notifier
from epochmq_controller.controller.notifier import RoleChangeNotifier
from epochmq_controller.replica_groups.rules import ReplicaGroupView
from epochmq_controller.replica_groups.state_machine_types import NotifyBroker
from epochmq_protocol.transport import RemotingClient


class SilentClient(RemotingClient):
    """A client whose requests are never sent."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def oneway(self, address: str, command: object, timeout_ms: float = 3000) -> None:
        self.asked.append(address)
        await asyncio.Event().wait()


async def test_notifications_beyond_the_bound_are_counted_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notifier, "PENDING_MAX", 2)
    client = SilentClient()
    made = RoleChangeNotifier(client)
    with caplog.at_level(logging.WARNING):
        for number in range(5):
            made.notify(NotifyBroker(f"127.0.0.1:{number + 1}", ReplicaGroupView()))
    await asyncio.sleep(0)
    assert client.asked == ["127.0.0.1:1", "127.0.0.1:2"]
    assert made.dropped == 3
    assert "dropped 1 notifications, the last one to broker 127.0.0.1:3" in caplog.text
    assert len(caplog.records) == 1, "a controller under load must not log every one"
    await made.stop()
