"""Sends that wait for replicas (GroupTransferService).

A send that waits costs one entry in a queue; an acknowledgement answers all it covers at once. Nobody waits
for anybody else: a send whose replicas are silent is answered FLUSH_SLAVE_TIMEOUT after slaveTimeout, the
others as soon as theirs have spoken.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from epochmq_broker.ha.quorum import ALL, needed, reached
from epochmq_broker.ha.settings import HASettings
from epochmq_broker.ha.sync_state import SyncState
from epochmq_broker.store.statuses import PutStatus

WAITERS_MAX = 1 << 17
"""Sends that may wait; more are answered FLUSH_SLAVE_TIMEOUT at once."""

Done = Callable[[PutStatus], None]


class Acks:
    """The waiting sends of one mastership. `alive_replicas`: how many brokers of the group the nameserver
    knows, None while nobody asked it."""

    def __init__(
        self,
        sync: SyncState,
        settings: HASettings,
        loop: asyncio.AbstractEventLoop,
        *,
        controlled: bool,
        end: Callable[[], int],
        may_acknowledge: Callable[[], bool] = lambda: True,
    ) -> None:
        """`end` says where the log ends, `controlled` that a controller decides who is in sync. While
        `may_acknowledge` says no, nobody is told PUT_OK; `settle` looks again."""
        self.alive_replicas: int | None = None
        self._sync = sync
        self._settings = settings
        self._loop = loop
        self._controlled = controlled
        self._end = end
        self._may_acknowledge = may_acknowledge
        self._waiters: dict[int, deque[tuple[int, float, Done]]] = {}
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    def configure(self, settings: HASettings) -> None:
        """Takes over new settings, for sends from now on."""
        self._settings = settings

    @property
    def gates(self) -> bool:
        """Whether a send may be refused for a lack of replicas."""
        settings = self._settings
        return self._controlled or (
            settings.broker_role == "SYNC_MASTER" and settings.enable_slave_acting_master
        )

    @property
    def waits(self) -> bool:
        """Whether sends may have to wait for replicas at all."""
        settings = self._settings
        if self._controlled:
            return settings.all_ack_in_sync_state_set or settings.in_sync_replicas > 1
        return (
            settings.broker_role == "SYNC_MASTER"
            and max(settings.in_sync_replicas, settings.min_in_sync_replicas) > 1
        )

    def refusal(self) -> PutStatus | None:
        """Why no message that wants to wait may be put now."""
        if self.need() is None:
            return PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
        return None

    def need(self) -> int | None:
        """How many logs a message put now must be in; see `quorum.needed`."""
        self._sync.appended(self._end())
        return needed(self._settings, self._sync, controlled=self._controlled, alive=self.alive_replicas)

    def when_replicated(self, end: int, done: Done) -> None:
        """Calls `done` once: PUT_OK when enough logs reach `end`, FLUSH_SLAVE_TIMEOUT when that takes too
        long, or this mastership is over."""
        need = self.need()
        if need is None:
            # There were enough before the append; now nobody can say that this one is safe.
            need = max(self._settings.min_in_sync_replicas, 2)
        is_there = (
            need == 1 or need == 0 or end <= reached(need, self._sync, self._settings.min_in_sync_replicas)
        )
        if is_there and self._may_acknowledge():
            done(PutStatus.PUT_OK)
            return
        if self._over or self._count >= WAITERS_MAX:
            done(PutStatus.FLUSH_SLAVE_TIMEOUT)
            return
        queue = self._waiters.get(need)
        if queue is None:
            queue = self._waiters[need] = deque()
        deadline = self._loop.time() + self._settings.slave_timeout / 1000
        queue.append((end, deadline, done))
        self._count += 1
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._expire)

    def replicated_end(self, *, acknowledged: bool = False) -> int:
        """How far the log is on every replica that may become master (under a controller: the SyncStateSet),
        or, `acknowledged` and without a controller, on as many as a send waits for; -1: nowhere else."""
        settings, sync = self._settings, self._sync
        sync.appended(self._end())
        if self._controlled and (settings.all_ack_in_sync_state_set or not acknowledged):
            least = settings.min_in_sync_replicas if settings.all_ack_in_sync_state_set else 1
            return reached(ALL, sync, least)
        waits = self._controlled or settings.broker_role == "SYNC_MASTER"
        return reached(settings.in_sync_replicas if waits else 1, sync)

    def settle(self) -> None:
        """Answers everybody whom the replicas have satisfied; after each acknowledgement and each change of
        the SyncStateSet."""
        if not self._count or not self._may_acknowledge():
            return
        for need, queue in self._waiters.items():
            if not queue:
                continue
            until = reached(need, self._sync, self._settings.min_in_sync_replicas)
            while queue and queue[0][0] <= until:
                self._count -= 1
                queue.popleft()[2](PutStatus.PUT_OK)

    def stop(self) -> None:
        """This mastership is over: what nobody acknowledged may be lost, and its senders are told so."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for queue in self._waiters.values():
            while queue:
                queue.popleft()[2](PutStatus.FLUSH_SLAVE_TIMEOUT)
        self._count = 0

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        following: float | None = None
        for queue in self._waiters.values():
            while queue and queue[0][1] <= now:
                self._count -= 1
                queue.popleft()[2](PutStatus.FLUSH_SLAVE_TIMEOUT)
            if queue:
                following = queue[0][1] if following is None else min(following, queue[0][1])
        if following is not None and self._timer is None and not self._over:
            self._timer = self._loop.call_at(following, self._expire)


__all__ = ["ALL", "Acks", "Done"]
