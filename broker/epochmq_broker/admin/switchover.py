"""Runs the switchovers that an administrator requests over this broker's admin API: this broker gives its
mastership away (handover), or a chosen replica becomes master (promote)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Final, TypeVar

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.membership.controlled.manager import ReplicasManager
from epochmq_broker.membership.controlled.request_gate import GatePhase
from epochmq_broker.membership.controlled.switchover import CompletedSwitchover
from epochmq_broker.replication.ha.service import HARole, HAService
from epochmq_protocol.admin_api.messages import AdminError, FaultKind
from epochmq_protocol.admin_api.results import SwitchoverResult
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import EpochMQError, RequestError
from epochmq_protocol.frame import request
from epochmq_protocol.replica_control import (
    ReplicaControlCode,
    SwitchoverRequestHeader,
    SwitchoverResponseHeader,
)
from epochmq_protocol.transport.client import RemotingClient

T = TypeVar("T")

CATCH_UP_SHARE: Final = 0.8
"""The share of the available time in which the replica may catch up."""
CATCH_UP_MAX_MS: Final = 5000
"""The time that one replica gets to catch up in a handover, which then tries the next replica."""
POLL_INTERVAL_S: Final = 0.05
LINGER_IDLE_S: Final = 2.0
"""Lingering ends after this time without a request to relay."""
NO_CONTROLLERS: Final = "there are no controllers that could elect another master"


class SwitchoverOperations:
    """The switchovers of one broker. `stop` waits for a running one."""

    def __init__(
        self, live: LiveConfig, ha: HAService, client: RemotingClient, replicas: ReplicasManager | None
    ) -> None:
        self._live = live
        self._ha = ha
        self._client = client
        self._replicas = replicas
        self._tasks: set[asyncio.Task[CompletedSwitchover]] = set()

    async def stop(self) -> None:
        """Waits until running switchovers have ended, even if their callers are gone."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def handover(self, timeout_ms: float) -> SwitchoverResult:
        """Gives the mastership to another member of the SyncStateSet; tries the one with the greatest offset
        first. Returns at once with `moved=False` if there is nothing to give or no replica to take it:
        without controllers, if this broker is not the master, or if no other replica is connected. Raises
        AdminError if no replica took the mastership in time."""
        replicas = self._replicas
        if replicas is None:
            return SwitchoverResult(moved=False, reason=NO_CONTROLLERS)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        while True:
            if self._ha.role is not HARole.MASTER:
                return self._not_moved("this broker is not the master")
            in_sync, others = self._candidates()
            if not in_sync and not others:
                return self._not_moved("no other replica is connected")
            why = f"none of the connected replicas {sorted(others)} is in sync"
            for broker_id in in_sync:
                left_ms = (deadline_s - loop.time()) * 1000
                catch_up_ms = min(left_ms * CATCH_UP_SHARE, CATCH_UP_MAX_MS)
                try:
                    return await self._switch_to(replicas, broker_id, catch_up_ms, deadline_s=loop.time())
                except EpochMQError as error:
                    why = str(error)
            if loop.time() + POLL_INTERVAL_S >= deadline_s:
                raise AdminError(FaultKind.REFUSED, f"no other replica became master in time: {why}")
            await asyncio.sleep(POLL_INTERVAL_S)

    async def linger(self, linger_ms: float) -> None:
        """Waits while requests are relayed to the next master, at most this long. If the broker stopped at
        once, clients that have not learned the new route would fail."""
        if self._replicas is None:
            return
        gate, loop = self._replicas.gate, asyncio.get_running_loop()
        deadline_s = loop.time() + linger_ms / 1000
        relayed, since_s = gate.relayed, loop.time()
        while gate.phase is GatePhase.RELAYING and loop.time() < min(deadline_s, since_s + LINGER_IDLE_S):
            await asyncio.sleep(POLL_INTERVAL_S)
            if gate.relayed != relayed:
                relayed, since_s = gate.relayed, loop.time()

    def _candidates(self) -> tuple[list[int], list[int]]:
        """Returns (connected members of the SyncStateSet, the greatest offset first; other connected replicas
        that could join it)."""
        sync = self._ha.sync_state
        if sync is None:
            return [], []
        found = [replica for replica in sync.replicas.values() if not replica.async_learner]
        found.sort(key=lambda replica: (-replica.ack_offset, replica.broker_id))
        in_sync = [replica.broker_id for replica in found if replica.broker_id in sync.members]
        return in_sync, [replica.broker_id for replica in found if replica.broker_id not in sync.members]

    async def promote(self, broker_id: int | None, timeout_ms: float) -> SwitchoverResult:
        """Makes a replica the master: the one with this id, or without an id this broker. Raises AdminError
        or RequestError if that is impossible."""
        replicas = self._replicas
        if replicas is None:
            raise AdminError(FaultKind.REFUSED, NO_CONTROLLERS)
        identity = replicas.state_machine.identity
        wanted = broker_id if broker_id is not None else identity.id if identity is not None else None
        if wanted is None:
            raise AdminError(FaultKind.REFUSED, "the controllers have not assigned this broker an id yet")
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        if self._ha.role is HARole.MASTER:
            if identity is not None and wanted == identity.id:
                return self._not_moved("it is the master already")
            return await self._switch_to(replicas, wanted, timeout_ms * CATCH_UP_SHARE, deadline_s=deadline_s)
        role = replicas.state_machine.role
        if role is None or role.address is None or self._ha.role is not HARole.REPLICA:
            raise AdminError(FaultKind.REFUSED, "this broker knows no master that could start a switchover")
        if wanted == role.master_id:
            return self._not_moved(f"broker {wanted} is the master already")
        address = self._live.current.broker_addr
        if identity is None or wanted != identity.id:
            address = await self._address(replicas, wanted, deadline_s)
        left_ms = max(1.0, (deadline_s - loop.time()) * 1000)
        header = SwitchoverRequestHeader(
            broker_id=wanted, address=address, timeout_ms=int(left_ms * CATCH_UP_SHARE)
        )
        response = await self._client.call(
            role.address, request(ReplicaControlCode.SWITCHOVER, header), left_ms
        )
        if response.code != ResponseCode.SUCCESS:
            raise RequestError(response.code, f"the master at {role.address}: {response.remark}")
        done = SwitchoverResponseHeader.decode(response.ext)
        return SwitchoverResult(
            moved=True,
            master_broker_id=done.master_broker_id,
            master_address=done.master_address,
            master_epoch=done.master_epoch,
            held_ms=done.held_ms,
        )

    async def _switch_to(
        self, replicas: ReplicasManager, broker_id: int, catch_up_ms: float, *, deadline_s: float
    ) -> SwitchoverResult:
        """Makes a replica the master. `deadline_s` (of the loop's clock) bounds the wait for a controller
        that leads; with the present time a failed question is not repeated."""
        address = await self._address(replicas, broker_id, deadline_s)
        done = await self._run_to_end(
            replicas.switchover.switch_to(broker_id, address, max(0, int(catch_up_ms)))
        )
        return SwitchoverResult(
            moved=True,
            master_broker_id=done.master_id,
            master_address=done.master_address,
            master_epoch=done.master_epoch,
            held_ms=done.held_ms,
        )

    async def _address(self, replicas: ReplicasManager, broker_id: int, deadline_s: float) -> str:
        """Returns the address at which an alive member of the SyncStateSet serves clients. While no
        controller leads, asks again until `deadline_s`."""
        while True:
            try:
                found = (await replicas.members()).get(broker_id)
                break
            except EpochMQError:
                if asyncio.get_running_loop().time() >= deadline_s:
                    raise
            await asyncio.sleep(POLL_INTERVAL_S)
        if found is None:
            raise AdminError(
                FaultKind.REFUSED, f"broker {broker_id} is not an alive member of the SyncStateSet"
            )
        return found

    async def _run_to_end(self, switch: Coroutine[None, None, CompletedSwitchover]) -> CompletedSwitchover:
        """Waits for a switchover. It continues if the caller is cancelled."""
        task = asyncio.get_running_loop().create_task(switch, name="a planned switch")
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return await asyncio.shield(task)

    def _task_ended(self, task: asyncio.Task[CompletedSwitchover]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved; the caller, if it still waits, raises it

    def _not_moved(self, reason: str) -> SwitchoverResult:
        role = self._replicas.state_machine.role if self._replicas is not None else None
        return SwitchoverResult(
            moved=False,
            reason=reason,
            master_broker_id=role.master_id if role is not None else None,
            master_address=role.address if role is not None else None,
            master_epoch=role.epoch if role is not None else 0,
        )
