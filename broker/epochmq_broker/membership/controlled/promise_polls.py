"""Carries the promises between the brokers of a group (`write_promises`): a replica sends them to its master
every `POLL_MS`, and a master counts them."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Callable
from typing import Final

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.config.clock import boot_ms
from epochmq_broker.membership.controlled.background_tasks import BackgroundTasks
from epochmq_broker.membership.controlled.state_machine import ReplicaStateMachine
from epochmq_broker.membership.controlled.state_machine_types import (
    MasterMayHaveChanged,
    ReplicaInput,
    TimeAdvanced,
)
from epochmq_broker.membership.controlled.write_lease import WriteLease, WriteRight
from epochmq_broker.membership.controlled.write_promises import (
    MEMBERS_MIN,
    POLL_MS,
    PROMISE_MS,
    MasterPromises,
    Promised,
    PromiseRequest,
)
from epochmq_broker.replication.ha.service import HAService
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import EpochMQError, RequestError
from epochmq_protocol.frame import request
from epochmq_protocol.replica_control import ReplicaControlCode
from epochmq_protocol.transport.client import RemotingClient
from epochmq_protocol.write_promise import STATEMENT_MS, WritePromiseRequestHeader, WritePromiseResponseHeader

log = logging.getLogger(__name__)

FAILED_PAUSE_S: Final = 0.2
"""How long a replica waits after a request that got no response."""
UNKNOWN_PAUSE_S: Final = 5.0
"""How long it waits after a master did not know the request: RocketMQ's brokers and earlier releases."""


class PromisePolls:
    """The promises of one broker: those that it gives as a replica, and those that it gets as a master."""

    def __init__(
        self,
        live: LiveConfig,
        client: RemotingClient,
        ha: HAService,
        lease: WriteLease,
        machine: Callable[[], ReplicaStateMachine | None],
        feed: Callable[[ReplicaInput], None],
        on_right: Callable[[], None],
    ) -> None:
        """`on_right` is called when this master may write again because of promises."""
        self._live = live
        self._client = client
        self._ha = ha
        self._lease = lease
        self._machine = machine
        self._feed = feed
        self._on_right = on_right
        self._of_replicas = MasterPromises(secrets.token_hex(8))
        self._tasks = BackgroundTasks()
        self._timer: asyncio.TimerHandle | None = None
        self._is_asking = False
        self._not_before_s = 0.0
        """When the next request is due at the earliest, on the clock of the loop."""
        self._failed_at: str | None = None
        """The address of the master that did not know the last request."""

    # A replica

    def start(self) -> None:
        """Begins to send promises; needs a running loop."""
        self._timer = asyncio.get_running_loop().call_later(POLL_MS / 1000, self._tick)

    async def stop(self) -> None:
        """Ends it."""
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.stop()

    def _tick(self) -> None:
        self.start()
        self.poll()

    def poll(self) -> None:
        """Reads the clock of the promises, which counts only when it is read, and polls the master, unless a
        request to it is under way."""
        machine, loop = self._machine(), asyncio.get_running_loop()
        if machine is None:
            return
        now_ms = loop.time() * 1000
        machine.promises.read(now_ms)
        role, identity = machine.role, machine.identity
        if role is None or role.leads or identity is None or not role.address or self._is_asking:
            return
        if loop.time() < self._not_before_s and role.address == self._failed_at:
            return
        if machine.follows is not None:
            number, known_epoch = machine.promises.promise(role.epoch, now_ms), role.epoch
        elif (elected := machine.elected_epoch) is not None:
            number, known_epoch = 0, elected
        else:
            return
        self._is_asking = True
        promise = PromiseRequest(identity.id, role.epoch, number, known_epoch)
        self._tasks.start(self._send(machine, role.address, promise))

    async def _send(self, machine: ReplicaStateMachine, address: str, promise: PromiseRequest) -> None:
        loop = asyncio.get_running_loop()
        header = WritePromiseRequestHeader(
            broker_name=self._live.current.broker_name,
            broker_id=promise.broker_id,
            epoch=promise.epoch,
            number=promise.number,
            known_epoch=promise.known_epoch,
        )
        try:
            response = await self._client.call(
                address, request(ReplicaControlCode.WRITE_PROMISE, header), PROMISE_MS
            )
            if response.code != ResponseCode.SUCCESS:
                self._failed_at, self._not_before_s = address, loop.time() + UNKNOWN_PAUSE_S
                return
            answer = WritePromiseResponseHeader.decode(response.ext)
        except EpochMQError:
            self._failed_at, self._not_before_s = address, loop.time() + FAILED_PAUSE_S
            return
        finally:
            self._is_asking = False
        self._failed_at = None
        to = Promised(answer.process, promise.epoch)
        if answer.number:
            machine.promises.received(to, answer.number, loop.time() * 1000, may_write=answer.may_write)
        if answer.has_stopped:
            machine.promises.released(to)
            self._feed(TimeAdvanced())

    # The master

    def answer(self, header: WritePromiseRequestHeader) -> WritePromiseResponseHeader:
        """Takes a promise of a replica. Raises RequestError if it is meant for another group."""
        name = self._live.current.broker_name
        if header.broker_name != name:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"brokerName={header.broker_name}: this broker belongs to {name}"
            )
        promise = PromiseRequest(header.broker_id, header.epoch, header.number, header.known_epoch)
        found = self._of_replicas.answer(self._lease, promise, boot_ms())
        if promise.known_epoch > promise.epoch:
            self._feed(MasterMayHaveChanged())
        self.count()
        return WritePromiseResponseHeader(
            process=self._of_replicas.process,
            number=found.number,
            has_stopped=found.has_stopped,
            may_write=found.number > 0 and self._lease.is_open(boot_ms()),
        )

    def count(self) -> None:
        """Counts the promises of all possible successors, after one has arrived or the set has changed."""
        machine, sync, lease = self._machine(), self._ha.sync_state, self._lease
        if lease.epoch is None:
            return
        knows_set = machine is not None and machine.knows_set_of(lease.epoch)
        was_open = lease.is_open(boot_ms())
        until_ms = self._of_replicas.until_ms(sync) if knows_set and sync is not None else -math.inf
        lease.record_promises(until_ms)
        if not was_open and lease.is_open(boot_ms()):
            self._on_right()

    def waits_for(self) -> str | None:
        """Why this master, which has no lease, may not write by promises, and what it waits for; None if it
        may write, or is no master."""
        lease, sync, now_ms = self._lease, self._ha.sync_state, boot_ms()
        if lease.epoch is None or sync is None or lease.right(now_ms) is not WriteRight.NONE:
            return None
        if lease.fenced or lease.promises_ended:
            return "this master has been replaced, or hands its place over"
        if lease.stated_ms == -math.inf:
            return "waits for the controllers: they have granted no lease"
        if len(sync.members) < max(MEMBERS_MIN, sync.recorded_least):
            return (
                "waits for the controllers: the SyncStateSet has too few members "
                f"({len(sync.members)}) to go on without them"
            )
        if lease.stated_ms + STATEMENT_MS <= now_ms:
            return (
                "waits for the controllers: it has not reached them for "
                f"{STATEMENT_MS // 60_000} minutes, and goes on without them no longer"
            )
        missing = sorted(self._of_replicas.missing(sync, now_ms))
        return (
            f"waits for the controllers: brokers {missing} of the SyncStateSet do not confirm this master, "
            "and only the controllers can remove them"
        )
