"""Reports up to which position the log is committed, for a log without a state machine.

A commit log's owner reads the committed entries itself, many at once, so no entry is read here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from epochmq_dledger.core.types import Snapshot
from epochmq_dledger.peer_context import PeerContext


class CommittedEntries(Protocol):
    """What the driver of a core does with committed entries (`EntryApplier`, `CommitReporter`)."""

    def apply_committed(self) -> None:
        """The committed index has advanced."""

    def when_applied(self, index: int, action: Callable[[], None]) -> None:
        """Runs an action once the entries up to an index are applied."""

    def restore(self, snapshot: Snapshot) -> None:
        """Loads a leader's snapshot."""

    def stop(self) -> None:
        """The peer stops."""


class CommitReporter:
    """Calls `on_committed` with the position after the last committed entry, each time it advances. The files
    hold what is reported."""

    def __init__(self, context: PeerContext, on_committed: Callable[[int], None]) -> None:
        self._context = context
        self._on_committed = on_committed

    def apply_committed(self) -> None:
        context = self._context
        index = context.committed_index
        if index > context.applied_index:
            assert index <= context.log.stored_end_index, f"entry {index} is in memory only"
            context.applied_index = index
            self._on_committed(context.log.end_position(index))

    def when_applied(self, index: int, action: Callable[[], None]) -> None:
        action()

    def restore(self, snapshot: Snapshot) -> None:
        raise AssertionError(f"a log without a state machine got a snapshot at entry {snapshot.index}")

    def stop(self) -> None:
        pass
