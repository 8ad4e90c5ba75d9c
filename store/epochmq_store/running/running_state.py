"""Tracks whether the store accepts messages, and the reasons why not (RunningFlags)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from epochmq_store.appending.appender import Appender
from epochmq_store.files.fsync_failure import FsyncFailure, is_descriptor_shortage
from epochmq_store.files.mapped_file import DiskFullError
from epochmq_store.index.key_index import INDEX_BACKLOG_MAX
from epochmq_store.statuses import PutStatus, RunningFlags

log = logging.getLogger(__name__)


class RunningState:
    """The running flags of one store. The appender rejects messages while a flag other than NOT_READABLE is
    set, while the log has bytes that are not dispatched, and before the start and after the stop of the
    store."""

    def __init__(self, appender: Appender, fsync_failure: FsyncFailure) -> None:
        self.flags = RunningFlags(0)
        self.has_undispatched = False  # the log ends with replicated bytes that no queue has a unit for
        self.on_writable: list[Callable[[bool], None]] = []
        """Called with whether messages are accepted, when that changes."""
        self.on_fsync_failure: list[Callable[[], None]] = []  # called after a failed fsync, or damage
        self._appender = appender
        self._fsync_failure = fsync_failure
        appender.report_failures(
            on_failure=self.report_space_failure, on_index_backlog=self._report_index_backlog
        )
        self.reject_messages()

    @property
    def writable(self) -> bool:
        """Whether the store accepts messages."""
        return self._appender.rejection is None

    def reject_messages(self) -> None:
        """Rejects messages until the next `update`."""
        self._set_rejection(PutStatus.SERVICE_NOT_AVAILABLE)

    def update(self) -> None:
        """Accepts messages, unless there is a reason not to."""
        reasons = self.flags & ~RunningFlags.NOT_READABLE
        rejects = bool(reasons) or self.has_undispatched
        self._set_rejection(PutStatus.SERVICE_NOT_AVAILABLE if rejects else None)

    def _set_rejection(self, rejection: PutStatus | None) -> None:
        was_writable = self.writable
        self._appender.reject(rejection)
        if self.writable != was_writable:
            for listener in self.on_writable:
                listener(self.writable)

    def set_flag(self, flag: RunningFlags, on: bool) -> None:
        """Sets or clears a reason not to read or write."""
        self.flags = self.flags | flag if on else self.flags & ~flag
        self.update()

    def set_undispatched(self, has_undispatched: bool) -> None:
        """Sets whether the log has bytes that are not dispatched."""
        self.has_undispatched = has_undispatched
        self.update()

    def report_fsync_failure(self, error: OSError) -> None:
        """Rejects messages until the store is restarted, because an fsync has failed."""
        log.critical("the store rejects messages until it is restarted: fsync failed: %s", error)
        self._stop_trusting_the_disk(error, RunningFlags.FLUSH_FAILED)

    def report_damage(self, error: OSError) -> None:
        """Rejects messages until the store is restarted, because a confirmed record of the log cannot be
        read. The disk is trusted as little as after a failed fsync."""
        log.critical("the store rejects messages until it is restarted: %s", error)
        self._stop_trusting_the_disk(error, RunningFlags.FLUSH_FAILED | RunningFlags.LOG_DAMAGED)

    def _stop_trusting_the_disk(self, error: OSError, flags: RunningFlags) -> None:
        self._fsync_failure.report(error)
        self.set_flag(flags, True)
        for listener in self.on_fsync_failure:
            listener()

    def report_sync_error(self, error: OSError | DiskFullError) -> None:
        """Handles an error of an operation that syncs files. A full disk or a shortage of file descriptors is
        not a failed fsync."""
        if isinstance(error, OSError) and not is_descriptor_shortage(error):
            self.report_fsync_failure(error)

    def report_space_failure(self, error: OSError | DiskFullError) -> None:
        """Handles a full disk, or a file that could not be created."""
        log.error("the store cannot allocate space for messages: %s", error)
        if isinstance(error, DiskFullError):
            self.set_flag(RunningFlags.DISK_FULL, True)

    def _report_index_backlog(self) -> None:
        log.error("the store rejects messages: %d or more are not in the index yet", INDEX_BACKLOG_MAX)
        self.set_flag(RunningFlags.WRITE_INDEX_FILE_ERROR, True)
