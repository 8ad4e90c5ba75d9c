"""A slave of a DLedger group asks the nameservers for its new master until that has registered."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from epochmq_broker.membership.dledger.roles import DLedgerRoles

AFTER_S = (0.01, 0.02)


@pytest.fixture
def parts() -> SimpleNamespace:
    """What the roles change; `registered` counts the registrations, the first one included."""
    live = SimpleNamespace(current=SimpleNamespace(broker_role="ASYNC_MASTER"))

    def set_role(_broker_id: int, role: str) -> None:
        live.current.broker_role = role

    live.set_role = set_role
    return SimpleNamespace(live=live, registration=Mock(), others=Mock())


def make(parts: Any) -> DLedgerRoles:
    others = parts.others
    return DLedgerRoles(
        parts.live,
        2,
        others.topics,
        others.services,
        others.pulls,
        parts.registration,
        others.sync,
        find_master_after_s=AFTER_S,
    )


async def fired() -> None:
    """Returns when every timer that was set before has fired."""
    done = asyncio.Event()
    asyncio.get_running_loop().call_later(max(AFTER_S) * 2, done.set)
    await done.wait()


async def test_a_slave_registers_again_after_each_change_of_its_leader(parts: Any) -> None:
    roles = make(parts)
    roles.become_slave()
    parts.registration.start.assert_called_once()
    await fired()
    assert parts.registration.refresh.call_count == len(AFTER_S)

    roles.become_slave()  # another leader
    await fired()
    assert parts.registration.refresh.call_count == 2 * len(AFTER_S)
    parts.registration.start.assert_called_once()


async def test_a_master_and_a_stopped_broker_look_for_no_master(parts: Any) -> None:
    roles = make(parts)
    roles.become_slave()
    roles.become_master()
    parts.registration.refresh.reset_mock()
    await fired()
    parts.registration.refresh.assert_not_called()

    roles.become_slave()
    parts.registration.refresh.reset_mock()
    roles.stop()
    await fired()
    parts.registration.refresh.assert_not_called()
