"""Switchovers that an administrator requests from one broker: the chosen replica, the time limits, and the
results."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from epochmq_broker.admin import switchover
from epochmq_broker.admin.switchover import SwitchoverOperations
from epochmq_broker.config.broker_config import LiveConfig, from_properties
from epochmq_broker.membership.controlled.manager import ReplicasManager
from epochmq_broker.membership.controlled.switchover import CompletedSwitchover
from epochmq_broker.replication.ha.service import HARole, HAService
from epochmq_broker.replication.ha.sync_state import ConnectedReplica
from epochmq_protocol.admin_api.messages import AdminError, FaultKind
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.transport.client import RemotingClient


class Master:
    """Broker 1, the master, with these replicas; `switch` returns the result of a switchover."""

    def __init__(self, *replicas: ConnectedReplica, members: set[int]) -> None:
        self.role = HARole.MASTER
        self.sync_state = SimpleNamespace(
            replicas={one.broker_id: one for one in replicas}, members=frozenset(members)
        )
        self.state_machine = SimpleNamespace(
            identity=SimpleNamespace(id=1), role=SimpleNamespace(master_id=1, address="a:1", epoch=3)
        )
        self.switchover = self
        self.tried: list[int] = []
        self.trying = asyncio.Event()
        self.refusals: dict[int, str] = {}
        self.held: asyncio.Event | None = None

    async def members(self) -> dict[int, str]:
        return {one: f"b{one}:1" for one in self.sync_state.members}

    async def switch_to(self, broker_id: int, address: str, timeout_ms: int) -> CompletedSwitchover:
        assert address == f"b{broker_id}:1"
        self.tried.append(broker_id)
        self.trying.set()
        if self.held is not None:
            await self.held.wait()
        if broker_id in self.refusals:
            raise RequestError(ResponseCode.SYSTEM_ERROR, self.refusals[broker_id])
        self.role = HARole.REPLICA
        return CompletedSwitchover(broker_id, address, 4, 50)


def switches_of(master: Master) -> SwitchoverOperations:
    live = LiveConfig(from_properties({"brokerName": "a"}).config)
    replicas = cast(ReplicasManager, cast(Any, master))
    return SwitchoverOperations(
        live, cast(HAService, cast(Any, master)), cast(RemotingClient, None), replicas
    )


async def test_the_most_advanced_replica_gets_the_mastership() -> None:
    master = Master(
        ConnectedReplica(2, ack_offset=900),
        ConnectedReplica(3, ack_offset=1000),
        ConnectedReplica(4, ack_offset=1000),
        members={1, 2, 3, 4},
    )
    done = await switches_of(master).handover(60_000)
    assert (done.moved, done.master_broker_id, done.master_epoch, done.held_ms) == (True, 3, 4, 50)


async def test_learners_and_replicas_out_of_sync_do_not_get_the_mastership() -> None:
    master = Master(
        ConnectedReplica(2, async_learner=True, ack_offset=1000),
        ConnectedReplica(3, ack_offset=1000),
        ConnectedReplica(4, ack_offset=10),
        members={1, 2, 4},
    )
    await switches_of(master).handover(60_000)
    assert master.tried == [4]


async def test_if_one_replica_cannot_become_master_the_next_one_does() -> None:
    master = Master(ConnectedReplica(2, ack_offset=9), ConnectedReplica(3, ack_offset=8), members={1, 2, 3})
    master.refusals[2] = "its heartbeats do not reach them"
    assert (await switches_of(master).handover(60_000)).master_broker_id == 3
    assert master.tried == [2, 3]


async def test_without_another_replica_or_without_mastership_no_switchover_is_needed() -> None:
    alone = Master(ConnectedReplica(5, async_learner=True, ack_offset=1), members={1})
    done = await switches_of(alone).handover(60_000)
    assert (done.moved, done.reason, done.master_epoch) == (False, "no other replica is connected", 3)
    alone.role = HARole.REPLICA
    done = await switches_of(alone).handover(60_000)
    assert (done.moved, done.reason) == (False, "this broker is not the master")


async def test_a_replica_that_joins_the_syncstateset_in_time_gets_the_mastership(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(switchover, "POLL_INTERVAL_S", 0.001)
    master = Master(ConnectedReplica(2, ack_offset=9), members={1})
    asked = asyncio.create_task(switches_of(master).handover(10_000))
    await asyncio.sleep(0)
    master.sync_state.members = frozenset({1, 2})
    assert (await asked).master_broker_id == 2


async def test_if_no_replica_can_in_time_the_mastership_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switchover, "POLL_INTERVAL_S", 0.001)
    master = Master(ConnectedReplica(2, ack_offset=9), members={1})
    message = r"no other replica became master in time: none of the connected replicas \[2\] is in sync"
    with pytest.raises(AdminError, match=message) as caught:
        await switches_of(master).handover(20)
    assert caught.value.kind is FaultKind.REFUSED
    master = Master(ConnectedReplica(2, ack_offset=9), members={1, 2})
    master.refusals[2] = "broker 2 still lacked 5 bytes"
    message = "no other replica became master in time: broker 2 still lacked 5 bytes"
    with pytest.raises(AdminError, match=message):
        await switches_of(master).handover(20)


async def test_a_switchover_runs_to_its_end_without_a_waiting_caller() -> None:
    master = Master(ConnectedReplica(2, ack_offset=9), members={1, 2})
    master.held = asyncio.Event()
    made = switches_of(master)
    asked = asyncio.create_task(made.handover(60_000))
    async with asyncio.timeout(60):
        await master.trying.wait()
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    assert master.role is HARole.MASTER
    master.held.set()
    await made.stop()
    assert master.role is HARole.REPLICA


async def test_a_replica_outside_the_syncstateset_is_not_promoted() -> None:
    master = Master(ConnectedReplica(2, ack_offset=9), members={1, 2})
    with pytest.raises(AdminError, match="broker 3 is not an alive member of the SyncStateSet"):
        await switches_of(master).promote(3, 1000)
    done = await switches_of(master).promote(1, 1000)
    assert (done.moved, done.reason) == (False, "it is the master already")
    assert (await switches_of(master).promote(2, 1000)).master_broker_id == 2
