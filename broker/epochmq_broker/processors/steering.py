"""What `epochmq promote`, `fence` and `drain` ask of a replica (`protocol.steering`)."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from epochmq_broker.ha.service import HAService, Role
from epochmq_broker.replicas.manager import ReplicasManager
from epochmq_broker.replicas.steering import Steering
from epochmq_broker.slave_sync import SlaveSync
from epochmq_broker.store.message_store import MessageStore
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import EpochMQError, RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.steering import (
    HandOverRequestHeader,
    HandOverResponseHeader,
    ShowHeader,
    SteerHeader,
    SteeringCode,
    text_of,
)
from epochmq_protocol.transport.connection import Connection
from epochmq_protocol.transport.dispatch import Handler

log = logging.getLogger(__name__)

TIMEOUT_MAX_MS = 60_000


class SteeringProcessor:
    """Of every broker; without controllers there is nothing to hand over and nothing to drain."""

    def __init__(
        self,
        steering: Steering,
        store: MessageStore,
        ha: HAService,
        copies: SlaveSync,
        replicas: ReplicasManager | None,
    ) -> None:
        self._steering = steering
        self._store = store
        self._ha = ha
        self._copies = copies
        self._replicas = replicas

    def handlers(self) -> Mapping[int, Handler]:
        """Request code → handler."""
        return {
            SteeringCode.HAND_OVER: self.hand_over,
            SteeringCode.STEER: self.steer,
            SteeringCode.COPY_TABLES: self.copy_tables,
            SteeringCode.SHOW: self.show,
        }

    async def hand_over(self, connection: Connection, command: Command) -> Command:
        """Answers when the other replica is the master."""
        header = HandOverRequestHeader.decode(command.ext)
        if self._replicas is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "there are no controllers that could elect another")
        timeout_ms = max(0, min(header.timeout_ms, TIMEOUT_MAX_MS))
        switched = await self._replicas.handover.to(header.broker_id, header.address, timeout_ms)
        answer = HandOverResponseHeader(
            master_broker_id=switched.master_id,
            master_address=switched.master_address,
            master_epoch=switched.master_epoch,
            held_ms=switched.held_ms,
        )
        return response(command, ResponseCode.SUCCESS, header=answer)

    async def steer(self, connection: Connection, command: Command) -> Command:
        """Fences or drains, or only says how it is."""
        header = SteerHeader.decode(command.ext)
        if header.drained and self._replicas is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, "there are no controllers: nobody else is the master"
            )
        if header.drained and self._ha.role is Role.MASTER:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "it is the master: promote another replica first")
        try:
            await self._steering.steer(fenced=header.fenced, drained=header.drained)
        except OSError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"it cannot be kept on disk: {error}") from None
        now = self._steering.now
        if header.fenced is not None or header.drained is not None:
            log.info("steered: %s", now)
        takes = self._store.writable and (self._replicas is None or self._replicas.takes_messages())
        behind = self._store.replica_log.undispatched_bytes if self._ha.role is Role.REPLICA else 0
        answer = SteerHeader(fenced=now.fenced, drained=now.drained, takes=takes, undispatched=behind)
        return response(command, ResponseCode.SUCCESS, header=answer)

    async def copy_tables(self, connection: Connection, command: Command) -> Command:
        """Answers when the master's tables are copied."""
        try:
            await self._copies.refresh()
        except (EpochMQError, OSError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        return response(command, ResponseCode.SUCCESS)

    def show(self, connection: Connection, command: Command) -> Command:
        """Where the log ends and who is in sync, of a master."""
        sync = self._ha.sync_state
        if self._ha.role is not Role.MASTER or sync is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "this broker is not the master")
        answer = ShowHeader(
            broker_id=sync.self_id,
            master_epoch=self._replicas.roles.epoch if self._replicas is not None else 0,
            max_offset=self._store.max_phy_offset,
            members=text_of(sync.members),
            proposed=text_of(sync.proposed or ()),
            learners=text_of(one.broker_id for one in sync.replicas.values() if one.async_learner),
            set_epoch=sync.set_epoch,
        )
        return response(command, ResponseCode.SUCCESS, header=answer)
