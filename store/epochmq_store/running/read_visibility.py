"""Decides which messages readers can see: with sync flush those on disk, with replication those before the
confirm offset."""

from __future__ import annotations

from epochmq_store.reading.message_reader import MessageReader
from epochmq_store.running.arrival_listeners import ArrivalListeners
from epochmq_store.running.log_flusher import LogFlusher


class ReadVisibility:
    """Sets the reader's `visible_end`, and notifies arrival listeners when messages become visible."""

    def __init__(
        self, reader: MessageReader, listeners: ArrivalListeners, log_flusher: LogFlusher, *, sync_flush: bool
    ) -> None:
        self._reader = reader
        self._listeners = listeners
        self._log_flusher = log_flusher
        self._sync_flush = sync_flush
        self._confirm_offset: int | None = None
        self._update()

    def configure(self, *, sync_flush: bool) -> None:
        """Applies the flush mode."""
        self._sync_flush = sync_flush
        self._update()

    def set_confirm_offset(self, offset: int | None) -> None:
        """Makes messages visible that end at or before this physical offset, None for all."""
        if offset != self._confirm_offset:
            self._confirm_offset = offset
            self._update()

    def note_flushed(self, offset: int) -> None:
        """Makes flushed messages visible. The log is on disk up to `offset`."""
        if self._sync_flush:
            limit = offset if self._confirm_offset is None else min(offset, self._confirm_offset)
            self._reader.visible_end = limit
            self._listeners.release(limit)

    def note_dispatch(self) -> None:
        """Notifies the listeners of dispatched messages that readers could see before: a replica dispatches
        what its master has confirmed."""
        if self._reader.visible_end is not None:
            self._listeners.release(self._reader.visible_end)

    def note_truncation(self, offset: int) -> None:
        """Lowers the confirm offset to the new end of the log."""
        self._listeners.discard_held()
        if self._confirm_offset is not None:
            self._confirm_offset = min(self._confirm_offset, offset)
        self._update()

    def read(self, offset: int) -> bytes | None:
        """The record at this physical offset, None if there is none or readers cannot see it."""
        limit = self._reader.visible_end
        found = self._reader.read(offset)
        return None if found is None or (limit is not None and offset + len(found) > limit) else found

    def _update(self) -> None:
        limit = self._confirm_offset
        if self._sync_flush:
            flushed = self._log_flusher.flushed
            limit = flushed if limit is None else min(limit, flushed)
        self._reader.visible_end = limit
        # Readers wait for the flush of messages whose senders do not wait for it.
        flush_soon = self._log_flusher.flush_soon if self._sync_flush else None
        self._listeners.hold(limit is not None, on_held=flush_soon)
        if limit is not None:
            self._listeners.release(limit)
