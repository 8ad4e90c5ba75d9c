"""Notifies listeners of messages that readers can see, and holds back notifications of messages that they
cannot see yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from epochmq_store.appending.appender import ArrivalListener
from epochmq_store.queues.consume_queue import ConsumeQueue

HELD_ARRIVALS_MAX: Final = 1 << 17


class ArrivalListeners(list[ArrivalListener]):
    """The listeners. The event loop calls them with (queue, queue offset, tag code) when a message becomes
    visible.

    With sync flush or replication, messages become visible some time after their append. Their arrivals are
    held until `release`. Beyond HELD_ARRIVALS_MAX the oldest are dropped, because long polling checks its
    queues every few seconds anyway.
    """

    def __init__(self, bind: Callable[[ArrivalListener | None], None], end: Callable[[], int]) -> None:
        """`bind` sets the function that is called at every append, None for no function. `end` returns the
        end of the log."""
        super().__init__()
        self._bind = bind
        self._end = end
        self._held: deque[tuple[int, ConsumeQueue, int, int]] = deque(maxlen=HELD_ARRIVALS_MAX)
        self._holding = False
        self._on_held: Callable[[], None] | None = None

    def append(self, listener: ArrivalListener) -> None:
        """Adds a listener."""
        super().append(listener)
        self.rebind()

    def remove(self, listener: ArrivalListener) -> None:
        """Removes a listener. Raises ValueError for an unknown one."""
        super().remove(listener)
        self.rebind()

    def hold(self, holding: bool, *, on_held: Callable[[], None] | None = None) -> None:
        """Sets whether arrivals are held from now on. If not, the held ones are released. `on_held` is called
        whenever an arrival is held."""
        self._holding = holding
        self._on_held = on_held
        if not holding:
            self.release(self._end())
        self.rebind()

    def rebind(self) -> None:
        """Binds the cheapest function that serves the present listeners."""
        if self._holding:
            self._bind(self._hold_arrival)
        elif not self:
            self._bind(None)
        else:
            self._bind(self[0] if len(self) == 1 else self._notify)

    def release(self, end: int) -> None:
        """Notifies the listeners of all held arrivals that end at or before this physical offset."""
        held = self._held
        while held and held[0][0] <= end:
            _, queue, offset, tags_code = held.popleft()
            self._notify(queue, offset, tags_code)

    def discard_held(self) -> None:
        """Drops the held arrivals, because the log was truncated."""
        self._held.clear()

    def _hold_arrival(self, queue: ConsumeQueue, offset: int, tags_code: int) -> None:
        self._held.append((queue.max_physical, queue, offset, tags_code))
        if self._on_held is not None:
            self._on_held()

    def _notify(self, queue: ConsumeQueue, offset: int, tags_code: int) -> None:
        for listener in self:
            listener(queue, offset, tags_code)
