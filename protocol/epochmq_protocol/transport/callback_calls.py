"""Calls a peer without a task: the response goes to a function.

A call of `RemotingConnection.call` costs a task, a future and a turn of the event loop. A leader that sends
hundreds of heartbeat rounds a second saves them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from epochmq_protocol.errors import CallTimeoutError
from epochmq_protocol.frame import Command
from epochmq_protocol.transport.connection import RemotingConnection

OnResponse = Callable[[Command | Exception], None]
"""Gets the response, whatever its code, or why there is none: CallTimeoutError or ConnectionClosedError. It
runs within the callbacks of the connection, and must not raise."""


def start_call(
    connection: RemotingConnection, encode: Callable[[int], bytes], timeout_ms: float, done: OnResponse
) -> None:
    """Sends a request and returns. `encode` makes its frame from the opaque; `done` is called once, later.
    Raises ConnectionClosedError or RequestError, as `RemotingConnection.call` does, if the request cannot be
    sent."""
    call = _CallbackCall(connection, timeout_ms, done)
    opaque = connection.add_call(call)
    call.timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, call.expire, opaque)
    connection.write(encode(opaque))


class _CallbackCall:
    """A call in flight (`PendingCall`)."""

    __slots__ = ("_connection", "_done", "_timeout_ms", "timer")

    timer: asyncio.TimerHandle

    def __init__(self, connection: RemotingConnection, timeout_ms: float, done: OnResponse) -> None:
        self._connection = connection
        self._timeout_ms = timeout_ms
        self._done: OnResponse | None = done

    def done(self) -> bool:
        return self._done is None

    def set_result(self, response: Command, /) -> None:
        self._finish(response)

    def set_exception(self, error: Exception, /) -> None:
        self._finish(error)

    def expire(self, opaque: int) -> None:
        self._connection.end_call(opaque)
        self._finish(
            CallTimeoutError(f"no response from {self._connection.remote} within {self._timeout_ms:.0f} ms")
        )

    def _finish(self, result: Command | Exception) -> None:
        done, self._done = self._done, None
        if done is not None:
            self.timer.cancel()
            done(result)
