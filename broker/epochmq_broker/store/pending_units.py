"""Which consume queues hold units in memory that are not in their files yet, and how much memory that takes.

A queue reports itself when it gets its first unit since it was last written, and again when it holds
`WRITE_THRESHOLD_BYTES`. The append path pays nothing for it: a queue without unwritten units has no room for
a unit either, so the next unit calls `ConsumeQueue.make_room`, which reports the queue.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from epochmq_broker.store.mapped_file import QueueMemoryFullError

if TYPE_CHECKING:
    from epochmq_broker.store.consume_queue import ConsumeQueue
    from epochmq_broker.store.queue_files import QueueFile, QueueFiles

WRITE_THRESHOLD_BYTES: Final = 2 * 4096
"""RocketMQ flushes a queue that has two dirty pages or more (flushConsumeQueueLeastPages)."""
EARLY_WRITE_BYTES: Final = 16 << 20
MEMORY_MAX_BYTES: Final = 128 << 20
"""Units of six million messages: nothing more is accepted until the disk has taken some."""


class PendingUnits:
    """The queues with unwritten units, and the files to sync or delete.

    `waiting` holds the queues with unwritten units, the longest waiting first. `due` holds those among them
    with WRITE_THRESHOLD_BYTES or more. `unsynced` holds the files written since their last sync. `removed`
    and `folders` belong to deleted queues; they are deleted before anything else is written."""

    __slots__ = (
        "due",
        "early_write_bytes",
        "folders",
        "hurry",
        "max_bytes",
        "memory_used_bytes",
        "removed",
        "unsynced",
        "waiting",
        "written_by_worker",
    )

    def __init__(
        self, *, early_write_bytes: int = EARLY_WRITE_BYTES, max_bytes: int = MEMORY_MAX_BYTES
    ) -> None:
        self.waiting: dict[ConsumeQueue, None] = {}
        self.due: dict[ConsumeQueue, None] = {}
        self.unsynced: dict[QueueFile, None] = {}
        self.removed: list[QueueFiles] = []
        self.folders: list[Path] = []
        self.memory_used_bytes = 0
        self.early_write_bytes = early_write_bytes
        self.max_bytes = max_bytes
        self.hurry: Callable[[], None] = self.write_all
        """Called when `early_write_bytes` are held. Without a worker thread everything is written at once."""
        self.written_by_worker = False
        """Whether a worker thread writes, and deletes."""

    def hold(self, more: int) -> None:
        """Counts `more` bytes of memory for a queue. Raises QueueMemoryFullError beyond `max_bytes`, or what
        `hurry` raises."""
        if self.memory_used_bytes + more > self.early_write_bytes:
            self.hurry()
            if self.memory_used_bytes + more > self.max_bytes:
                raise QueueMemoryFullError(
                    f"consume queues hold {self.memory_used_bytes} bytes that the disk has not taken yet"
                )
        self.memory_used_bytes += more

    def free(self, less: int) -> None:
        """A queue gives back memory."""
        self.memory_used_bytes -= less

    def forget(self, queue: ConsumeQueue) -> None:
        """The queue has nothing to write any more."""
        self.waiting.pop(queue, None)
        self.due.pop(queue, None)

    def remove(self, files: QueueFiles) -> None:
        """The files are not needed any more. Raises OSError."""
        self.removed.append(files)
        if not self.written_by_worker:
            self.remove_all()

    def remove_folders(self, folders: Iterable[Path]) -> None:
        """The folders of topics are not needed any more; whatever is in them goes. Raises OSError."""
        self.folders.extend(folders)
        if not self.written_by_worker:
            self.remove_all()

    def write_all(self) -> None:
        """Writes everything on the calling thread: while the store is loaded or stopped. Raises DiskFullError
        or OSError; what could not be written still waits."""
        self.remove_all()
        for queue in list(self.waiting):
            files, start, data = queue.unwritten()
            if data:
                files.write(start, data, queue.blank_unit, self.unsynced)
            queue.written()

    def remove_all(self) -> None:
        """Deletes the files of queues that are gone, on the calling thread. Raises OSError."""
        while self.removed:
            self.removed[-1].destroy()
            self.removed.pop()
        while self.folders:
            shutil.rmtree(self.folders.pop(), ignore_errors=True)
