"""Has the controllers elect the successor of this master, for a switchover.

Under leases this broker fences itself in the same step in which it asks: EpochMQ's controllers elect some
replica for a fenced master in any case. RocketMQ's controllers may elect none, and this broker must then be
able to stay the master; it does not fence itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from epochmq_broker.config.clock import boot_ms
from epochmq_broker.membership.controlled.background_tasks import BackgroundTasks
from epochmq_broker.membership.controlled.controller_client import ControllerClient
from epochmq_broker.membership.controlled.heartbeats import ControllerHeartbeats
from epochmq_broker.membership.controlled.state_machine_types import (
    ControllerReply,
    ElectMasterQuestion,
    ReplyLost,
)
from epochmq_broker.membership.controlled.write_lease import WriteLease, WriteRight
from epochmq_protocol.errors import ConnectError

FENCE_HEARTBEAT_TIMEOUT_MS: Final = 1000
NO_LEADER: Final = "no leading controller is known"


class SuccessorElection:
    """The elections that one broker asks for as a master. `leader` returns the leading controller's address,
    None if it is unknown."""

    def __init__(
        self,
        controllers: ControllerClient,
        leader: Callable[[], str | None],
        lease: WriteLease,
        heartbeats: ControllerHeartbeats,
        tasks: BackgroundTasks,
    ) -> None:
        self._controllers = controllers
        self._leader = leader
        self._lease = lease
        self._heartbeats = heartbeats
        self._tasks = tasks

    async def obstacle(self, broker_id: int) -> str | None:
        """Why the controllers would not elect this replica now; None if they would."""
        leader = self._leader()
        return NO_LEADER if leader is None else await self._controllers.election_obstacle(leader, broker_id)

    async def members(self) -> dict[int, str]:
        """Broker id → address of the living members of the SyncStateSet, as the leading controller has them.
        Raises EpochMQError if it does not respond."""
        leader = self._leader()
        if leader is None:
            raise ConnectError(NO_LEADER)
        return await self._controllers.members(leader)

    async def elect(self, broker_id: int) -> ControllerReply:
        """Fences this broker, if the leading controller grants leases, and asks it to elect the replica."""
        leader, epoch = self._leader(), self._lease.epoch
        if leader is None or self._lease.right(boot_ms()) not in (WriteRight.LEASE, WriteRight.NOT_NEEDED):
            # Without a lease the leader may be away, and this broker would be fenced for nothing.
            return ReplyLost(NO_LEADER)
        if self._lease.leader_grants is False:
            epoch = None
        else:
            self._lease.fence()
        self._heartbeats.naming_successor = True
        try:
            question = ElectMasterQuestion(broker_id, designate=True, fenced_epoch=epoch)
            return await self._controllers.ask(leader, question)
        finally:
            self._heartbeats.naming_successor = False

    def report_fence(self) -> None:
        """After a failed election: tells the controllers by a heartbeat that this broker is fenced, so that
        they elect any member."""
        if self._lease.fenced:
            self._tasks.start(self._heartbeats.send_once(FENCE_HEARTBEAT_TIMEOUT_MS))
