"""Tracks the consume queues with unwritten units in memory, and the memory that the units take.

A queue enters itself in `waiting` when it gets its first unit after a write, and in `due` when it holds
`WRITE_THRESHOLD_BYTES`. An append needs no check for this: a queue without unwritten units has no buffer, so
its next unit calls `ConsumeQueue.make_room`, which enters the queue.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar, Final, Protocol

from epochmq_store.files.mapped_file import QueueMemoryFullError
from epochmq_store.files.queue_files import QueueFile, QueueFiles

WRITE_THRESHOLD_BYTES: Final = 2 * 4096
"""RocketMQ flushes a queue that has two dirty pages or more (flushConsumeQueueLeastPages)."""
EARLY_WRITE_BYTES: Final = 16 << 20
MEMORY_MAX_BYTES: Final = 128 << 20
"""The units of six million messages. Beyond it, messages are rejected until units are written."""


class UnitSource(Protocol):
    """A consume queue, as the source of the units to write."""

    blank_unit: ClassVar[bytes]
    max_physical: int

    def unwritten(self) -> tuple[QueueFiles, int, bytes]:
        """The files, the start byte and a copy of the units that the files lack."""

    def mark_written(self) -> None:
        """Notes that units were written into the files. If these were all, calls `mark_queue_written`."""

    def newest_record(self) -> int:
        """Physical offset of the newest message, -1 if its unit is not in memory."""


class PendingUnits:
    """The queues with unwritten units, and the files to sync or delete.

    `waiting` holds the queues with unwritten units, the longest waiting first. `due` holds those among them
    with WRITE_THRESHOLD_BYTES or more. `unsynced` holds the files written since their last sync.
    `deleted_files` and `deleted_folders` belong to deleted queues; the writing thread deletes them before it
    writes anything else."""

    __slots__ = (
        "_start_early_write",
        "deleted_files",
        "deleted_folders",
        "due",
        "early_write_bytes",
        "max_bytes",
        "memory_used_bytes",
        "unsynced",
        "waiting",
        "written_by_worker",
    )

    def __init__(
        self, *, early_write_bytes: int = EARLY_WRITE_BYTES, max_bytes: int = MEMORY_MAX_BYTES
    ) -> None:
        self.waiting: dict[UnitSource, None] = {}
        self.due: dict[UnitSource, None] = {}
        self.unsynced: dict[QueueFile, None] = {}
        self.deleted_files: list[QueueFiles] = []
        self.deleted_folders: list[Path] = []
        self.memory_used_bytes = 0
        self.early_write_bytes = early_write_bytes
        self.max_bytes = max_bytes
        self._start_early_write: Callable[[], None] = self.write_all
        self.written_by_worker = False

    def write_on_worker(self, start_early_write: Callable[[], None]) -> None:
        """Leaves writes and deletions to a worker thread from now on. `start_early_write` is called when the
        units would take more than `early_write_bytes`."""
        self._start_early_write = start_early_write
        self.written_by_worker = True

    def write_on_caller(self) -> None:
        """Writes and deletes on the calling thread from now on, as before `write_on_worker`."""
        self._start_early_write = self.write_all
        self.written_by_worker = False

    def reserve_memory(self, size: int) -> None:
        """Reserves memory of `size` bytes for a queue. Raises QueueMemoryFullError beyond `max_bytes`, or an
        error of `write_all`."""
        if self.memory_used_bytes + size > self.early_write_bytes:
            self._start_early_write()
            if self.memory_used_bytes + size > self.max_bytes:
                raise QueueMemoryFullError(
                    f"consume queues hold {self.memory_used_bytes} bytes that are not written to disk"
                )
        self.memory_used_bytes += size

    def free_memory(self, size: int) -> None:
        """Releases memory of a queue."""
        self.memory_used_bytes -= size

    def newest_record(self) -> int:
        """Physical offset of the newest message in a queue with unwritten units, -1 without one."""
        newest = max(self.waiting, key=lambda queue: queue.max_physical, default=None)
        return -1 if newest is None else newest.newest_record()

    def mark_queue_written(self, queue: UnitSource) -> None:
        """Notes that a queue has no unwritten units any more: takes it off `waiting` and `due`."""
        self.waiting.pop(queue, None)
        self.due.pop(queue, None)

    def delete_files(self, files: QueueFiles) -> None:
        """Deletes files soon, or at once without a worker thread. Raises OSError."""
        self.deleted_files.append(files)
        if not self.written_by_worker:
            self.carry_out_deletions()

    def delete_folders(self, folders: Iterable[Path]) -> None:
        """Deletes the directories of topics with their content soon, or at once without a worker thread.
        Raises OSError, but not for a directory."""
        self.deleted_folders.extend(folders)
        if not self.written_by_worker:
            self.carry_out_deletions()

    def write_all(self) -> None:
        """Writes all units on the calling thread: while the store is loaded or stopped, and during appends
        without a worker thread. Raises DiskFullError or OSError; queues that could not be written stay in
        `waiting`."""
        self.carry_out_deletions()
        for queue in list(self.waiting):
            files, start, data = queue.unwritten()
            if data:
                files.write(start, data, queue.blank_unit, self.unsynced)
            queue.mark_written()

    def carry_out_deletions(self) -> None:
        """Deletes the files and directories of deleted queues on the calling thread. Raises OSError."""
        while self.deleted_files:
            self.deleted_files[-1].destroy()
            self.deleted_files.pop()
        while self.deleted_folders:
            shutil.rmtree(self.deleted_folders.pop(), ignore_errors=True)
