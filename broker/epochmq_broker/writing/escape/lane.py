"""The way out of one special service: into the log of this broker, or to another group.

`put` never waits. A message for another group is sent in the background, and repeated until the group has
stored it. What the service does with its offsets is the same in both cases: they move when everything before
them is safe, in the log or at the other group."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from epochmq_broker.writing.escape.rules import Destination, EscapeKind
from epochmq_broker.writing.escape.window import EscapeWindow
from epochmq_broker.writing.inner_message import InnerMessage, PutResult
from epochmq_broker.writing.message_writer import MessageWriter
from epochmq_store.statuses import PutStatus

SAFE_TIMEOUT_S: Final = 3.0
"""How long a response waits until another group has stored a message (EscapeBridge.SEND_TIMEOUT)."""


class EscapeSender(Protocol):
    """The part of the bridge that a lane uses."""

    def destination(self) -> Destination:
        """Where messages go now."""
        ...

    def has_room(self, message: InnerMessage) -> bool:
        """Whether a further message may wait in memory."""
        ...

    def send(self, kind: EscapeKind, message: InnerMessage, done: Callable[[], None]) -> None:
        """Sends a message until another group has stored it, then calls `done`."""
        ...


class EscapeLane:
    """The messages of one service (`MessageSink`)."""

    def __init__(self, kind: EscapeKind, sender: EscapeSender, writer: MessageWriter) -> None:
        self.kind = kind
        self._sender = sender
        self._writer = writer
        self._window = EscapeWindow()
        self._waiters: deque[_Waiter] = deque()

    @property
    def waiting(self) -> int:
        """The number of messages that no other group has acknowledged."""
        return self._window.waiting

    @property
    def is_remote(self) -> bool:
        """See `MessageSink`."""
        return self._sender.destination() is Destination.REMOTE

    @property
    def local_writer(self) -> MessageWriter | None:
        """See `MessageSink`."""
        return self._writer if self._is_local else None

    @property
    def sends_wait(self) -> bool:
        """See `MessageSink`."""
        return self._writer.sends_wait or self.is_remote

    @property
    def end(self) -> int:
        """See `MessageSink`."""
        return self._writer.end if self._is_local else self._window.issued

    def put(self, message: InnerMessage) -> PutResult:
        """See `MessageSink`. SERVICE_NOT_AVAILABLE: messages must not leave this group.
        PUT_TO_REMOTE_BROKER_FAIL: too many messages wait for other groups."""
        destination = self._sender.destination()
        if destination is Destination.LOCAL:
            return self._writer.put(message)
        if destination is Destination.NONE:
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE)
        window = self._window
        if not (window.has_room and self._sender.has_room(message)):
            return PutResult(PutStatus.PUT_TO_REMOTE_BROKER_FAIL)
        number = window.issue()
        self._sender.send(self.kind, message, lambda: self._acknowledge(number))
        return PutResult(
            PutStatus.PUT_OK, number, topic=message.topic, queue_id=message.queue_id, is_remote=True
        )

    def safe_end(self, *, acknowledged: bool = False) -> int:
        """See `MessageSink`."""
        if self._is_local:
            return self._writer.safe_end(acknowledged=acknowledged)
        return self._window.acknowledged

    def when_safe(self, end: int, done: Callable[[PutStatus], None]) -> None:
        """See `MessageSink`. FLUSH_SLAVE_TIMEOUT: no other group has stored the messages in time."""
        if self._is_local:
            self._writer.when_safe(end, done)
        elif end <= self._window.acknowledged:
            done(PutStatus.PUT_OK)
        else:
            waiter = _Waiter(end, done)
            self._waiters.append(waiter)
            waiter.start()

    def abandon(self) -> None:
        """Forgets the messages without acknowledgement; the service has stopped."""
        self._window.abandon()
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            waiter.finish(PutStatus.FLUSH_SLAVE_TIMEOUT)

    @property
    def _is_local(self) -> bool:
        """Whether ends are offsets in the log. When the role of an acting master ends, its services still
        ask about the messages that they have put."""
        return self._sender.destination() is Destination.LOCAL

    def _acknowledge(self, number: int) -> None:
        if not self._window.acknowledge(number):
            return
        for _ in range(len(self._waiters)):
            waiter = self._waiters.popleft()
            if waiter.end <= self._window.acknowledged:
                waiter.finish(PutStatus.PUT_OK)
            elif not waiter.finished:
                self._waiters.append(waiter)


class _Waiter:
    """A response that waits until messages have left."""

    __slots__ = ("_done", "_timer", "end", "finished")

    def __init__(self, end: int, done: Callable[[PutStatus], None]) -> None:
        self.end = end
        self.finished = False
        self._done = done
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begins the time limit."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(SAFE_TIMEOUT_S, self.finish, PutStatus.FLUSH_SLAVE_TIMEOUT)

    def finish(self, status: PutStatus) -> None:
        """Reports the result, once."""
        if self.finished:
            return
        self.finished = True
        if self._timer is not None:
            self._timer.cancel()
        self._done(status)
