"""Holds pulls that found no message until one arrives (RocketMQ's PullRequestHoldService).

A held pull runs again, once, when a message that may match arrives on its queue, when its time is up, or when
the check every five seconds finds that the queue has grown (by messages that the pull's tags excluded). The
puller decides what "run again" means: it responds with what it finds then.

Timers cost as much as the pulls that are due, not as those that are held: pulls are in buckets by the tick at
which their time is up. Each tick also checks a few queues in turn, for arrivals that were not reported.

An arrival only marks the queue. The queue's pulls run after the current iteration of the event loop, so that
all messages of one read are delivered together and the sender's response does not wait for its consumers.

At most `held_max` pulls are held; the puller responds to further ones with PULL_NOT_FOUND at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

log = logging.getLogger(__name__)

HELD_MAX = 100_000
"""RocketMQ's pullThreadPoolQueueCapacity."""
TICK_S = 0.2
CHECK_S = 5.0
QUEUES_CHECKED_PER_TICK = 64
CODES_MAX = 64
"""Distinct tags codes kept per queue between two iterations; with more, every pull of the queue runs."""


class PolledQueue(Protocol):
    """The part of a consume queue that long polling uses. It is also a key, compared by identity."""

    @property
    def max_offset(self) -> int:
        """The logical offset of the next message."""
        ...


class HeldPull:
    """A pull that waits for a message at `offset`. `tags` None: any message matches. `deadline` is on the
    loop's clock, in seconds. `request` belongs to the puller, which gets it back. `selects_new`, if set,
    tells whether a message that arrived since its last call may match."""

    __slots__ = ("bucket", "connection", "deadline", "offset", "queue", "request", "selects_new", "tags")

    def __init__(
        self,
        queue: PolledQueue,
        offset: int,
        tags: frozenset[int] | None,
        deadline: float,
        connection: Any,
        request: Any,
    ) -> None:
        self.queue = queue
        self.offset = offset
        self.tags = tags
        self.deadline = deadline
        self.connection = connection
        self.request = request
        self.selects_new: Callable[[], bool] | None = None
        self.bucket = 0  # the key of its bucket in `PullHoldService`


class PullHoldService:
    """The held pulls of a broker, by queue. `rerun` runs a pull again."""

    def __init__(
        self,
        rerun: Callable[[HeldPull], None],
        *,
        held_max: int = HELD_MAX,
        tick_s: float = TICK_S,
        check_s: float = CHECK_S,
    ) -> None:
        self.held = 0
        self._rerun = rerun
        self._held_max = held_max
        self._tick_s = tick_s
        self._check_ticks = max(1, round(check_s / tick_s))
        self._ticks = 0
        self._waiting: dict[PolledQueue, dict[HeldPull, None]] = {}
        self._buckets: dict[int, dict[HeldPull, None]] = {}  # by the tick at which their time is up
        self._bucket = 0  # earlier buckets are empty
        self._unmatched: dict[PolledQueue, None] = {}  # queues with an arrival that did not match every pull
        self._to_check: deque[PolledQueue] = deque()  # queues that the present turn has not checked yet
        self._arrivals: dict[PolledQueue, set[int] | None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wake: asyncio.Handle | None = None

    def start(self) -> None:
        """Starts the timers; needs a running loop. From now on pulls can be held."""
        self._loop = asyncio.get_running_loop()
        self._bucket = int(self._loop.time() // self._tick_s)
        self._timer = self._loop.call_later(self._tick_s, self._tick)

    def stop(self) -> None:
        """Runs every held pull a last time. From now on no pull is held."""
        self._loop = None
        for handle in (self._timer, self._wake):
            if handle is not None:
                handle.cancel()
        self._timer = self._wake = None
        self._arrivals.clear()
        self.release()

    @property
    def is_full(self) -> bool:
        """Whether no further pull can be held, so that it needs a response now. Always true before `start`
        and after `stop`."""
        return self._loop is None or self.held >= self._held_max

    def hold(self, pull: HeldPull) -> None:
        """Holds a pull. The caller has checked `is_full`."""
        assert not self.is_full
        pulls = self._waiting.get(pull.queue)
        if pulls is None:
            self._waiting[pull.queue] = {pull: None}
        else:
            pulls[pull] = None
        bucket = pull.bucket = max(math.ceil(pull.deadline / self._tick_s), self._bucket)
        due = self._buckets.get(bucket)
        if due is None:
            self._buckets[bucket] = {pull: None}
        else:
            due[pull] = None
        self.held += 1

    def message_arrived(self, queue: PolledQueue, offset: int, tags_code: int) -> None:
        """Marks a queue on which a message was stored (MessageStore.on_arrival). Without waiting pulls it
        costs one lookup."""
        if queue not in self._waiting:
            return
        arrivals = self._arrivals
        if queue not in arrivals:
            arrivals[queue] = {tags_code}
        else:
            codes = arrivals[queue]
            if codes is not None:
                codes.add(tags_code)
                if len(codes) > CODES_MAX:
                    arrivals[queue] = None
        if self._wake is None and self._loop is not None:
            self._wake = self._loop.call_soon(self._deliver)

    def release(self, matches: Callable[[HeldPull], bool] | None = None) -> None:
        """Runs all held pulls, or those for which `matches` holds, because their topic, their group or the
        broker's role has changed."""
        for queue, pulls in list(self._waiting.items()):
            self._run(queue, [pull for pull in pulls if matches is None or matches(pull)])

    def _deliver(self) -> None:
        self._wake = None
        arrivals, self._arrivals = self._arrivals, {}
        for queue, codes in arrivals.items():
            pulls = self._waiting.get(queue)
            if pulls is None:
                continue
            newest = queue.max_offset
            due = [
                pull
                for pull in pulls
                if newest > pull.offset
                and (codes is None or pull.tags is None or not codes.isdisjoint(pull.tags))
                and (pull.selects_new is None or pull.selects_new())
            ]
            if len(due) < len(pulls):
                self._unmatched[queue] = None
            self._run(queue, due)

    def _tick(self) -> None:
        loop = self._loop
        if loop is None:
            return
        self._timer = loop.call_later(self._tick_s, self._tick)
        self._ticks += 1
        self._run_expired(int(loop.time() // self._tick_s))
        if self._ticks % self._check_ticks == 0:
            unmatched, self._unmatched = self._unmatched, {}
            for queue in unmatched:
                self._check(queue)
        if not self._to_check:
            self._to_check.extend(self._waiting)
        for _ in range(min(len(self._to_check), QUEUES_CHECKED_PER_TICK)):
            self._check(self._to_check.popleft())

    def _run_expired(self, now: int) -> None:
        """Runs the pulls whose time is up."""
        if now - self._bucket > len(self._buckets):
            expired = sorted(bucket for bucket in self._buckets if bucket <= now)
        else:
            expired = [bucket for bucket in range(self._bucket, now + 1) if bucket in self._buckets]
        self._bucket = now + 1
        for bucket in expired:
            by_queue: dict[PolledQueue, list[HeldPull]] = {}
            for pull in self._buckets.get(bucket, ()):
                by_queue.setdefault(pull.queue, []).append(pull)
            for queue, due in by_queue.items():
                self._run(queue, due)

    def _check(self, queue: PolledQueue) -> None:
        """Runs the pulls of a queue that has grown beyond them, and drops those whose client is gone."""
        pulls = self._waiting.get(queue)
        if pulls is not None:
            newest = queue.max_offset
            self._run(queue, [pull for pull in pulls if newest > pull.offset or pull.connection.closed])

    def _run(self, queue: PolledQueue, due: list[HeldPull]) -> None:
        """Removes the due pulls of a queue, then runs them: while one runs, others may be added to the
        queue."""
        pulls = self._waiting.get(queue)
        if not due or pulls is None:
            return
        for pull in due:
            del pulls[pull]
            bucket = self._buckets[pull.bucket]
            del bucket[pull]
            if not bucket:
                del self._buckets[pull.bucket]
        if not pulls:
            del self._waiting[queue]
            self._unmatched.pop(queue, None)
        self.held -= len(due)
        for pull in due:
            if pull.connection.closed:
                continue
            try:
                self._rerun(pull)
            except Exception:  # the other pulls must still run
                log.exception("a held pull failed when it ran again")
