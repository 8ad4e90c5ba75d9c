"""A planned switch: the master gives its mastership to a replica, and no send fails.

1. the replica is in the SyncStateSet, connected, lacks little, and the controllers would elect it;
2. it copies the tables: topics, groups, offsets;
3. sends are held (`gate`), those under way end as ever, until the replica has the log to its last byte. When
   that takes too long, or the replica is gone, sends go on here and nothing has happened;
4. the controllers are asked to elect this replica, and told in the same request that this broker is fenced:
   nobody need wait for its lease to run out. From here on there is no way back: if the election fails, the
   controllers elect whom they can, and sends are held for that one;
5. what was held is passed on to the new master, and what comes later too.

RocketMQ's electMaster does only the fourth step, at once: senders that wait are cut off, and the next master
may lack what is not acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from epochmq_broker.ha.service import HARole, HAService
from epochmq_broker.ha.sync_state import SyncState
from epochmq_broker.replicas.request_gate import HOLD_TIMEOUT_S, GatePhase, RequestGate
from epochmq_broker.replicas.state_machine_types import ControllerReply, MasterView, QuestionRejected
from epochmq_broker.store.message_store import MessageStore
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import EpochMQError, RequestError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.replica_control import ReplicaControlCode, ReplicaControlStateHeader
from epochmq_protocol.transport.client import RemotingClient

log = logging.getLogger(__name__)

NEAR_BYTES: Final = 1 << 20
"""Sends are held only for a replica that lacks less than this, and has less of it in no queue yet."""
HOLD_MS: Final = 1000
"""How long sends are held for the replica to get the rest."""
OTHERS_MS: Final = 100
"""How long the senders are waited for whose messages the chosen replica has and another lacks."""
TABLES_MS: Final = 500
ELECTION_MS: Final = 3000
READY_MS: Final = 2000
"""How long the new master may take to get its lease and its replicas."""
LOOK_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class CompletedSwitchover:
    """How it went."""

    master_id: int
    master_address: str | None
    master_epoch: int
    held_ms: int


class Switchover:
    """The planned switches of one broker, one at a time."""

    def __init__(
        self,
        store: MessageStore,
        ha: HAService,
        gate: RequestGate,
        client: RemotingClient,
        *,
        election_obstacle: Callable[[int], Awaitable[str | None]],
        elect: Callable[[int], Awaitable[ControllerReply]],
        given_up: Callable[[], None],
    ) -> None:
        """`obstacle` says why the controllers would not elect a replica now, None when they would; `elect`
        ends this broker's writing under its epoch and asks the leading controller to elect a replica;
        `given_up` is called when that has failed."""
        self._store = store
        self._ha = ha
        self._gate = gate
        self._client = client
        self._obstacle = election_obstacle
        self._elect = elect
        self._given_up = given_up
        self._running = False

    async def to(self, broker_id: int, address: str, timeout_ms: int) -> CompletedSwitchover:
        """Gives the mastership to this replica, which serves clients at `address`. RequestError when that
        cannot be; its remark says whether this broker is still the master."""
        if self._running:
            raise _refused("a switch is under way")
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
        await self._until_near(self._sync_with(broker_id), broker_id, deadline_s)
        await self._until_dispatched(broker_id, address, deadline_s)
        await self._until_electable(broker_id, deadline_s)
        await self._copy_tables(address, TABLES_MS)
        sync = self._sync_with(broker_id)
        began_s = loop.time()
        self._gate.hold()
        await self._until_complete(sync, broker_id)
        await self._copy_tables(address, OTHERS_MS)  # what consumers have read meanwhile
        log.info(
            "gives the mastership to broker %d: it has all up to %d", broker_id, self._store.max_phy_offset
        )
        try:
            view = await self._elected(broker_id)
        except RequestError:
            self._given_up()
            await self._gate.wait_until_released(
                HOLD_TIMEOUT_S
            )  # this broker gets another role, which opens it or relays
            raise
        self._gate.relay(view.address or address)
        await self._until_it_takes(view.address or address)
        held_ms = round((loop.time() - began_s) * 1000)
        log.info(
            "broker %s is master of epoch %d; sends were held %d ms", view.master_id, view.epoch, held_ms
        )
        return CompletedSwitchover(view.master_id or 0, view.address, view.epoch, held_ms)

    def _sync_with(self, broker_id: int) -> SyncState:
        """What is known of the replicas. RequestError unless this one could take over now."""
        sync = self._ha.sync_state
        if self._ha.role is not HARole.MASTER or sync is None:
            raise _refused("this broker is not the master")
        if broker_id == sync.self_id:
            raise _refused(f"broker {broker_id} is the master already")
        replica = sync.replicas.get(broker_id)
        if broker_id not in sync.members or replica is None or replica.async_learner:
            members = sorted(sync.members)
            raise _refused(f"broker {broker_id} is not in sync: the SyncStateSet is {members}")
        return sync

    async def _until_near(self, sync: SyncState, broker_id: int, deadline_s: float) -> None:
        loop = asyncio.get_running_loop()
        while (lack := self._lack(sync, broker_id)) > NEAR_BYTES:
            if loop.time() > deadline_s:
                raise _refused(f"broker {broker_id} still lacks {lack} bytes")
            await asyncio.sleep(LOOK_S * 10)

    async def _until_dispatched(self, broker_id: int, address: str, deadline_s: float) -> None:
        """One that has just caught up may have most of it in no queue yet, and sends would wait for that. A
        broker of RocketMQ's does not say."""
        loop = asyncio.get_running_loop()
        while address:
            try:
                answer = await self._client.call(
                    address, request(ReplicaControlCode.SET_CONTROL_STATE), TABLES_MS
                )
            except EpochMQError as error:
                log.warning("%s does not say how much it has dispatched: %s", address, error)
                return
            if answer.code != ResponseCode.SUCCESS:
                return
            behind = ReplicaControlStateHeader.decode(answer.ext).undispatched or 0
            if behind <= NEAR_BYTES:
                return
            if loop.time() > deadline_s:
                raise _refused(f"broker {broker_id} still has {behind} bytes of its log in no queue")
            await asyncio.sleep(LOOK_S * 10)

    async def _until_electable(self, broker_id: int, deadline_s: float) -> None:
        """What a busy machine missed for a moment, such as a heartbeat, must not spoil an election later."""
        loop = asyncio.get_running_loop()
        while (election_obstacle := await self._obstacle(broker_id)) is not None:
            if loop.time() > deadline_s:
                raise _refused(f"the controllers would not elect broker {broker_id}: {election_obstacle}")
            await asyncio.sleep(LOOK_S * 50)

    async def _until_complete(self, sync: SyncState, broker_id: int) -> None:
        """The replica has everything, and so, for a moment's patience, have the others."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while lack := self._lack(sync, broker_id):
            if loop.time() > began_s + HOLD_MS / 1000:
                raise _refused(f"broker {broker_id} still lacked {lack} bytes after {HOLD_MS} ms")
            await asyncio.sleep(LOOK_S)
        while not sync.replicated_to_all(self._store.max_phy_offset):
            if loop.time() > began_s + OTHERS_MS / 1000:
                break
            await asyncio.sleep(LOOK_S)
        await asyncio.sleep(0)  # answers that are due now are given

    def _lack(self, sync: SyncState, broker_id: int) -> int:
        if self._ha.sync_state is not sync:
            raise _refused("this broker is not the master any more")
        replica = sync.replicas.get(broker_id)
        if replica is None:
            raise _refused(f"broker {broker_id} is not connected any more")
        return self._store.max_phy_offset - replica.ack_offset

    async def _until_it_takes(self, address: str) -> None:
        """Until the new master takes messages, as far as that can be found out."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + READY_MS / 1000
        while (left_s := deadline_s - loop.time()) > 0:
            try:
                answer = await self._client.call(
                    address, request(ReplicaControlCode.SET_CONTROL_STATE), left_s * 1000
                )
            except EpochMQError as error:
                log.warning("%s does not say whether it takes messages: %s", address, error)
                return
            if (
                answer.code != ResponseCode.SUCCESS
                or ReplicaControlStateHeader.decode(answer.ext).takes_messages
            ):
                return
            await asyncio.sleep(LOOK_S * 5)
        log.warning("%s takes no messages yet", address)

    async def _copy_tables(self, address: str, timeout_ms: int) -> None:
        """Best effort: a replica copies them every second anyway."""
        if not address:
            return
        try:
            command = request(ReplicaControlCode.COPY_TABLES)
            answer: Command = await self._client.call(address, command, timeout_ms)
        except EpochMQError as error:
            log.warning("%s does not copy the tables now: %s", address, error)
            return
        if answer.code != ResponseCode.SUCCESS:
            log.warning("%s does not copy the tables now: %s", address, answer.remark)

    async def _elected(self, broker_id: int) -> MasterView:
        """The outcome. From here on this broker is the master no more, or will be under another epoch."""
        try:
            async with asyncio.timeout(ELECTION_MS / 1000):
                reply = await self._elect(broker_id)
        except TimeoutError:
            raise _refused(
                f"the controllers did not answer within {ELECTION_MS} ms; they elect a master"
            ) from None
        if not isinstance(reply, MasterView):
            why = reply.remark if isinstance(reply, QuestionRejected) else getattr(reply, "why", "no answer")
            raise _refused(
                f"the controllers did not elect broker {broker_id}: {why}; they elect whom they can"
            )
        if reply.master_id != broker_id:
            raise _refused(f"the controllers elected broker {reply.master_id}")
        return reply


def _refused(why: str) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, why)
