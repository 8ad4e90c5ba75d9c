"""Applies committed entries to the state machine, in order and in bounded steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from epochmq_dledger.core.types import Snapshot
from epochmq_dledger.peer_context import PeerContext
from epochmq_dledger.snapshot_taker import SnapshotTaker
from epochmq_dledger.state_machine import StateMachine
from epochmq_protocol.dledger import MEMBERS_CHANNEL, DLedgerEntry

APPLY_MAX = 1000
"""Entries applied in one turn of the event loop; the others follow in the next turns."""
APPLY_WAIT_S = 0.005
"""The interval at which to look whether the pending effects, such as saving a vote, have been carried out."""


class EntryApplier:
    """Applies the entries of one peer. `apply` is not called with membership entries."""

    def __init__(
        self,
        context: PeerContext,
        apply: Callable[[DLedgerEntry], None],
        machine: StateMachine | None,
        snapshots: SnapshotTaker,
    ) -> None:
        self._context = context
        self._apply = apply
        self._machine = machine
        self._snapshots = snapshots
        self._actions: list[tuple[int, Callable[[], None]]] = []
        """(index, action to run once this index is applied)."""
        self._next_turn: asyncio.Handle | None = None

    def apply_committed(self) -> None:
        """Applies committed entries, at most `APPLY_MAX`, and schedules a further turn for the others."""
        context = self._context
        last = min(context.committed_index, context.applied_index + APPLY_MAX)
        while context.applied_index < last:
            entry = context.log.entry(context.applied_index + 1)
            assert entry is not None, f"committed entry {context.applied_index + 1} is not in the log"
            if entry.channel != MEMBERS_CHANNEL:
                self._apply(entry)
            context.applied_index += 1
        if context.applied_index < context.committed_index and self._next_turn is None:
            self._next_turn = asyncio.get_running_loop().call_soon(self._continue)
        while self._actions and self._actions[0][0] <= context.applied_index:
            self._actions.pop(0)[1]()
        self._snapshots.take_if_due()

    def _continue(self) -> None:
        self._next_turn = None
        if not self._context.is_running:
            return
        if self._context.effects:  # a pending effect may reset the log
            self._next_turn = asyncio.get_running_loop().call_later(APPLY_WAIT_S, self._continue)
            return
        try:
            self.apply_committed()
        except Exception as error:
            self._context.fail(error)

    def when_applied(self, index: int, action: Callable[[], None]) -> None:
        """Runs an action once an index is applied: now, unless the last turn had too many entries."""
        if index <= self._context.applied_index:
            action()
        else:
            self._actions.append((index, action))

    def restore(self, snapshot: Snapshot) -> None:
        """Loads a leader's snapshot into the state machine."""
        context = self._context
        if self._machine is not None:
            self._machine.restore(context.snapshots.read(0, snapshot.size))
        context.applied_index = snapshot.index
        self.apply_committed()

    def stop(self) -> None:
        """Cancels further turns."""
        if self._next_turn is not None:
            self._next_turn.cancel()
