"""What `epochmq promote`, `fence` and `drain` ask of a replica (`protocol.replica_control`)."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from epochmq_broker.ha.service import HARole, HAService
from epochmq_broker.replicas.manager import ReplicasManager
from epochmq_broker.replicas.replica_control import ReplicaControl
from epochmq_broker.slave_sync import SlaveSync
from epochmq_broker.store.message_store import MessageStore
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import EpochMQError, RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.replica_control import (
    MasterLogStateHeader,
    ReplicaControlCode,
    ReplicaControlStateHeader,
    SwitchoverRequestHeader,
    SwitchoverResponseHeader,
    format_broker_ids,
)
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler

log = logging.getLogger(__name__)

TIMEOUT_MAX_MS = 60_000


class ReplicaControlProcessor:
    """Of every broker; without controllers there is nothing to hand over and nothing to drain."""

    def __init__(
        self,
        steering: ReplicaControl,
        store: MessageStore,
        ha: HAService,
        slave_sync: SlaveSync,
        replicas: ReplicasManager | None,
    ) -> None:
        self._steering = steering
        self._store = store
        self._ha = ha
        self._copies = slave_sync
        self._replicas = replicas

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {
            ReplicaControlCode.SWITCHOVER: self.hand_over,
            ReplicaControlCode.SET_CONTROL_STATE: self.steer,
            ReplicaControlCode.COPY_TABLES: self.copy_tables,
            ReplicaControlCode.GET_MASTER_LOG_STATE: self.show,
        }

    async def hand_over(self, connection: RemotingConnection, command: Command) -> Command:
        """Answers when the other replica is the master."""
        header = SwitchoverRequestHeader.decode(command.ext)
        if self._replicas is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "there are no controllers that could elect another")
        timeout_ms = max(0, min(header.timeout_ms, TIMEOUT_MAX_MS))
        switched = await self._replicas.switchover.to(header.broker_id, header.address, timeout_ms)
        answer = SwitchoverResponseHeader(
            master_broker_id=switched.master_id,
            master_address=switched.master_address,
            master_epoch=switched.master_epoch,
            held_ms=switched.held_ms,
        )
        return response(command, ResponseCode.SUCCESS, header=answer)

    async def steer(self, connection: RemotingConnection, command: Command) -> Command:
        """Fences or drains, or only says how it is."""
        header = ReplicaControlStateHeader.decode(command.ext)
        if header.drained and self._replicas is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, "there are no controllers: nobody else is the master"
            )
        if header.drained and self._ha.role is HARole.MASTER:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "it is the master: promote another replica first")
        try:
            await self._steering.steer(fenced=header.fenced, drained=header.drained)
        except OSError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"it cannot be kept on disk: {error}") from None
        now = self._steering.now
        if header.fenced is not None or header.drained is not None:
            log.info("steered: %s", now)
        takes = self._store.state.writable and (self._replicas is None or self._replicas.takes_messages())
        behind = self._store.replica_log.undispatched_bytes if self._ha.role is HARole.REPLICA else 0
        answer = ReplicaControlStateHeader(
            fenced=now.fenced, drained=now.drained, takes_messages=takes, undispatched=behind
        )
        return response(command, ResponseCode.SUCCESS, header=answer)

    async def copy_tables(self, connection: RemotingConnection, command: Command) -> Command:
        """Answers when the master's tables are copied."""
        try:
            await self._copies.refresh()
        except (EpochMQError, OSError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        return response(command, ResponseCode.SUCCESS)

    def show(self, connection: RemotingConnection, command: Command) -> Command:
        """Where the log ends and who is in sync, of a master."""
        sync = self._ha.sync_state
        if self._ha.role is not HARole.MASTER or sync is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "this broker is not the master")
        answer = MasterLogStateHeader(
            broker_id=sync.self_id,
            master_epoch=self._replicas.role_transitions.epoch if self._replicas is not None else 0,
            max_offset=self._store.max_phy_offset,
            members=format_broker_ids(sync.members),
            proposed=format_broker_ids(sync.proposed or ()),
            learners=format_broker_ids(one.broker_id for one in sync.replicas.values() if one.async_learner),
            set_epoch=sync.set_epoch,
        )
        return response(command, ResponseCode.SUCCESS, header=answer)
