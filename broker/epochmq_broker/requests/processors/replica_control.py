"""Serves the requests by which `epochmq promote`, `fence`, `drain` and `replica` control a replica
(`protocol.replica_control`)."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from epochmq_broker.membership.controlled.replica_control import ReplicaControl
from epochmq_broker.membership.modes.availability_mode import AvailabilityMode
from epochmq_broker.replication.ha.service import HARole, HAService
from epochmq_broker.replication.slave_sync import SlaveSync
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import EpochMQError, RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.replica_control import (
    ReplicaControlCode,
    ReplicaControlStateHeader,
    SettleStoreHeader,
    SwitchoverRequestHeader,
)
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler
from epochmq_store.message_store import MessageStore

log = logging.getLogger(__name__)

TIMEOUT_MAX_MS = 60_000


class ReplicaControlProcessor:
    """Serves the requests of replica control on every broker. Without controllers and without DLedger it
    rejects switchovers and drains."""

    def __init__(
        self,
        control: ReplicaControl,
        store: MessageStore,
        ha: HAService,
        slave_sync: SlaveSync,
        mode: AvailabilityMode,
    ) -> None:
        self._control = control
        self._store = store
        self._ha = ha
        self._copies = slave_sync
        self._mode = mode

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {
            ReplicaControlCode.SWITCHOVER: self.switch_over,
            ReplicaControlCode.SET_CONTROL_STATE: self.set_state,
            ReplicaControlCode.SETTLE_STORE: self.settle_store,
            ReplicaControlCode.COPY_TABLES: self.copy_master_tables,
            ReplicaControlCode.GET_MASTER_LOG_STATE: self.master_log_state,
        }

    async def switch_over(self, connection: RemotingConnection, command: Command) -> Command:
        """Makes another replica the master; responds when it is."""
        header = SwitchoverRequestHeader.decode(command.ext)
        timeout_ms = max(0, min(header.timeout_ms, TIMEOUT_MAX_MS))
        moved = await self._mode.switch_over(header, timeout_ms)
        return response(command, ResponseCode.SUCCESS, header=moved)

    async def set_state(self, connection: RemotingConnection, command: Command) -> Command:
        """Sets or clears fenced and drained; without either, only returns the present state."""
        header = ReplicaControlStateHeader.decode(command.ext)
        if header.drained and not self._mode.can_drain:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                "this broker cannot be drained: it has no controllers that could elect another master",
            )
        if header.drained and self._mode.leads:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                "this broker cannot be drained: it is the master; promote another replica first",
            )
        try:
            await self._control.change_state(fenced=header.fenced, drained=header.drained)
        except OSError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"the new state could not be written to the disk: {error}"
            ) from None
        state = self._control.state
        if header.fenced is not None or header.drained is not None:
            log.info("replica control changed: fenced=%s, drained=%s", state.fenced, state.drained)
        takes = self._mode.takes_messages()
        behind = self._store.replica_log.undispatched_bytes if self._ha.role is HARole.REPLICA else 0
        response_header = ReplicaControlStateHeader(
            fenced=state.fenced, drained=state.drained, takes_messages=takes, undispatched=behind
        )
        return response(command, ResponseCode.SUCCESS, header=response_header)

    async def settle_store(self, connection: RemotingConnection, command: Command) -> Command:
        """Adopts a store that the controllers refuse, or discards its broker id; responds with its id."""
        header = SettleStoreHeader.decode(command.ext)
        timeout_ms = max(0, min(header.timeout_ms, TIMEOUT_MAX_MS))
        broker_id = await self._mode.settle_store(adopt=header.adopt, timeout_ms=timeout_ms)
        done = "adopted" if header.adopt else "discarded"
        log.info("the refused store was %s: it has broker id %d", done, broker_id)
        return response(command, ResponseCode.SUCCESS, header=SettleStoreHeader(broker_id=broker_id))

    async def copy_master_tables(self, connection: RemotingConnection, command: Command) -> Command:
        """Copies the master's tables; responds when they are copied."""
        try:
            await self._copies.refresh()
        except (EpochMQError, OSError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        return response(command, ResponseCode.SUCCESS)

    def master_log_state(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns the end of a master's log and the members of its SyncStateSet."""
        return response(command, ResponseCode.SUCCESS, header=self._mode.master_log_state())
