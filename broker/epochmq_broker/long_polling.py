"""Pulls that found nothing and wait for a message (RocketMQ's PullRequestHoldService).

A held pull is run again, once, when a message it may match arrives on its queue, when its time is up, or when
a look every five seconds at the queues with arrivals finds the queue further on than the pull was (an arrival
it filtered out). What "run again" means is the puller's business: it answers with whatever there is now.

The clock costs what is due, not what is held: pulls lie in buckets by the tick that ends their time. Besides,
each tick looks at a few queues in turn, for arrivals that nobody reported.

An arrival only notes the queue; the pulls waiting there run after the current round of the event loop, so
that the messages of one read are delivered together and the sender's answer is not delayed by its consumers.

Bound: `held_max` pulls in all; the puller answers one more with PULL_NOT_FOUND at once.
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
QUEUES_CHECKED_PER_TICK = 64  # queues that a tick looks at in turn
CODES_MAX = 64
"""Distinct tags codes noted for one queue between two rounds; beyond, every pull of the queue is run."""


class PolledQueue(Protocol):
    """What is needed of a consume queue: it is also a key, by identity."""

    @property
    def max_offset(self) -> int:
        """The next logical offset."""
        ...


class Peer(Protocol):
    """What is needed of a connection."""

    @property
    def closed(self) -> bool:
        """Whether nobody listens any more."""
        ...


class HeldPull:
    """A pull that waits at `offset`. `tags` None: any message will do. `deadline` is on the loop's clock, in
    seconds. `request` is the puller's own and only handed back."""

    __slots__ = ("bucket", "connection", "deadline", "offset", "queue", "request", "tags")

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
        self.bucket = 0  # where `PullHoldService` keeps it


class PullHoldService:
    """The held pulls of a broker, by queue; `rerun` answers one."""

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
        self._buckets: dict[int, dict[HeldPull, None]] = {}  # by the tick that ends their time
        self._bucket = 0  # all before have been dealt with
        self._passed: dict[PolledQueue, None] = {}  # queues with arrivals that some pull was not run for
        self._turn: deque[PolledQueue] = deque()  # queues still to be looked at in this turn
        self._arrivals: dict[PolledQueue, set[int] | None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wake: asyncio.Handle | None = None

    def start(self) -> None:
        """Begins to hold, and to look at the clock; needs a running loop."""
        self._loop = asyncio.get_running_loop()
        self._bucket = int(self._loop.time() // self._tick_s)
        self._timer = self._loop.call_later(self._tick_s, self._tick)

    def stop(self) -> None:
        """Runs every held pull a last time; holds none from now on."""
        self._loop = None
        for handle in (self._timer, self._wake):
            if handle is not None:
                handle.cancel()
        self._timer = self._wake = None
        self._arrivals.clear()
        self.release()

    @property
    def is_full(self) -> bool:
        """Whether one more pull cannot be held and has to be answered now; always before `start` and after
        `stop`."""
        return self._loop is None or self.held >= self._held_max

    def hold(self, pull: HeldPull) -> None:
        """Keeps a pull. Not when `is_full`."""
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
        """A message was stored (MessageStore.on_arrival). Costs one look-up when nobody waits there."""
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
        """Runs all held pulls, or those that match: their topic, their group or the broker's role has
        changed."""
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
            ]
            if len(due) < len(pulls):
                self._passed[queue] = None
            self._run(queue, due)

    def _tick(self) -> None:
        loop = self._loop
        if loop is None:
            return
        self._timer = loop.call_later(self._tick_s, self._tick)
        self._ticks += 1
        self._end(int(loop.time() // self._tick_s))
        if self._ticks % self._check_ticks == 0:
            passed, self._passed = self._passed, {}
            for queue in passed:
                self._look(queue)
        if not self._turn:
            self._turn.extend(self._waiting)
        for _ in range(min(len(self._turn), QUEUES_CHECKED_PER_TICK)):
            self._look(self._turn.popleft())

    def _end(self, now: int) -> None:
        """Runs the pulls whose time is up."""
        if now - self._bucket > len(self._buckets):
            over = sorted(bucket for bucket in self._buckets if bucket <= now)
        else:
            over = [bucket for bucket in range(self._bucket, now + 1) if bucket in self._buckets]
        self._bucket = now + 1
        for bucket in over:
            by_queue: dict[PolledQueue, list[HeldPull]] = {}
            for pull in self._buckets.get(bucket, ()):
                by_queue.setdefault(pull.queue, []).append(pull)
            for queue, due in by_queue.items():
                self._run(queue, due)

    def _look(self, queue: PolledQueue) -> None:
        """Runs the pulls that lie behind the end of their queue, or of which nobody hears."""
        pulls = self._waiting.get(queue)
        if pulls is not None:
            newest = queue.max_offset
            self._run(queue, [pull for pull in pulls if newest > pull.offset or pull.connection.closed])

    def _run(self, queue: PolledQueue, due: list[HeldPull]) -> None:
        """Takes the due pulls of a queue off its list, then runs them: running one may hold another."""
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
            self._passed.pop(queue, None)
        self.held -= len(due)
        for pull in due:
            if pull.connection.closed:
                continue
            try:
                self._rerun(pull)
            except Exception:  # one pull's fault must not keep the others waiting
                log.exception("a held pull failed when it was run again")
