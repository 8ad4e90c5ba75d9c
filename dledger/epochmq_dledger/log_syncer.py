"""Makes the log durable on a worker thread: syncs written entries, and erases dropped entries."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from epochmq_dledger.core.raft_log import LogFullError
from epochmq_dledger.core.types import ErasureCompleted, LogSynced
from epochmq_dledger.peer_context import PeerContext
from epochmq_dledger.store.segments import sync_and_close

log = logging.getLogger(__name__)

FLUSH_INTERVAL_S = 0.01
"""How long an asynchronous flush waits for further entries (DLedger: 10 ms)."""


class LogSyncer:
    """Syncs the log of one peer. One sync covers all entries written until it starts (group commit).

    `flush_async`: entries count as synced once they are written, and a flush follows soon, as in DLedger."""

    def __init__(self, context: PeerContext, *, flush_async: bool) -> None:
        self._context = context
        self._flush_async = flush_async
        self._is_syncing = False
        self._flush_timer: asyncio.TimerHandle | None = None

    def sync_if_needed(self) -> None:
        """Starts a sync of entries that are not durable. During an erasure nothing is synced: the first entry
        of a log that was reset may exist in memory only."""
        context = self._context
        if (self._is_syncing and not self._flush_async) or context.error is not None:
            return
        if context.log.end_index <= context.started_node.member.synced_index or not context.log.is_writable:
            return
        if self._flush_async:
            self._flush_soon()
            context.feed(LogSynced(context.log.end_index, context.log.end_term))
        else:
            self._sync()

    def _sync(self) -> None:
        log = self._context.log
        index, term = log.end_index, log.end_term
        self._is_syncing = True
        job = partial(sync_and_close, log.take_unsynced())
        self._context.sync_worker.run(job, lambda _: self._on_synced(index, term))

    def _on_synced(self, index: int, term: int) -> None:
        self._is_syncing = False
        if self._context.node is not None:
            self._context.log.mark_synced(index, term)
            self._context.feed(LogSynced(index, term))

    def _flush_soon(self) -> None:
        if self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(FLUSH_INTERVAL_S, self._flush)

    def _flush(self) -> None:
        """Syncs in the background entries that are already acknowledged."""
        self._flush_timer = None
        if self._context.error is not None or self._context.is_stopping:
            return
        if self._is_syncing or not self._context.log.is_writable:
            self._flush_soon()
        else:
            self._sync()

    def erase(self) -> None:
        """Starts to erase the entries that the log has dropped."""
        self._context.sync_worker.run(self._context.log.take_erasure(), self._on_erased)

    def _on_erased(self, _: None) -> None:
        if not self._context.is_running:
            return
        try:
            self._context.log.on_erasure_completed()
        except (OSError, LogFullError) as error:
            self._context.fail(error)
        else:
            self._context.feed(ErasureCompleted())

    def cancel_flush(self) -> None:
        """Cancels an asynchronous flush that is not due yet. The caller then calls `sync_all`."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()

    def sync_all(self) -> None:
        """Completes an erasure and syncs all entries. The stop of the peer calls it on a worker thread."""
        log = self._context.log
        if not log.is_writable:
            log.erase_now()
        end = log.end_index, log.end_term
        sync_and_close(log.take_unsynced())
        log.mark_synced(*end)
