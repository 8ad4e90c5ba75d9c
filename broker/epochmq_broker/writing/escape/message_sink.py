"""Describes where the special services put their messages: the log of this broker, or another group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from epochmq_broker.writing.inner_message import InnerMessage, PutResult
from epochmq_broker.writing.message_writer import MessageWriter
from epochmq_store.statuses import PutStatus


class MessageSink(Protocol):
    """Takes messages, and tells up to which of them all are safe. A `MessageWriter` is one.

    The ends of results rise. A service keeps the end of the last message beside the offset that depends on it
    (`safe_progress.SafeProgress`), and forgets both when it starts and stops: another sink may follow."""

    @property
    def sends_wait(self) -> bool:
        """Whether a message may be unsafe when `put` returns."""
        ...

    @property
    def is_remote(self) -> bool:
        """Whether messages go to another group, because this broker acts for its group's master."""
        ...

    @property
    def local_writer(self) -> MessageWriter | None:
        """The writer that takes all messages now; None while they go to another group, or nowhere."""
        ...

    @property
    def end(self) -> int:
        """The end of everything that was put so far, as in `PutResult.end`."""
        ...

    def put(self, message: InnerMessage) -> PutResult:
        """Takes a message. PUT_OK: it is in the log, or on its way to another group, which is repeated until
        it succeeds. Other results: the caller has to put it again later. Raises RequestError for messages
        that this broker does not support."""
        ...

    def safe_end(self, *, acknowledged: bool = False) -> int:
        """The end up to which all messages are safe; with `acknowledged`, up to which a sender would be told
        so."""
        ...

    def when_safe(self, end: int, done: Callable[[PutStatus], None]) -> None:
        """Calls `done` once: with PUT_OK as soon as everything up to this end is safe, with another status
        when that takes too long."""
        ...
