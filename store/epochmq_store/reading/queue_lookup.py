"""Reads queues by topic and queue id, for callers without a queue object."""

from __future__ import annotations

from epochmq_store.queues.batch_consume_queue import NO_MESSAGE
from epochmq_store.queues.consume_queue import ConsumeQueue
from epochmq_store.queues.consume_queues import ConsumeQueues
from epochmq_store.reading.message_reader import MessageReader


class QueueLookup:
    """Looks up queues, which need not exist; a lookup creates none. Times are epoch ms."""

    __slots__ = ("_queues", "_reader")

    def __init__(self, queues: ConsumeQueues, reader: MessageReader) -> None:
        self._queues = queues
        self._reader = reader

    def existing_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, None if it does not exist."""
        return self._queues.get((topic, queue_id))

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The offset of the queue's first message. As in RocketMQ it is 0 for a queue without messages, and
        -1 for a batch consume queue without."""
        queue = self.existing_queue(topic, queue_id)
        if queue is None:
            return NO_MESSAGE if self._queues.is_batch_topic(topic) else 0
        return queue.min_offset

    def topics(self) -> set[str]:
        """All topics with queues."""
        return {topic for topic, _ in self._queues}

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, *, upper: bool = False) -> int:
        """See `MessageReader.offset_by_time`; 0 for a queue that does not exist."""
        queue = self.existing_queue(topic, queue_id)
        return 0 if queue is None else self._reader.offset_by_time(queue, timestamp, upper=upper)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time of the message at this offset, -1 without one (getMessageStoreTimeStamp)."""
        queue = self.existing_queue(topic, queue_id)
        return -1 if queue is None else self._reader.store_timestamp(queue, offset)

    def earliest_time(self, topic: str | None = None, queue_id: int = 0) -> int:
        """Store time of the first message of a queue, or of the log; -1 without one."""
        if topic is None:
            return self._reader.earliest_timestamp()
        queue = self.existing_queue(topic, queue_id)
        return -1 if queue is None else self._reader.earliest_timestamp(queue)

    def physical_offset(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Physical offset of the message at this queue offset, None without one."""
        queue = self.existing_queue(topic, queue_id)
        unit = None if queue is None else self._reader.unit(queue, offset)
        return None if unit is None else unit[0]
