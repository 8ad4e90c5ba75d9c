"""Collects the queue offsets of ended half messages until an op message is worth writing (RocketMQ's
MessageQueueOpContext)."""
# pure: the caller passes the time

from __future__ import annotations

from collections import OrderedDict, deque

from epochmq_broker.services.transactions.half_messages import SEPARATOR

BUFFERED_MAX = 20_000
"""Offsets of one half queue that may wait. They only accumulate while the store accepts no messages."""


class OpBuffer:
    """The offsets of one half queue that no op message names yet."""

    def __init__(self, now_ms: int) -> None:
        self.size = 0
        """Bytes that the waiting offsets take in an op message."""
        self.last_write_ms = now_ms
        self.dropped = 0
        self._entries: deque[str] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, offset: int) -> None:
        """Adds an offset. Of too many, the oldest is dropped: the producer of that half message is then asked
        again."""
        if len(self._entries) >= BUFFERED_MAX:
            self.size -= len(self._entries.popleft())
            self.dropped += 1
        entry = f"{offset}{SEPARATOR}"
        self._entries.append(entry)
        self.size += len(entry)

    def due_ms(self, interval_ms: int, max_size: int) -> int | None:
        """When the waiting offsets are to be written, as epoch ms; 0 for at once, None if none waits."""
        if not self._entries:
            return None
        return 0 if self.size >= max_size else self.last_write_ms + interval_ms

    def first(self, max_size: int) -> tuple[int, bytes]:
        """(the number of offsets, the body) of the next op message. Its last offset may exceed `max_size`
        bytes."""
        taken: list[str] = []
        size = 0
        for entry in self._entries:
            if size >= max_size and taken:
                break
            taken.append(entry)
            size += len(entry)
        return len(taken), "".join(taken).encode()

    def written(self, count: int, now_ms: int) -> None:
        """Forgets the first `count` offsets: an op message names them."""
        for _ in range(count):
            self.size -= len(self._entries.popleft())
        self.last_write_ms = now_ms

    def clear(self) -> None:
        """Forgets all offsets."""
        self._entries.clear()
        self.size = 0


class RecentOffsets:
    """The offsets that were added last, at most `count_max`."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._offsets: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, offset: int) -> bool:
        return offset in self._offsets

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, offset: int) -> None:
        """Adds an offset; of too many, the one that was added first goes."""
        self._offsets[offset] = None
        if len(self._offsets) > self._count_max:
            self._offsets.popitem(last=False)
