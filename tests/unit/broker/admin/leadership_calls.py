"""Admin calls about the leadership of a DLedger group."""

from __future__ import annotations

import asyncio

from epochmq_broker.membership.modes.dledger import DLedgerMode
from epochmq_protocol.admin_api import results
from epochmq_protocol.admin_api.operations import (
    AdminOperation,
    PromoteArguments,
    ReadinessLimits,
)
from tests.unit.broker.admin.served_operations import Served
from tests.unit.broker.kit import until

Group = list[Served]


def leader_of(group: Group) -> Served:
    return next(one for one in group if serves(one))


def serves(one: Served) -> bool:
    mode = one.broker.mode
    return isinstance(mode, DLedgerMode) and mode.commit_log.is_ready


async def state_of(one: Served) -> results.BrokerState:
    found = await one.ask(AdminOperation.STATE, results.BrokerState, ReadinessLimits())
    assert isinstance(found, results.BrokerState)
    return found


async def until_ready(one: Served) -> None:
    while True:
        if (await state_of(one)).ready:
            return
        await asyncio.sleep(0.01)


async def until_leads(wanted: Served) -> None:
    """Waits until this broker accepts messages."""
    await until(lambda: serves(wanted))


async def promote(one: Served, broker_id: int | None = None) -> results.SwitchoverResult:
    found = await one.ask(
        AdminOperation.PROMOTE, results.SwitchoverResult, PromoteArguments(broker_id=broker_id)
    )
    assert isinstance(found, results.SwitchoverResult)
    return found
