"""Runs a switchover: the master passes its mastership to a replica, and no send fails.

1. The replica must be in the SyncStateSet and connected, its lag must be small, and the controllers must be
   ready to elect it.
2. The replica copies the master's tables: topics, groups, offsets.
3. The master holds new sends and POPs (`request_gate`), and those under way complete, until the replica has
   the whole log. The consumer offsets that waited for it advance, and the replica copies them.
   If that takes too long, or the replica disconnects, the master serves sends again, and nothing has changed.
4. The master asks the controllers to elect this replica, and reports in the same request that it is fenced,
   so that they need not wait for its lease to expire. From here on the switchover cannot be undone: if the
   election fails, the controllers elect another member, and the sends are held for that one.
5. The former master relays the held requests, and later ones, to the new master.

RocketMQ's electMaster does only step 4, at once: waiting sends fail, and the new master may lack messages
that were not acknowledged yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from epochmq_broker.membership.controlled.request_gate import HOLD_TIMEOUT_S, GatePhase, RequestGate
from epochmq_broker.membership.controlled.state_machine_types import (
    ControllerReply,
    MasterView,
    QuestionRejected,
)
from epochmq_broker.replication.ha.service import HARole, HAService
from epochmq_broker.replication.ha.sync_state import SyncState
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import EpochMQError, RequestError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.replica_control import ReplicaControlCode, ReplicaControlStateHeader
from epochmq_protocol.transport.client import RemotingClient
from epochmq_store.message_store import MessageStore

log = logging.getLogger(__name__)

LAG_MAX_BYTES: Final = 1 << 20
"""Sends are held only for a replica that lacks at most so many bytes, and has dispatched all but so many."""
HOLD_MAX_MS: Final = 1000
"""How long sends are held at most until the replica has the whole log."""
OTHER_REPLICAS_MS: Final = 100
"""How long the master waits for the other replicas, so that sends which wait for them are acknowledged."""
COPY_TABLES_MS: Final = 500
ELECTION_MS: Final = 3000
NEW_MASTER_READY_MS: Final = 2000
"""How long the new master may take until it has its lease and enough replicas."""
POLL_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class CompletedSwitchover:
    """The outcome of a successful switchover. `held_ms`: how long sends were held."""

    master_id: int
    master_address: str | None
    master_epoch: int
    held_ms: int


class Switchover:
    """The switchovers of one broker, one at a time."""

    def __init__(
        self,
        store: MessageStore,
        ha: HAService,
        gate: RequestGate,
        client: RemotingClient,
        *,
        prepare: Callable[[], None],
        commit_replicated: Callable[[], None],
        election_obstacle: Callable[[int], Awaitable[str | None]],
        elect: Callable[[int], Awaitable[ControllerReply]],
        election_failed: Callable[[], None],
    ) -> None:
        """`prepare` stores in the log what the master has in memory only; `commit_replicated` advances the
        consumer offsets that waited until the replica has it. `election_obstacle` returns why the
        controllers would not elect a replica now, None if they would. `elect` fences this broker and asks the
        leading controller to elect a replica. `election_failed` is called when that has failed."""
        self._store = store
        self._ha = ha
        self._gate = gate
        self._client = client
        self._prepare = prepare
        self._commit_replicated = commit_replicated
        self._obstacle = election_obstacle
        self._elect = elect
        self._election_failed = election_failed
        self._running = False

    async def switch_to(self, broker_id: int, address: str, timeout_ms: int) -> CompletedSwitchover:
        """Passes the mastership to this replica, which serves clients at `address`. Raises RequestError; its
        remark says why, and whether this broker is still the master."""
        if self._running:
            raise _rejected("another switchover is under way")
        self._running = True
        try:
            return await self._switch(broker_id, address, timeout_ms)
        finally:
            self._running = False
            if self._gate.phase is GatePhase.HOLDING:
                self._gate.open()

    async def _switch(self, broker_id: int, address: str, timeout_ms: int) -> CompletedSwitchover:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        await self._wait_until_lag_is_small(self._sync_state_for(broker_id), broker_id, deadline_s)
        await self._wait_until_dispatched(broker_id, address, deadline_s)
        await self._wait_until_electable(broker_id, deadline_s)
        await self._copy_tables(address, COPY_TABLES_MS)
        sync = self._sync_state_for(broker_id)
        began_s = loop.time()
        self._prepare()
        self._gate.hold()
        await self._wait_until_caught_up(sync, broker_id)
        self._commit_replicated()
        # Copies the consumer offsets that were committed meanwhile.
        await self._copy_tables(address, COPY_TABLES_MS)
        log.info(
            "the master passes the mastership to broker %d, which has the log up to %d",
            broker_id,
            self._store.max_phy_offset,
        )
        try:
            view = await self._elect_replica(broker_id)
        except RequestError:
            self._election_failed()
            # The next role of this broker opens the gate or relays the requests.
            await self._gate.wait_until_released(HOLD_TIMEOUT_S)
            raise
        self._gate.relay(view.address or address)
        await self._wait_until_it_serves(view.address or address)
        held_ms = round((loop.time() - began_s) * 1000)
        log.info(
            "broker %s is the master of epoch %d; sends were held for %d ms",
            view.master_id,
            view.epoch,
            held_ms,
        )
        return CompletedSwitchover(view.master_id or 0, view.address, view.epoch, held_ms)

    def _sync_state_for(self, broker_id: int) -> SyncState:
        """The state of the replicas. Raises RequestError unless this one is in sync and this broker is the
        master."""
        sync = self._ha.sync_state
        if self._ha.role is not HARole.MASTER or sync is None:
            raise _rejected("this broker is not the master")
        if broker_id == sync.self_id:
            raise _rejected(f"broker {broker_id} is the master already")
        replica = sync.replicas.get(broker_id)
        if broker_id not in sync.members or replica is None or replica.async_learner:
            members = sorted(sync.members)
            raise _rejected(f"broker {broker_id} is not in sync: the SyncStateSet is {members}")
        return sync

    async def _wait_until_lag_is_small(self, sync: SyncState, broker_id: int, deadline_s: float) -> None:
        loop = asyncio.get_running_loop()
        while (lag_bytes := self._lag_bytes(sync, broker_id)) > LAG_MAX_BYTES:
            if loop.time() > deadline_s:
                raise _rejected(f"broker {broker_id} still lacks {lag_bytes} bytes of the log")
            await asyncio.sleep(POLL_S * 10)

    async def _wait_until_dispatched(self, broker_id: int, address: str, deadline_s: float) -> None:
        """Waits until the replica has dispatched almost all of its log. After catching up it may have most of
        it in no consume queue yet, and sends would be held for that. RocketMQ's brokers do not report it."""
        loop = asyncio.get_running_loop()
        while address:
            try:
                response = await self._client.call(
                    address, request(ReplicaControlCode.SET_CONTROL_STATE), COPY_TABLES_MS
                )
            except EpochMQError as error:
                log.warning("the replica at %s did not report how much it has dispatched: %s", address, error)
                return
            if response.code != ResponseCode.SUCCESS:
                return
            undispatched = ReplicaControlStateHeader.decode(response.ext).undispatched or 0
            if undispatched <= LAG_MAX_BYTES:
                return
            if loop.time() > deadline_s:
                raise _rejected(f"broker {broker_id} still has to dispatch {undispatched} bytes of its log")
            await asyncio.sleep(POLL_S * 10)

    async def _wait_until_electable(self, broker_id: int, deadline_s: float) -> None:
        """Waits until the controllers would elect the replica. A single late heartbeat on a busy machine must
        not make the election fail later."""
        loop = asyncio.get_running_loop()
        while (election_obstacle := await self._obstacle(broker_id)) is not None:
            if loop.time() > deadline_s:
                raise _rejected(f"the controllers would not elect broker {broker_id}: {election_obstacle}")
            await asyncio.sleep(POLL_S * 50)

    async def _wait_until_caught_up(self, sync: SyncState, broker_id: int) -> None:
        """Waits until the replica has the whole log, and then shortly for the other replicas."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while lag_bytes := self._lag_bytes(sync, broker_id):
            if loop.time() > began_s + HOLD_MAX_MS / 1000:
                raise _rejected(
                    f"broker {broker_id} still lacked {lag_bytes} bytes of the log after {HOLD_MAX_MS} ms"
                )
            await asyncio.sleep(POLL_S)
        while not sync.replicated_to_all(self._store.max_phy_offset):
            if loop.time() > began_s + OTHER_REPLICAS_MS / 1000:
                break
            await asyncio.sleep(POLL_S)
        await asyncio.sleep(0)  # lets the sends that are acknowledged now be answered

    def _lag_bytes(self, sync: SyncState, broker_id: int) -> int:
        if self._ha.sync_state is not sync:
            raise _rejected("this broker is not the master any more")
        replica = sync.replicas.get(broker_id)
        if replica is None:
            raise _rejected(f"broker {broker_id} is not connected any more")
        return self._store.max_phy_offset - replica.ack_offset

    async def _wait_until_it_serves(self, address: str) -> None:
        """Waits until the new master accepts messages. RocketMQ's brokers do not report it."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + NEW_MASTER_READY_MS / 1000
        while (left_s := deadline_s - loop.time()) > 0:
            try:
                response = await self._client.call(
                    address, request(ReplicaControlCode.SET_CONTROL_STATE), left_s * 1000
                )
            except EpochMQError as error:
                log.warning(
                    "the new master at %s did not report whether it accepts messages: %s", address, error
                )
                return
            if (
                response.code != ResponseCode.SUCCESS
                or ReplicaControlStateHeader.decode(response.ext).takes_messages
            ):
                return
            await asyncio.sleep(POLL_S * 5)
        log.warning("the new master at %s does not accept messages yet", address)

    async def _copy_tables(self, address: str, timeout_ms: int) -> None:
        """Has the replica copy the tables now. A failure is only logged: a replica copies them every
        second."""
        if not address:
            return
        try:
            command = request(ReplicaControlCode.COPY_TABLES)
            response: Command = await self._client.call(address, command, timeout_ms)
        except EpochMQError as error:
            log.warning("the replica at %s did not copy the tables: %s", address, error)
            return
        if response.code != ResponseCode.SUCCESS:
            log.warning("the replica at %s did not copy the tables: %s", address, response.remark)

    async def _elect_replica(self, broker_id: int) -> MasterView:
        """Elects the replica. From here on this broker is not the master, or only under another epoch."""
        try:
            async with asyncio.timeout(ELECTION_MS / 1000):
                reply = await self._elect(broker_id)
        except TimeoutError:
            raise _rejected(
                f"the controllers did not respond within {ELECTION_MS} ms; they elect a master by themselves"
            ) from None
        if not isinstance(reply, MasterView):
            why = (
                reply.remark if isinstance(reply, QuestionRejected) else getattr(reply, "why", "no response")
            )
            raise _rejected(
                f"the controllers did not elect broker {broker_id}: {why}; they elect another member"
            )
        if reply.master_id != broker_id:
            raise _rejected(f"the controllers elected broker {reply.master_id} instead of {broker_id}")
        return reply


def _rejected(why: str) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, why)
