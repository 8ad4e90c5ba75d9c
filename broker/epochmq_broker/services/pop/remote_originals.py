"""Reads popped messages of other groups for the revive queues. A checkpoint from the acting master of another
group names messages that only that group has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from epochmq_broker.services.pop.checkpoints import MergeKey, PopCheckPoint
from epochmq_broker.writing.escape.remote_messages import RemoteMessage, RemoteMessageReader

READS_MAX = 32
"""Messages of one checkpoint that are read at a time."""


class RemoteOriginals:
    """The messages of one checkpoint for each revive queue."""

    def __init__(self, reader: RemoteMessageReader) -> None:
        self._reader = reader
        self._found: dict[int, tuple[MergeKey, dict[int, RemoteMessage]]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def find(self, queue_id: int, checkpoint: PopCheckPoint, offset: int) -> RemoteMessage | None:
        """What was read of a message; None if it was not read yet."""
        key, found = self._found.get(queue_id, (None, {}))
        return found.get(offset) if key == checkpoint.key else None

    def read(self, queue_id: int, checkpoint: PopCheckPoint, done: Callable[[], None]) -> None:
        """Reads the first messages of a checkpoint that are not acknowledged, then calls `done`."""
        task = asyncio.get_running_loop().create_task(self._read(queue_id, checkpoint))
        self._tasks[queue_id] = task

        def finished(task: asyncio.Task[None]) -> None:
            if self._tasks.get(queue_id) is task:
                del self._tasks[queue_id]
                done()

        task.add_done_callback(finished)

    async def _read(self, queue_id: int, checkpoint: PopCheckPoint) -> None:
        assert checkpoint.topic is not None
        assert checkpoint.broker_name is not None
        offsets = checkpoint.unacknowledged[:READS_MAX]
        topic, number, name = checkpoint.topic, checkpoint.queue_id, checkpoint.broker_name
        reads = [self._reader.get_message(topic, number, offset, name) for offset in offsets]
        results = await asyncio.gather(*reads, return_exceptions=True)
        found = {
            offset: result if isinstance(result, RemoteMessage) else RemoteMessage(None, retries=True)
            for offset, result in zip(offsets, results, strict=True)
        }
        self._found[queue_id] = checkpoint.key, found

    def forget(self, queue_id: int) -> None:
        """Forgets the messages of a checkpoint that is done."""
        self._found.pop(queue_id, None)

    def stop(self) -> None:
        """Gives up the reads, and forgets everything."""
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.cancel()
        self._found.clear()
