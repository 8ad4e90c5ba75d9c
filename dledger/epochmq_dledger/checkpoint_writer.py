"""Writes a peer's checkpoint every 3 s: the index of the last durable entry, and the committed index.

At the next start, recovery compares the recovered log with the checkpoint: a log that ends before the
committed index is a damaged log, and so is one that ends before the last entry that the peer had when it
stopped in order.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from epochmq_dledger.peer_context import PeerContext
from epochmq_dledger.store import state_files
from epochmq_dledger.store.segments import is_disk_full

log = logging.getLogger(__name__)

CHECKPOINT_INTERVAL_S = 3.0


class CheckpointWriter:
    """Writes the checkpoints of one peer."""

    def __init__(self, context: PeerContext) -> None:
        self._context = context
        self._is_saving = False
        self._saved = (-1, -1)
        self.due_s = 0.0
        """When to write the next checkpoint, on the clock of the event loop."""

    def start(self) -> None:
        """Schedules the first checkpoint."""
        self.due_s = asyncio.get_running_loop().time() + CHECKPOINT_INTERVAL_S

    def next_due_s(self) -> float | None:
        """When to write the next checkpoint, None while one is being written."""
        return None if self._is_saving else self.due_s

    def save_if_due(self) -> None:
        """Starts to write a checkpoint on a worker thread, if it is time and the last one is outdated."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self.due_s or self._is_saving or self._context.error is not None:
            return
        self.due_s = now_s + CHECKPOINT_INTERVAL_S
        values = self.durable()
        if values != self._saved:
            self._is_saving = True
            job = partial(state_files.save_checkpoint, self._context.folder, *values)
            self._context.file_worker.run(job, lambda _: self._on_saved(values), self._on_failed)

    def save_now(self) -> None:
        """Writes the last checkpoint on the calling thread, after all entries were synced. The stop of the
        peer calls it on a worker thread."""
        state_files.save_checkpoint(self._context.folder, *self.durable(), has_stopped=True)

    def durable(self) -> tuple[int, int]:
        """The index of the last durable entry, and the committed index if it is lower, else the former again:
        recovery would take a log for damaged that ends before the committed index of the checkpoint."""
        durable_index = self._context.log.durable_index
        return durable_index, min(self._context.committed_index, durable_index)

    def _on_saved(self, values: tuple[int, int]) -> None:
        self._is_saving = False
        self._saved = values
        self._context.set_timer()

    def _on_failed(self, error: Exception) -> None:
        """On a full disk the previous checkpoint stays; it remains valid. After any other error the peer
        fails, as after every disk failure."""
        self._is_saving = False
        if is_disk_full(error):
            log.warning("%s: cannot write the checkpoint: %s", self._context.folder, error)
            self._context.set_timer()
        else:
            self._context.fail(error)
