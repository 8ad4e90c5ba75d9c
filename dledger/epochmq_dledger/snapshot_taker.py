"""Takes snapshots of the state machine, and makes snapshots durable, those of a leader included."""

from __future__ import annotations

import logging
import os
from functools import partial

from epochmq_dledger.core.types import Snapshot, SnapshotInstalled, SnapshotRejected, SnapshotSaved
from epochmq_dledger.peer_context import PeerContext
from epochmq_dledger.state_machine import StateMachine
from epochmq_dledger.store.segments import is_disk_full
from epochmq_protocol.checksum import crc32

log = logging.getLogger(__name__)


class SnapshotTaker:
    """The snapshots of one peer; without a state machine it takes none."""

    def __init__(self, context: PeerContext, machine: StateMachine | None) -> None:
        self._context = context
        self._machine = machine
        self._is_saving = False
        self._retry_from = 0
        """After a failed snapshot the next one is tried once this index is applied."""

    def take_if_due(self) -> None:
        """Takes a snapshot if enough entries were applied since the last one. The state is saved on the event
        loop, because no entry may be applied meanwhile; a worker thread writes the file."""
        context, machine = self._context, self._machine
        applied_index = context.applied_index
        every, last = context.settings.snapshot_entries, context.snapshots.current
        since = applied_index - (last.index if last is not None else context.log.begin_index - 1)
        if machine is None or not 0 < every <= since or self._is_saving or context.is_stopping:
            return
        if applied_index < self._retry_from:
            return
        entry = context.log.entry(applied_index)
        if entry is None or not context.started_node.may_compact():
            return
        data = machine.save()
        members = context.started_node.member.membership.addresses_at(applied_index)
        snapshot = Snapshot(entry, len(data), crc32(data), members)
        self.save(snapshot, data, SnapshotSaved(snapshot))

    def install(self, snapshot: Snapshot, data: bytes) -> None:
        """Makes a leader's snapshot durable, unless the state machine cannot load it. With such a snapshot
        the peer would stop, and could not start again."""
        try:
            if self._machine is not None:
                self._machine.check(data)
        except ValueError as error:
            self._context.feed(SnapshotRejected(snapshot, str(error)))
        else:
            self.save(snapshot, data, SnapshotInstalled(snapshot))

    def save(self, snapshot: Snapshot, data: bytes, then: SnapshotSaved | SnapshotInstalled) -> None:
        """Makes a snapshot durable on a worker thread, and then feeds an input to the core."""
        self._is_saving = True
        job = partial(self._context.snapshots.save, snapshot, data)
        self._context.file_worker.run(
            job,
            lambda descriptor: self._on_saved(snapshot, descriptor, then),
            lambda error: self._on_failed(snapshot, error, then),
        )

    def _on_saved(self, snapshot: Snapshot, descriptor: int, then: SnapshotSaved | SnapshotInstalled) -> None:
        self._is_saving = False
        context = self._context
        if context.node is None:
            os.close(descriptor)
            return
        context.snapshots.set_current(snapshot, descriptor)
        log.info(
            "%s: wrote a snapshot up to entry %d (%d bytes)",
            context.settings.self_id,
            snapshot.index,
            snapshot.size,
        )
        context.feed(then)

    def _on_failed(
        self, snapshot: Snapshot, error: Exception, then: SnapshotSaved | SnapshotInstalled
    ) -> None:
        self._is_saving = False
        context = self._context
        if isinstance(then, SnapshotInstalled) or not is_disk_full(error):
            context.fail(error)
            return
        log.warning(
            "%s: cannot write a snapshot up to entry %d: %s", context.settings.self_id, snapshot.index, error
        )
        self._retry_from = context.applied_index + context.settings.snapshot_entries
