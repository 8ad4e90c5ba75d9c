"""Who wants to know that a message has arrived, and arrivals that may not be told yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from epochmq_broker.store.appender import ArrivalListener
from epochmq_broker.store.consume_queue import ConsumeQueue

HELD_ARRIVALS_MAX: Final = 1 << 17


class ArrivalListeners(list[ArrivalListener]):
    """Listeners, called with (queue, queue offset, tag code) on the loop when a message can be read.

    While messages become visible only behind their append (sync flush, replication), arrivals are held
    until `release`. Beyond HELD_ARRIVALS_MAX the oldest are dropped: long polling checks its queues every few
    seconds anyway.
    """

    def __init__(self, bind: Callable[[ArrivalListener | None], None], end: Callable[[], int]) -> None:
        """`bind` is given what to call at every append, None when nobody listens; `end` says where the log
        ends."""
        super().__init__()
        self._bind = bind
        self._end = end
        self._held: deque[tuple[int, ConsumeQueue, int, int]] = deque(maxlen=HELD_ARRIVALS_MAX)
        self._holding = False
        self.wake: Callable[[], None] | None = None  # called whenever an arrival is held

    def append(self, listener: ArrivalListener) -> None:
        """Adds a listener."""
        super().append(listener)
        self.rebind()

    def remove(self, listener: ArrivalListener) -> None:
        """Takes a listener out. Raises ValueError when it is none."""
        super().remove(listener)
        self.rebind()

    def hold(self, holding: bool) -> None:
        """Whether arrivals are held from now on; those held before are told when they are not."""
        self._holding = holding
        if not holding:
            self.release(self._end())
        self.rebind()

    def rebind(self) -> None:
        """The cheapest thing to call at every append."""
        if self._holding:
            self._bind(self._keep)
        elif not self:
            self._bind(None)
        else:
            self._bind(self[0] if len(self) == 1 else self._tell)

    def release(self, end: int) -> None:
        """Tells all arrivals in front of this physical offset."""
        held = self._held
        while held and held[0][0] <= end:
            _, queue, offset, tags_code = held.popleft()
            self._tell(queue, offset, tags_code)

    def forget(self) -> None:
        """Drops what is held: the log has been cut."""
        self._held.clear()

    def _keep(self, queue: ConsumeQueue, offset: int, tags_code: int) -> None:
        self._held.append((queue.max_physical, queue, offset, tags_code))
        if self.wake is not None:
            self.wake()

    def _tell(self, queue: ConsumeQueue, offset: int, tags_code: int) -> None:
        for listener in self:
            listener(queue, offset, tags_code)
