"""Holds the sends of a DLedger leader until their records are committed and dispatched.

A waiting send is one entry in a queue. One commit answers every send that it covers. A send whose records are
not committed in time is answered IN_SYNC_REPLICAS_NOT_ENOUGH, as RocketMQ does; they may still be committed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from epochmq_store.statuses import PutStatus

PENDING_MAX: Final = 10_000
"""With so many waiting sends further ones are rejected (`DLedgerConfig.maxPendingRequestsNum`)."""
WAITERS_MAX: Final = 1 << 17
"""The most waiters. A further one is answered at once."""
WAIT_MAX_S: Final = 2.5
"""`DLedgerConfig.maxWaitAckTimeMs`."""

Done = Callable[[PutStatus], None]


class CommitWaiters:
    """The waiting sends of one broker (`message_writer.ReplicaAcks`). `end`: up to this position the log is
    committed and dispatched."""

    may_reject = True
    sends_wait = True

    def __init__(self) -> None:
        self.end = 0
        self._waiters: deque[tuple[int, float, Done]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._lost: PutStatus | None = PutStatus.SERVICE_NOT_AVAILABLE

    def begin(self) -> None:
        """This broker leads: records that are appended from now on may be committed."""
        self._lost = None

    def rejection(self) -> PutStatus | None:
        """OS_PAGE_CACHE_BUSY while too many sends wait."""
        return PutStatus.OS_PAGE_CACHE_BUSY if len(self._waiters) >= PENDING_MAX else None

    def replicated_end(self, *, acknowledged: bool = False) -> int:
        """The committed and dispatched position."""
        return self.end

    def when_replicated(self, end: int, done: Done) -> None:
        """Calls `done` once: with PUT_OK when the log is committed up to `end`, with another status when that
        takes too long or this leadership ends."""
        if end <= self.end:
            done(PutStatus.PUT_OK)
        elif self._lost is not None:
            done(self._lost)
        elif len(self._waiters) >= WAITERS_MAX:
            done(PutStatus.OS_PAGE_CACHE_BUSY)
        else:
            loop = asyncio.get_running_loop()
            deadline_s = loop.time() + WAIT_MAX_S
            self._waiters.append((end, deadline_s, done))
            if self._timer is None:
                self._timer = loop.call_at(deadline_s, self._expire)

    def advance(self, end: int) -> None:
        """The log is committed and dispatched up to this position."""
        self.end = end
        waiters = self._waiters
        while waiters and waiters[0][0] <= end:
            waiters.popleft()[2](PutStatus.PUT_OK)

    def fail(self, start: int, status: PutStatus) -> None:
        """Records that begin at or after `start` were not appended."""
        failed = [one for one in self._waiters if one[0] > start]
        self._waiters = deque(one for one in self._waiters if one[0] <= start)
        for _, _, done in failed:
            done(status)

    def end_leadership(self, status: PutStatus) -> None:
        """Answers every waiting send with this status, and later ones, too, until `begin`."""
        self._lost = status
        self.fail(-1, status)

    def stop(self) -> None:
        """The broker stops: answers every waiting send."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.end_leadership(PutStatus.SERVICE_NOT_AVAILABLE)

    def _expire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        while self._waiters and self._waiters[0][1] <= now_s:
            self._waiters.popleft()[2](PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH)
        if self._waiters and self._timer is None:
            self._timer = loop.call_at(self._waiters[0][1], self._expire)
