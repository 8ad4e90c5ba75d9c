"""Holds POPs and notifications that found no message until one arrives (RocketMQ's PopLongPollingService).

A request waits by topic, group and queue; queue -1 stands for every queue of the topic. An arriving message
wakes one waiting request of every group: the message is handed out once. A woken request that takes only a
part wakes the next one.

An arrival only increments a counter. Requests run again after the present iteration of the event loop, so
that the sender's response does not wait for consumers. The first request that waits begins to listen for
arrivals, so a broker without POP consumers pays nothing for them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol

log = logging.getLogger(__name__)

EARLY_MS = 50
"""A request counts as timed out this much before its time."""
WAKE_MARGIN_S = 0.005
ARRIVALS_MAX = 1024
"""Arrivals of one queue that are kept between two iterations of the event loop. Woken requests take the
rest."""
LATEST_MAX = 10_000
"""Topics whose latest arrival is known; retry topics carry names of groups, which clients choose."""


class Polling(Enum):
    """What happened to a request that found nothing (PollingResult)."""

    HELD = "held"
    FULL = "full"
    TIMED_OUT = "timed out"
    DOES_NOT_WAIT = "does not wait"


class Arrived(Protocol):
    """The part of a consume queue that long polling uses."""

    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...


class PollingLimits(Protocol):
    """The settings that bound waiting requests."""

    @property
    def pop_polling_size(self) -> int: ...
    @property
    def max_pop_polling_size(self) -> int: ...
    @property
    def pop_polling_map_size(self) -> int: ...
    @property
    def pop_long_polling_force_notify_interval(self) -> int: ...


class HeldPop:
    """A request that waits. `tags` None: any message matches. `expires_ms`, in epoch ms, is when its client
    gives up. `request` belongs to the processor."""

    __slots__ = ("connection", "expires_ms", "key", "request", "tags", "timer", "topics")

    def __init__(
        self,
        topic: str,
        group: str,
        queue_id: int,
        tags: frozenset[int] | None,
        expires_ms: int,
        connection: Any,
        request: Any,
        retry_topics: tuple[str, ...] = (),
    ) -> None:
        """`retry_topics`: further topics whose messages the request can receive."""
        self.key = (topic, group, queue_id)
        self.tags = tags
        self.expires_ms = expires_ms
        self.connection = connection
        self.request = request
        self.topics = (topic, *retry_topics)
        self.timer: asyncio.TimerHandle | None = None


class PopLongPolling:
    """The waiting requests of one kind. `rerun` runs a request again. With `newest_first` a message wakes the
    request that waits longest last, as notifications do."""

    def __init__(
        self,
        rerun: Callable[[HeldPop], None],
        limits: Callable[[], PollingLimits],
        listen: Callable[[Callable[[Any, int, int], None]], None],
        clock_ms: Callable[[], int],
        *,
        newest_first: bool = False,
    ) -> None:
        """`listen` registers a listener of arriving messages."""
        self.held = 0
        self._rerun = rerun
        self._limits = limits
        self._listen = listen
        self._clock_ms = clock_ms
        self._newest_first = newest_first
        self._waiting: dict[tuple[str, str, int], dict[HeldPop, None]] = {}
        self._wanted: dict[str, dict[tuple[str, str], int]] = {}
        """Topic → (topic, group) of the requests that can receive its messages → their number."""
        self._arrivals: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self._latest: dict[str, int] = {}
        """The topics that `latest_arrival` was asked for → the serial number of their latest message."""
        self._serials = itertools.count()
        self._wake: asyncio.Handle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listens = False

    def start(self) -> None:
        """From now on requests can wait. Needs a running loop."""
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        """Runs every waiting request a last time. From now on none waits."""
        self._loop = None
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        self._arrivals.clear()
        self.release()

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """The number of requests that wait for this queue."""
        return len(self._waiting.get((topic, group, queue_id), ()))

    def poll(self, pop: HeldPop, poll_ms: int) -> Polling:
        """Lets a request wait, unless its client does not want that or has given up, or too many wait."""
        if poll_ms <= 0 or self._loop is None:
            return Polling.DOES_NOT_WAIT
        limits = self._limits()
        if self.held >= limits.max_pop_polling_size:
            return Polling.FULL
        left_ms = pop.expires_ms - self._clock_ms() - EARLY_MS
        if left_ms < 0:
            return Polling.TIMED_OUT
        waiting = self._waiting.get(pop.key)
        if waiting is None:
            if len(self._waiting) >= limits.pop_polling_map_size:
                return Polling.FULL
            waiting = self._waiting[pop.key] = {}
        elif len(waiting) > limits.pop_polling_size:
            return Polling.FULL
        self._begin_to_listen()
        waiting[pop] = None
        self.held += 1
        wanted_by = pop.key[:2]
        for topic in pop.topics:
            waiting_for = self._wanted.setdefault(topic, {})
            waiting_for[wanted_by] = waiting_for.get(wanted_by, 0) + 1
        pop.timer = self._loop.call_later(left_ms / 1000 + WAKE_MARGIN_S, self._run, pop)
        return Polling.HELD

    # arrivals

    def _begin_to_listen(self) -> None:
        if not self._listens:
            self._listens = True
            self._listen(self.message_arrived)

    def latest_arrival(self, topics: Sequence[str]) -> int:
        """A number that changes with each message that arrives for one of these topics. A request that takes
        several iterations of the event loop compares it: such a message may be in a queue that it has passed
        already, and no waiting request was woken for it."""
        self._begin_to_listen()
        if len(self._latest) > LATEST_MAX:
            self._latest.clear()  # a request that compares later finds another number, and runs once more
        for topic in topics:
            if topic not in self._latest:
                self._latest[topic] = next(self._serials)
        return max(self._latest[topic] for topic in topics)

    def message_arrived(self, queue: Arrived, offset: int, tags_code: int) -> None:
        """Notes a stored message (MessageStore.on_arrival). Without waiting requests it costs two lookups."""
        topic = queue.topic
        if topic in self._latest:
            self._latest[topic] = next(self._serials)
        if topic not in self._wanted:
            return
        messages = self._arrivals.setdefault((topic, queue.queue_id), [])
        if len(messages) < ARRIVALS_MAX:
            messages.append((offset, tags_code))
        if self._wake is None and self._loop is not None:
            self._wake = self._loop.call_soon(self._deliver)

    def notify(self, topic: str, group: str, queue_id: int) -> bool:
        """Wakes one request that waits for this queue, whatever its filter. Returns whether one did."""
        return self._wake_one((topic, group, queue_id), None)

    def release(self, matches: Callable[[HeldPop], bool] | None = None) -> None:
        """Runs all waiting requests, or those for which `matches` holds."""
        for waiting in list(self._waiting.values()):
            for pop in [pop for pop in waiting if matches is None or matches(pop)]:
                self._run(pop)

    def _deliver(self) -> None:
        self._wake = None
        arrivals, self._arrivals = self._arrivals, {}
        interval = self._limits().pop_long_polling_force_notify_interval
        for (arrived, queue_id), messages in arrivals.items():
            for topic, group in list(self._wanted.get(arrived, ())):
                for offset, tags_code in messages:
                    code = None if interval > 0 and offset % interval == 0 else tags_code
                    woken = self._wake_one((topic, group, -1), code)
                    woken |= self._wake_one((topic, group, queue_id), code)
                    if not woken and (topic, group) not in self._wanted.get(arrived, ()):
                        break

    def _wake_one(self, key: tuple[str, str, int], code: int | None) -> bool:
        waiting = self._waiting.get(key)
        if waiting is None:
            return False
        pops = reversed(waiting) if self._newest_first else iter(waiting)
        for pop in pops:
            if pop.connection.closed:
                continue
            if code is not None and pop.tags is not None and code not in pop.tags:
                continue
            self._run(pop)
            return True
        return False

    def _run(self, pop: HeldPop) -> None:
        """Removes a waiting request, then runs it: while it runs, it may wait again."""
        waiting = self._waiting.get(pop.key)
        if waiting is None or pop not in waiting:
            return
        del waiting[pop]
        if not waiting:
            del self._waiting[pop.key]
        self.held -= 1
        if pop.timer is not None:
            pop.timer.cancel()
        wanted_by = pop.key[:2]
        for topic in pop.topics:
            waiting_for = self._wanted[topic]
            waiting_for[wanted_by] -= 1
            if not waiting_for[wanted_by]:
                del waiting_for[wanted_by]
                if not waiting_for:
                    del self._wanted[topic]
        if pop.connection.closed:
            return
        try:
            self._rerun(pop)
        except Exception:  # the other requests must still run
            log.exception("a held POP failed when it ran again")
