"""Holds sends until enough replicas have their bytes (RocketMQ's GroupTransferService).

A waiting send is one entry in a queue. One acknowledgement of a replica answers every send that it covers.
Sends do not delay each other: a send that the replicas do not acknowledge within `slaveTimeout` is answered
FLUSH_SLAVE_TIMEOUT, and the sends before and behind it are answered when their own replicas have them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from epochmq_broker.replication.ha.ack_quorum import (
    ALL_MEMBERS,
    lacks_replicas,
    replicated_until,
    required_copies,
)
from epochmq_broker.replication.ha.settings import HASettings
from epochmq_broker.replication.ha.sync_state import SyncState
from epochmq_store.statuses import PutStatus

WAITERS_MAX = 1 << 17
"""The most sends that may wait. A further send is answered FLUSH_SLAVE_TIMEOUT at once."""

Done = Callable[[PutStatus], None]

_PUT_OK = PutStatus.PUT_OK  # on the hot path a global costs less than a lookup in the enum


class ReplicationWaiters:
    """The waiting sends of one mastership. `alive_replicas` is how many brokers of the group the nameserver
    knows, or None if it was not asked."""

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
        """`end` returns the log's end offset. `controlled`: a controller decides which replicas are in sync.
        While `may_acknowledge` returns False no send is answered PUT_OK; `answer_replicated`
        checks it again."""
        self.alive_replicas: int | None = None
        self._sync = sync
        self._settings = settings
        self._loop = loop
        self._controlled = controlled
        self._end = end
        self._may_acknowledge = may_acknowledge
        self._copies: tuple[frozenset[int], frozenset[int] | None, int | None] | None = None
        """With a controller: the copies that a send needs, beside the sets that they were computed for."""
        self._waiters: dict[int, deque[tuple[int, float, Done]]] = {}
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def configure(self, settings: HASettings) -> None:
        """Uses new settings for all further sends."""
        self._settings = settings
        self._copies = None

    @property
    def may_reject(self) -> bool:
        """Whether a send may be rejected because too few replicas are in sync."""
        settings = self._settings
        return self._controlled or (
            settings.broker_role == "SYNC_MASTER" and settings.enable_slave_acting_master
        )

    @property
    def sends_wait(self) -> bool:
        """Whether any send has to wait for replicas."""
        settings = self._settings
        if self._controlled:
            return settings.all_ack_in_sync_state_set or settings.in_sync_replicas > 1
        return (
            settings.broker_role == "SYNC_MASTER"
            and max(settings.in_sync_replicas, settings.min_in_sync_replicas) > 1
        )

    def rejection(self) -> PutStatus | None:
        """Why a message that waits for replicas cannot be stored now; None if it can."""
        return PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH if self._copies_needed() is None else None

    def _copies_needed(self) -> int | None:
        sync = self._sync
        if not self._controlled:
            sync.log_appended(self._end())  # replicas count that lack few bytes of the log
            return required_copies(self._settings, sync, controlled=False, alive=self.alive_replicas)
        known = self._copies
        if known is None or known[0] is not sync.members or known[1] is not sync.proposed:
            copies = required_copies(self._settings, sync, controlled=True)
            known = self._copies = (sync.members, sync.proposed, copies)
        return known[2]

    def when_replicated(self, end: int, done: Done) -> None:
        """Calls `done` once: with PUT_OK when enough logs reach `end`, with FLUSH_SLAVE_TIMEOUT when that
        takes too long or this mastership ends."""
        copies = self._copies_needed()
        if copies is None:
            # Enough replicas were in sync before the append, and too few are now: wait for the minimum. With
            # all members, until the set is large enough again.
            waits_for_all = self._controlled and self._settings.all_ack_in_sync_state_set
            copies = ALL_MEMBERS if waits_for_all else max(self._settings.min_in_sync_replicas, 2)
        if self._is_replicated(end, copies) and self._may_acknowledge():
            done(_PUT_OK)
            return
        if self._stopped or self._count >= WAITERS_MAX:
            done(PutStatus.FLUSH_SLAVE_TIMEOUT)
            return
        queue = self._waiters.get(copies)
        if queue is None:
            queue = self._waiters[copies] = deque()
        deadline = self._loop.time() + self._settings.slave_timeout / 1000
        queue.append((end, deadline, done))
        self._count += 1
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._expire)

    def _is_replicated(self, end: int, copies: int) -> bool:
        sync = self._sync
        if copies in (0, 1):
            return True
        if lacks_replicas(end, copies, sync):
            return False
        sync.log_appended(self._end())
        return end <= replicated_until(copies, sync, self._settings.min_in_sync_replicas)

    def replicated_end(self, *, acknowledged: bool = False) -> int:
        """The offset up to which every replica that may become master has the log; -1 if one of them is not
        connected. In controller mode these are the members of the SyncStateSet.

        Without controllers, or with `acknowledged` and without `allAckInSyncStateSet`: the offset up to which
        as many logs reach as a send waits for."""
        settings, sync = self._settings, self._sync
        sync.log_appended(self._end())
        if self._controlled and (settings.all_ack_in_sync_state_set or not acknowledged):
            least = settings.min_in_sync_replicas if settings.all_ack_in_sync_state_set else 1
            return replicated_until(ALL_MEMBERS, sync, least)
        sends_wait = self._controlled or settings.broker_role == "SYNC_MASTER"
        return replicated_until(settings.in_sync_replicas if sends_wait else 1, sync)

    def answer_replicated(self) -> None:
        """Answers PUT_OK to every send that enough replicas have. To be called after each acknowledgement and
        each change of the SyncStateSet."""
        if not self._count or not self._may_acknowledge():
            return
        for copies, queue in self._waiters.items():
            if not queue:
                continue
            until = replicated_until(copies, self._sync, self._settings.min_in_sync_replicas)
            while queue and queue[0][0] <= until:
                self._count -= 1
                queue.popleft()[2](_PUT_OK)

    def stop(self) -> None:
        """Ends this mastership: every waiting send is answered FLUSH_SLAVE_TIMEOUT, for it may be lost."""
        self._stopped = True
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
        if following is not None and self._timer is None and not self._stopped:
            self._timer = self._loop.call_at(following, self._expire)


__all__ = ["ALL_MEMBERS", "Done", "ReplicationWaiters"]
