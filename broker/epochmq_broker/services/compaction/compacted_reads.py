"""Reads messages of compacted queues for requests that also read the log: POPs, peeks, and what is revived.

Such a request must not wait for files on the event loop. As for a part of the log that is not in memory, the
read raises a `NotResidentError`; a worker thread reads the messages, and the request runs again and takes
them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from epochmq_broker.services.compaction.compacted_queue import CompactedQueue, GetLimits
from epochmq_broker.services.compaction.compaction_service import CompactionService
from epochmq_store.files.page_residency import NotResidentError
from epochmq_store.message_store import MessageStore
from epochmq_store.queues.consume_queue import ConsumeQueue
from epochmq_store.statuses import GetResult, GetStatus

KEPT_MAX: Final = 64
"""Results that wait for their request; each has at most 256 KiB, or one message. A request whose result was
dropped reads again."""

_Key = tuple[str, int, int, int]


class MessagesNotReadError(NotResidentError):
    """Messages of a compacted queue are to be read first."""

    def __init__(
        self, queue: CompactedQueue, offset: int, limits: GetLimits, keep: Callable[[GetResult], None]
    ) -> None:
        Exception.__init__(self, f"the messages of {queue} from offset {offset} on are not read yet")
        self.others = []
        self._queue = queue
        self._offset = offset
        self._limits = limits
        self._keep = keep

    def load(self) -> None:
        """Reads the messages, on a worker thread. Raises StoreReadError or OSError."""
        self._keep(self._queue.get(self._offset, self._limits))

    def own_blocks(self) -> set[tuple[object, int]]:
        """A block of its own: what another request reads is not kept for this one."""
        return {(self, 0)}


class CompactedReads:
    """The reads of one broker. All methods run on the event loop."""

    def __init__(self, service: CompactionService, store: MessageStore) -> None:
        self._service = service
        self._store = store
        self._read: dict[_Key, GetResult] = {}
        self._lock = threading.Lock()  # guards the results, which worker threads add

    def queue_of(self, topic: str, queue_id: int) -> CompactedQueue | None:
        """The compacted queue, None if the topic is no compaction topic."""
        return self._service.queue_of(topic, queue_id)

    def listen(self, listener: Callable[[Any, int, int], None]) -> None:
        """Registers a listener of arriving messages; those of a compacted queue arrive again when it has
        them."""
        self._store.on_arrival.append(listener)
        self._service.on_append.append(listener)

    def min_offset(self, queue: ConsumeQueue) -> int:
        """The offset of the first message of a queue: a compacted queue also has messages that the log has
        not any more."""
        compacted = self._service.queue_of(queue.topic, queue.queue_id)
        if compacted is None or compacted.min_offset < 0:
            return queue.min_offset
        return min(queue.min_offset, compacted.min_offset)

    def first_offset(self, topic: str, queue_id: int) -> int:
        """The offset of a queue's first message, whether the log or only the files of a compaction topic have
        it. The only source of it for requests: clients seek to the offset in the response. As in RocketMQ
        it is 0 for a queue that does not exist, and -1 for a batch consume queue that does not."""
        queue = self._store.lookup.existing_queue(topic, queue_id)
        if queue is None:
            return self._store.lookup.min_offset(topic, queue_id)
        return self.min_offset(queue)

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, *, upper: bool = False) -> int:
        """The offset of a queue at a store time, in epoch ms (`QueueLookup.offset_by_time`). Before the time
        of the log's first message it is the first offset of the compacted files."""
        lookup = self._store.lookup
        found = lookup.offset_by_time(topic, queue_id, time_ms, upper=upper)
        first = self.first_offset(topic, queue_id)
        return first if first < found and time_ms < lookup.earliest_time(topic, queue_id) else found

    def get(self, queue: CompactedQueue, offset: int, count: int) -> GetResult:
        """The messages of a compacted queue from an offset on. Raises MessagesNotReadError, unless the reader
        of the store may wait for the disk; then StoreReadError or OSError. Raises RequestError SYSTEM_BUSY
        while the queue is opened."""
        self._service.require_loaded(queue)
        result = queue.result_without_reads(offset)
        if result is not None:
            return self._unless_behind(queue, offset, result)
        key = (queue.topic, queue.queue_id, offset, count)
        with self._lock:
            result = self._read.pop(key, None)
        if result is not None:
            return result
        limits = self._service.limits(count)
        if self._store.reader.resident_only is None:
            return queue.get(offset, limits)
        raise MessagesNotReadError(queue, offset, limits, partial(self._keep, key))

    def _unless_behind(self, queue: CompactedQueue, offset: int, found: GetResult) -> GetResult:
        """An offset beyond the end is no error while the compacted queue does not have all messages yet."""
        if found.status is not GetStatus.OFFSET_OVERFLOW_BADLY:
            return found
        source = self._store.lookup.existing_queue(queue.topic, queue.queue_id)
        if source is None or offset > source.max_offset:
            return found
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, found.min_offset, offset)

    def _keep(self, key: _Key, found: GetResult) -> None:
        with self._lock:
            self._read.pop(key, None)
            while len(self._read) >= KEPT_MAX:
                del self._read[next(iter(self._read))]
            self._read[key] = found
