"""Planned switches as they are asked of one broker, master or not: this replica is to be the master, or not
to be it any more."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Final, TypeVar

from epochmq_broker.config import LiveConfig
from epochmq_broker.ha.service import HARole, HAService
from epochmq_broker.replicas.manager import ReplicasManager
from epochmq_broker.replicas.request_gate import GatePhase
from epochmq_broker.replicas.switchover import CompletedSwitchover
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
"""Of the time that there is, the share in which the replica may catch up."""
CATCH_UP_MAX_MS: Final = 5000
"""What one replica gets of it when another may do as well."""
LOOK_S: Final = 0.05
QUIET_S: Final = 2.0
"""So long without a request to pass on, and nobody is waited for any more."""
NO_CONTROLLERS: Final = "there are no controllers that could elect another"


class SwitchoverOperations:
    """Of one broker. `stop` waits for a switch under way."""

    def __init__(
        self, live: LiveConfig, ha: HAService, client: RemotingClient, replicas: ReplicasManager | None
    ) -> None:
        self._live = live
        self._ha = ha
        self._client = client
        self._replicas = replicas
        self._tasks: set[asyncio.Task[CompletedSwitchover]] = set()

    async def stop(self) -> None:
        """Who asked may be gone; what was begun is brought to its end."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def handover(self, timeout_ms: float) -> SwitchoverResult:
        """The mastership goes to whoever of the SyncStateSet has the most; at once when there is nothing to
        give, or nobody to give it to. AdminError when nobody could take it in time."""
        replicas = self._replicas
        if replicas is None:
            return SwitchoverResult(moved=False, reason=NO_CONTROLLERS)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        while True:
            if self._ha.role is not HARole.MASTER:
                return self._nothing_to_do("this broker is not the master")
            in_sync, others = self._candidates()
            if not in_sync and not others:
                return self._nothing_to_do("no other replica is connected")
            why = f"none of the connected replicas {sorted(others)} is in sync"
            for broker_id in in_sync:
                left_ms = (deadline_s - loop.time()) * 1000
                catch_up_ms = min(left_ms * CATCH_UP_SHARE, CATCH_UP_MAX_MS)
                try:
                    return await self._to(replicas, broker_id, catch_up_ms, loop.time())
                except EpochMQError as error:
                    why = str(error)
            if loop.time() + LOOK_S >= deadline_s:
                raise AdminError(FaultKind.REFUSED, f"the mastership stays here: {why}")
            await asyncio.sleep(LOOK_S)

    async def linger(self, linger_ms: float) -> None:
        """Waits while requests are passed on to the next master, at most so long: who is stopped meanwhile
        leaves clients behind that have not heard of it."""
        if self._replicas is None:
            return
        gate, loop = self._replicas.gate, asyncio.get_running_loop()
        over_s = loop.time() + linger_ms / 1000
        relayed, since_s = gate.relayed, loop.time()
        while gate.phase is GatePhase.RELAYING and loop.time() < min(over_s, since_s + QUIET_S):
            await asyncio.sleep(LOOK_S)
            if gate.relayed != relayed:
                relayed, since_s = gate.relayed, loop.time()

    def _candidates(self) -> tuple[list[int], list[int]]:
        """(connected members of the SyncStateSet, who has the most first; other replicas that could become
        members)."""
        sync = self._ha.sync_state
        if sync is None:
            return [], []
        found = [one for one in sync.replicas.values() if not one.async_learner]
        found.sort(key=lambda one: (-one.ack_offset, one.broker_id))
        in_sync = [one.broker_id for one in found if one.broker_id in sync.members]
        return in_sync, [one.broker_id for one in found if one.broker_id not in sync.members]

    async def promote(self, broker_id: int | None, timeout_ms: float) -> SwitchoverResult:
        """Makes a replica, or without an id this one, the master. AdminError or RequestError when that cannot
        be."""
        replicas = self._replicas
        if replicas is None:
            raise AdminError(FaultKind.REFUSED, NO_CONTROLLERS)
        identity = replicas.state_machine.identity
        wanted = broker_id if broker_id is not None else identity.id if identity is not None else None
        if wanted is None:
            raise AdminError(FaultKind.REFUSED, "the controllers have given this broker no id yet")
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        if self._ha.role is HARole.MASTER:
            if identity is not None and wanted == identity.id:
                return self._nothing_to_do("it is the master already")
            return await self._to(replicas, wanted, timeout_ms * CATCH_UP_SHARE, deadline_s)
        role = replicas.state_machine.role
        if role is None or role.address is None or self._ha.role is not HARole.REPLICA:
            raise AdminError(FaultKind.REFUSED, "no master is known that could hand over")
        if wanted == role.master_id:
            return self._nothing_to_do(f"broker {wanted} is the master already")
        address = self._live.current.broker_addr
        if identity is None or wanted != identity.id:
            address = await self._address(replicas, wanted, deadline_s)
        left_ms = max(1.0, (deadline_s - loop.time()) * 1000)
        header = SwitchoverRequestHeader(
            broker_id=wanted, address=address, timeout_ms=int(left_ms * CATCH_UP_SHARE)
        )
        answer = await self._client.call(
            role.address, request(ReplicaControlCode.SWITCHOVER, header), left_ms
        )
        if answer.code != ResponseCode.SUCCESS:
            raise RequestError(answer.code, f"the master at {role.address}: {answer.remark}")
        done = SwitchoverResponseHeader.decode(answer.ext)
        return SwitchoverResult(
            moved=True,
            master_broker_id=done.master_broker_id,
            master_address=done.master_address,
            master_epoch=done.master_epoch,
            held_ms=done.held_ms,
        )

    async def _to(
        self, replicas: ReplicasManager, broker_id: int, catch_up_ms: float, patience_s: float
    ) -> SwitchoverResult:
        address = await self._address(replicas, broker_id, patience_s)
        done = await self._to_its_end(replicas.switchover.to(broker_id, address, max(0, int(catch_up_ms))))
        return SwitchoverResult(
            moved=True,
            master_broker_id=done.master_id,
            master_address=done.master_address,
            master_epoch=done.master_epoch,
            held_ms=done.held_ms,
        )

    async def _address(self, replicas: ReplicasManager, broker_id: int, patience_s: float) -> str:
        """Where a replica serves clients; while no controller leads they are asked again until then."""
        while True:
            try:
                found = (await replicas.members()).get(broker_id)
                break
            except EpochMQError:
                if asyncio.get_running_loop().time() >= patience_s:
                    raise
            await asyncio.sleep(LOOK_S)
        if found is None:
            raise AdminError(FaultKind.REFUSED, f"broker {broker_id} is no living member of the SyncStateSet")
        return found

    async def _to_its_end(self, switch: Coroutine[None, None, CompletedSwitchover]) -> CompletedSwitchover:
        """A switch is not left half way because nobody waits for it any more."""
        task = asyncio.get_running_loop().create_task(switch, name="a planned switch")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[CompletedSwitchover]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # told to whoever waited

    def _nothing_to_do(self, reason: str) -> SwitchoverResult:
        role = self._replicas.state_machine.role if self._replicas is not None else None
        return SwitchoverResult(
            moved=False,
            reason=reason,
            master_broker_id=role.master_id if role is not None else None,
            master_address=role.address if role is not None else None,
            master_epoch=role.epoch if role is not None else 0,
        )
