"""What a broker does until it is a replica of the master that the controllers name."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from epochmq_broker.membership.controlled import role_transitions as module
from epochmq_broker.membership.controlled.role_transitions import RoleTransitions
from epochmq_broker.membership.controlled.state_machine_types import MasterView
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import CallTimeoutError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers_controller import ExchangeHAInfoResponseHeader
from tests.unit.broker.replication.ha.broker_node import until

MASTER, HA_ADDRESS = "10.0.0.1:10911", "10.0.0.1:10912"
PAUSES = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def _nothing(*_: object) -> None:
    """What no test looks at."""


class Components:
    """The broker of a replica. Its master names its HA address once it has been asked often enough."""

    def __init__(self) -> None:
        self.asked = 0
        self.followed: list[str] = []
        self.live = SimpleNamespace(set_role=_nothing)
        self.master_services = SimpleNamespace(stop=_nothing)
        self.held_pulls = SimpleNamespace(release=_nothing)
        self.slave_sync = SimpleNamespace(follow=_nothing)
        self.topics = SimpleNamespace(bump_version=_nothing)
        self.registration = SimpleNamespace(start=_nothing)
        self.ha = SimpleNamespace(
            become_replica=self._become_replica, follow=self.followed.append, compare_with=_nothing
        )
        self.client = self

    async def _become_replica(self, *_: object, **__: object) -> None:
        """It has no HA address to follow yet."""

    async def call(self, address: str, command: Command, timeout_ms: float) -> Command:
        """Responds as a broker that does not know yet that it is the master, or not at all."""
        assert address == MASTER
        self.asked += 1
        if self.asked == 1:
            raise CallTimeoutError("no response")
        if self.asked == 2:
            return response(command, ResponseCode.SYSTEM_ERROR)
        known = HA_ADDRESS if self.asked > len(PAUSES) else ""
        return response(command, 0, header=ExchangeHAInfoResponseHeader(master_ha_address=known))


async def test_a_replica_asks_its_master_for_the_ha_address_until_it_gets_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def pause(duration_s: float) -> None:
        pauses.append(duration_s)

    monkeypatch.setattr(module, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": pause}))
    components = Components()
    lease = cast(Any, SimpleNamespace(end=lambda: None))
    transitions = RoleTransitions(cast(Any, components), lease)
    await transitions.take(MasterView(1, MASTER, 3, frozenset({1}), 1), 2)
    await until(lambda: components.followed, "it follows the HA address")
    assert components.followed == [HA_ADDRESS]
    assert pauses == PAUSES
    await transitions.stop()
