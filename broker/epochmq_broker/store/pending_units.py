"""Which consume queues hold units in memory that are not in their files yet, and how much memory that takes.

A queue reports itself when it gets its first unit since it was last written, and again when `DUE_BYTES` have
come together. The append path pays nothing for it: a queue that has nothing to write has no room for a unit
either, so that the next one calls `ConsumeQueue.make_room`, which reports it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from epochmq_broker.store.mapped_file import QueuesBehindError

if TYPE_CHECKING:
    from epochmq_broker.store.consume_queue import ConsumeQueue
    from epochmq_broker.store.queue_files import QueueFile, QueueFiles

DUE_BYTES: Final = 2 * 4096  # RocketMQ flushes a queue from two dirty pages on (flushConsumeQueueLeastPages)
HURRY_BYTES: Final = 16 << 20
HELD_MAX_BYTES: Final = 128 << 20
"""Units of six million messages: nothing more is accepted until the disk has taken some."""


class PendingUnits:
    """What is to be written. `waiting` are the queues that hold unwritten units, the longest waiting first;
    `due` those that hold DUE_BYTES or more; `unsynced` the files that were written since they were last
    synced; `removed` and `folders` are the files of queues that are gone, to be deleted before anything else
    is written."""

    __slots__ = (
        "due",
        "folders",
        "held_bytes",
        "hurry",
        "hurry_bytes",
        "is_written_elsewhere",
        "max_bytes",
        "removed",
        "unsynced",
        "waiting",
    )

    def __init__(self, *, hurry_bytes: int = HURRY_BYTES, max_bytes: int = HELD_MAX_BYTES) -> None:
        self.waiting: dict[ConsumeQueue, None] = {}
        self.due: dict[ConsumeQueue, None] = {}
        self.unsynced: dict[QueueFile, None] = {}
        self.removed: list[QueueFiles] = []
        self.folders: list[Path] = []
        self.held_bytes = 0
        self.hurry_bytes = hurry_bytes
        self.max_bytes = max_bytes
        self.hurry: Callable[[], None] = self.write_all
        """Called when `hurry_bytes` are held. Without a worker thread everything is written at once."""
        self.is_written_elsewhere = False
        """Whether a worker thread writes, and deletes."""

    def hold(self, more: int) -> None:
        """A queue takes so much more memory. Raises QueuesBehindError when there would be too much of it, or
        what `hurry` raises."""
        if self.held_bytes + more > self.hurry_bytes:
            self.hurry()
            if self.held_bytes + more > self.max_bytes:
                raise QueuesBehindError(
                    f"consume queues hold {self.held_bytes} bytes that the disk has not taken yet"
                )
        self.held_bytes += more

    def free(self, less: int) -> None:
        """A queue gives back memory."""
        self.held_bytes -= less

    def forget(self, queue: ConsumeQueue) -> None:
        """The queue has nothing to write any more."""
        self.waiting.pop(queue, None)
        self.due.pop(queue, None)

    def remove(self, files: QueueFiles) -> None:
        """The files are not needed any more. Raises OSError."""
        self.removed.append(files)
        if not self.is_written_elsewhere:
            self.remove_all()

    def remove_folders(self, folders: Iterable[Path]) -> None:
        """The folders of topics are not needed any more; whatever is in them goes. Raises OSError."""
        self.folders.extend(folders)
        if not self.is_written_elsewhere:
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
