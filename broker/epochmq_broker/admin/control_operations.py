"""Serves the operations of the admin API that control a replica: switchover, fence and drain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from epochmq_broker.admin.broker_view import BrokerView
from epochmq_broker.admin.dependencies import AdminApiDependencies
from epochmq_broker.admin.leadership_operations import LeadershipOperations
from epochmq_broker.admin.switchover import SwitchoverOperations
from epochmq_broker.membership.dledger.leadership import Leadership
from epochmq_broker.replication.ha.service import HARole
from epochmq_protocol.admin_api import results
from epochmq_protocol.admin_api.messages import AdminError, FaultKind
from epochmq_protocol.admin_api.operations import (
    AdminArguments,
    AdminOperation,
    ChangeMembersArguments,
    HandoverArguments,
    PromoteArguments,
)
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import request
from epochmq_protocol.replica_control import ReplicaControlCode, ReplicaControlStateHeader
from epochmq_protocol.transport.admin_socket import AdminOperationHandler
from epochmq_protocol.transport.in_process_calls import InProcessCalls

POLL_INTERVAL_S: Final = 0.05
RESPONSE_MS: Final = 100
"""The part of an operation's time that remains for its response."""


class ControlOperations:
    """The control operations of one broker. `stop` waits for a running switchover."""

    def __init__(self, components: AdminApiDependencies, view: BrokerView, calls: InProcessCalls) -> None:
        self._components = components
        self._view = view
        self._calls = calls
        self._switchover: SwitchoverOperations | LeadershipOperations
        self._members: Mapping[str, AdminOperationHandler] = {}
        if components.dledger is None:
            self._switchover = SwitchoverOperations(
                components.live, components.ha, components.client, components.replicas
            )
        else:
            peers = LeadershipOperations(
                components.dledger.commit_log, components.dledger.leadership, components.client
            )
            self._switchover = peers
            self._members = {
                AdminOperation.CHANGE_MEMBERS: AdminOperationHandler(
                    ChangeMembersArguments, peers.change_members
                )
            }

    async def stop(self) -> None:
        """Waits for a running switchover."""
        await self._switchover.stop()

    def operations(self) -> Mapping[str, AdminOperationHandler]:
        """Operation → handler."""
        nothing = AdminArguments
        return {
            AdminOperation.PROMOTE: AdminOperationHandler(PromoteArguments, self._promote),
            AdminOperation.HANDOVER: AdminOperationHandler(HandoverArguments, self._handover),
            AdminOperation.FENCE: AdminOperationHandler(nothing, self._fence),
            AdminOperation.UNFENCE: AdminOperationHandler(nothing, self._unfence),
            AdminOperation.DRAIN: AdminOperationHandler(nothing, self._drain),
            AdminOperation.UNDRAIN: AdminOperationHandler(nothing, self._undrain),
            AdminOperation.ADOPT_STORE: AdminOperationHandler(nothing, self._adopt_store),
            AdminOperation.DISCARD_STORE: AdminOperationHandler(nothing, self._discard_store),
            **self._members,
        }

    async def _promote(self, arguments: PromoteArguments, timeout_ms: float) -> results.SwitchoverResult:
        return await self._switchover.promote(arguments.broker_id, timeout_ms)

    async def _handover(self, arguments: HandoverArguments, timeout_ms: float) -> results.SwitchoverResult:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        switched = await self._switchover.handover(timeout_ms)
        left_ms = (deadline_s - loop.time()) * 1000 - RESPONSE_MS
        await self._switchover.linger(min(arguments.linger_ms, left_ms))
        return switched

    async def _fence(self, _: AdminArguments, timeout_ms: float) -> results.ReplicaControlResult:
        return await self._set_control_state(fenced=True)

    async def _unfence(self, _: AdminArguments, timeout_ms: float) -> results.ReplicaControlResult:
        return await self._set_control_state(fenced=False)

    async def _drain(self, _: AdminArguments, timeout_ms: float) -> results.ReplicaControlResult:
        """Gives a mastership to another replica; then this replica leaves the SyncStateSet, or in a DLedger
        group leaves the leadership to the others."""
        switched = None
        if self._components.dledger is not None:
            return await self._drain_peer(self._components.dledger.leadership, timeout_ms)
        if self._components.replicas is not None and self._components.ha.role is HARole.MASTER:
            switched = await self._switchover.handover(timeout_ms / 2)
            if self._components.ha.role is HARole.MASTER and not switched.moved:
                raise AdminError(FaultKind.REFUSED, f"no other replica can become master: {switched.reason}")
            await self._wait_until(lambda: self._components.ha.role is HARole.REPLICA)
        done = await self._set_control_state(drained=True)
        await self._wait_until(self._is_removed)
        return results.ReplicaControlResult(
            fenced=done.fenced, drained=done.drained, takes_messages=done.takes_messages, switched=switched
        )

    async def _drain_peer(self, leadership: Leadership, timeout_ms: float) -> results.ReplicaControlResult:
        switched = None
        if leadership.leads:
            switched = await self._switchover.handover(timeout_ms / 2)
            if leadership.leads and not switched.moved:
                raise AdminError(FaultKind.REFUSED, f"no other replica can become master: {switched.reason}")
            await self._wait_until(lambda: not leadership.leads)
        done = await self._set_control_state(drained=True)
        return results.ReplicaControlResult(
            fenced=done.fenced, drained=done.drained, takes_messages=done.takes_messages, switched=switched
        )

    def _is_removed(self) -> bool:
        """Whether the master has removed this replica permanently. A RocketMQ master does not report that;
        then the controllers' SyncStateSet decides."""
        broker_id, polled = self._view.broker_id(), self._view.poller.latest
        if polled is not None and broker_id is not None:
            return polled.is_permanent_learner(broker_id)
        return self._view.poller.master_is_rocketmq and broker_id not in self._view.sync_state_set()[0]

    async def _undrain(self, _: AdminArguments, timeout_ms: float) -> results.ReplicaControlResult:
        return await self._set_control_state(drained=False)

    async def _adopt_store(self, _: AdminArguments, timeout_ms: float) -> results.SettledStore:
        return await self._settle_store(timeout_ms, adopt=True)

    async def _discard_store(self, _: AdminArguments, timeout_ms: float) -> results.SettledStore:
        return await self._settle_store(timeout_ms, adopt=False)

    async def _settle_store(self, timeout_ms: float, *, adopt: bool) -> results.SettledStore:
        """AdminError REFUSED if the controllers do not refuse the store, or still refuse it."""
        left_ms = max(0, int(timeout_ms) - RESPONSE_MS)
        try:
            broker_id = await self._components.mode.settle_store(adopt=adopt, timeout_ms=left_ms)
        except RequestError as error:
            raise AdminError(FaultKind.REFUSED, error.remark) from None
        return results.SettledStore(broker_id=broker_id)

    async def _set_control_state(
        self, *, fenced: bool | None = None, drained: bool | None = None
    ) -> results.ReplicaControlResult:
        command = request(
            ReplicaControlCode.SET_CONTROL_STATE, ReplicaControlStateHeader(fenced=fenced, drained=drained)
        )
        response = ReplicaControlStateHeader.decode((await self._calls.call(command)).ext)
        return results.ReplicaControlResult(
            fenced=response.fenced is True,
            drained=response.drained is True,
            takes_messages=response.takes_messages is True,
        )

    async def _wait_until(self, holds: Callable[[], bool]) -> None:
        """Waits for a condition; the operation's deadline ends the wait."""
        while True:
            if holds():
                return
            await asyncio.sleep(POLL_INTERVAL_S)
