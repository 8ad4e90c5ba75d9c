"""Counts, by queue, the messages that a group has received by POP and not acknowledged (RocketMQ's
PopInflightMessageCounter). With enablePopMessageThreshold, a queue with too many is not popped."""
# pure: state and rules only

from __future__ import annotations


class InFlightCounter:
    """The counts of one broker. Messages of POPs before `started_ms`, in epoch ms, were never counted."""

    def __init__(self, started_ms: int) -> None:
        self._started_ms = started_ms
        self._counts: dict[tuple[str, str], dict[int, int]] = {}

    def add(self, topic: str, group: str, queue_id: int, count: int) -> None:
        """Counts received messages."""
        if count > 0:
            queues = self._counts.setdefault((topic, group), {})
            queues[queue_id] = queues.get(queue_id, 0) + count

    def remove(self, topic: str, group: str, queue_id: int, pop_time: int, count: int) -> None:
        """Counts acknowledged or revived messages of a POP at `pop_time`."""
        queues = self._counts.get((topic, group))
        if queues is None or pop_time < self._started_ms or queue_id not in queues:
            return
        queues[queue_id] -= count
        if queues[queue_id] <= 0:
            self.clear(topic, group, queue_id)

    def clear(self, topic: str, group: str, queue_id: int) -> None:
        """Forgets a queue."""
        queues = self._counts.get((topic, group))
        if queues is not None:
            queues.pop(queue_id, None)
            if not queues:
                del self._counts[topic, group]

    def forget(self, topics: set[str]) -> None:
        """Forgets topics, because they were deleted."""
        for key in [key for key in self._counts if key[0] in topics]:
            del self._counts[key]

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """The messages in flight of a queue."""
        return self._counts.get((topic, group), {}).get(queue_id, 0)
