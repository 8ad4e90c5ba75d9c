"""Expires units of consume queues whose messages the log has lost (CleanConsumeQueueService).

A heap orders the queues by the physical offset of their first message, and so tells which queues lose
messages when the log's first offset rises. A worker thread searches only these, some at a time. Queues
created since the last run are searched once.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from epochmq_store.files.queue_files import QueueFile
from epochmq_store.files.worker_thread import WorkerBusyError, WorkerThread
from epochmq_store.queues.consume_queue import ConsumeQueue, ExpiredUnits
from epochmq_store.queues.consume_queues import ConsumeQueues

log = logging.getLogger(__name__)

QUEUES_PER_JOB: Final = 256
PAUSE_S: Final = 0.02

_SearchedQueues = list[tuple[ConsumeQueue, ExpiredUnits | None]]


class QueueExpiry:
    """Expires the units of one store's queues."""

    def __init__(
        self,
        *,
        queues: ConsumeQueues,
        worker: WorkerThread,
        loop: asyncio.AbstractEventLoop,
        delete: Callable[[QueueFile], None],
        log_end: Callable[[], int],
    ) -> None:
        """`delete` deletes a file on a worker thread; `log_end` returns the end of the log."""
        self._log_end = log_end
        self._queues = queues
        self._worker = worker
        self._loop = loop
        self._delete = delete
        self._heap: list[
            tuple[int, int, ConsumeQueue]
        ] = []  # (physical offset of the first message, n, queue)
        self._number = 0
        self._due: deque[ConsumeQueue] = deque()
        self._min_physical = 0
        self._running = False
        self._timer: asyncio.TimerHandle | None = None
        queues.offer_all_as_new()

    def expire_before(self, min_physical: int) -> None:
        """Expires the units before this physical offset, the first of the log."""
        self._min_physical = max(self._min_physical, min_physical)
        self._due.extend(self._queues.take_new_queues())
        while self._heap and self._heap[0][0] < min_physical:
            self._due.append(heapq.heappop(self._heap)[2])
        self._search_more()

    def stop(self) -> None:
        """Ends the search."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due.clear()

    def _search_more(self) -> None:
        self._timer = None
        if self._running or not self._due:
            return
        some = [self._due.popleft() for _ in range(min(len(self._due), QUEUES_PER_JOB))]
        min_physical = self._min_physical

        def search() -> None:
            found = [(queue, _search(queue, min_physical)) for queue in some]
            self._loop.call_soon_threadsafe(self._search_completed, found, min_physical)

        try:
            self._worker.submit(search)
        except WorkerBusyError:
            self._due.extend(some)
            self._timer = self._loop.call_later(PAUSE_S, self._search_more)
            return
        self._running = True

    def _search_completed(self, found: _SearchedQueues, min_physical: int) -> None:
        self._running = False
        for queue, expired in found:
            if self._queues.get((queue.topic, queue.queue_id)) is not queue:
                continue
            first = -1  # it could not be read, and is searched again next time
            if expired is not None:
                for file in queue.expire(expired, min_physical):
                    self._delete(file)
                first = expired.first_physical_offset
                if first < 0:
                    # The next message of an empty queue will lie after the present end of the log.
                    end = max(self._log_end(), self._min_physical)
                    first = queue.first_physical_offset_in_memory(end)
                if first < self._min_physical:
                    # Since the search, the log has lost more, or units went from memory to the disk.
                    self._due.append(queue)
                    continue
            self._number += 1
            heapq.heappush(self._heap, (first, self._number, queue))
        if self._due and self._timer is None:
            self._timer = self._loop.call_later(PAUSE_S, self._search_more)


def _search(queue: ConsumeQueue, min_physical: int) -> ExpiredUnits | None:
    try:
        return queue.find_expired(min_physical)
    except OSError as error:
        log.error("queue %s cannot be searched for expired messages: %s", queue, error)
        return None
