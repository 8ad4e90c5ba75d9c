"""Holds what the parts of a running peer share: settings, files, workers, the core and the way back to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

from epochmq_dledger.core.node import RaftNode
from epochmq_dledger.core.types import RaftEffect, RaftInput, RaftSettings
from epochmq_dledger.disk_worker import DiskWorker
from epochmq_dledger.store.file_log import FileLog
from epochmq_dledger.store.snapshot_file import SnapshotFile


class PeerContext:
    """One peer's shared state. The driver of the core sets `feed`, `fail` and `set_timer` before
    anything runs."""

    feed: Callable[[RaftInput], None]
    """Passes an input to the core."""
    fail: Callable[[Exception], None]
    """Stops this peer for good, because of an error after which it can promise nothing."""
    set_timer: Callable[[], None]
    """Sets the core's timer for its next deadline, because a deadline has changed."""

    def __init__(self, settings: RaftSettings, folder: Path, log: FileLog | None = None) -> None:
        """`log`: None for a `FileLog` in this folder."""
        self.settings = settings
        self.folder = folder
        self.log = FileLog(folder, settings.file_size) if log is None else log
        self.snapshots = SnapshotFile(folder)
        self.node: RaftNode | None = None
        self.before_membership: Callable[[], None] = lambda: None
        """Called before an input with which this leader may append a membership entry."""
        self.on_members: Callable[[], None] = lambda: None
        """Called at once when the log has got a membership entry, or lost one."""
        self.applied_index = -1
        """The state machine has applied entries up to this index."""
        self.error: Exception | None = None
        """Why this peer has stopped for good."""
        self.is_stopping = False
        self.effects: deque[RaftEffect] = deque()
        """Effects that wait until the vote before them is saved. The requests, proposals and reads that
        caused them are bounded by the limits of their senders."""
        self.sync_worker = DiskWorker("dledger-sync", self._on_job_failed)
        """Syncs and erases the log, and saves votes."""
        self.file_worker = DiskWorker("dledger-files", self._on_job_failed)
        """Writes checkpoints and snapshots, and removes files."""

    def _on_job_failed(self, error: Exception) -> None:
        self.fail(error)

    @property
    def is_running(self) -> bool:
        """Whether the peer is started and has not failed."""
        return self.node is not None and self.error is None

    @property
    def started_node(self) -> RaftNode:
        """The core of a started peer."""
        assert self.node is not None, "not started"
        return self.node

    @property
    def committed_index(self) -> int:
        """Up to this index the log is known to be committed."""
        return self.started_node.member.committed_index
