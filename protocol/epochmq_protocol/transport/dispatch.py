"""From a request to its answer: which handler takes it, what is answered when it cannot, and how many are
under way.

The rules are those of RocketMQ's `NettyRemotingAbstract.processRequestCommand`:

- a code that nobody handles is answered REQUEST_CODE_NOT_SUPPORTED, remark ` request type N not supported`;
- while stopping, peers newer than 5.3.1 are answered GO_AWAY, older ones are still served;
- more requests under way than the bounds allow: SYSTEM_BUSY, remark `[OVERLOAD]system busy, …`;
- `RequestError` is answered with its own code, any other exception with SYSTEM_ERROR;
- a one-way request is never answered, not even with an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from epochmq_protocol.codes import V5_3_1, ResponseCode
from epochmq_protocol.errors import EpochMQError, RequestError
from epochmq_protocol.frame import Command, decode, encode, response

if TYPE_CHECKING:
    from epochmq_protocol.transport.connection import Connection

log = logging.getLogger(__name__)

Handler = Callable[["Connection", Command], "Command | Awaitable[Command | None] | None"]
"""Takes a request. A command returned at once is written with the others of the same read; None means that
nothing is answered now (see `Connection.defer`); an awaitable becomes a task of the dispatcher, answered
when it ends."""

FastHandler = Callable[["Connection", bytes, bytes], "bytes | None"]
"""Takes header and body bytes of a request whose JSON header starts with the key it was registered under.
Returns a whole encoded frame, or None or b"" for nothing (one-way, or answered later). Raises
`errors.FallBack` for anything it does not understand: other header layouts, a response that happens to
start alike."""

OVERLOAD = "[OVERLOAD]system busy, start flow control for a while"
FAST_KEY_BYTES = 12


def fast_table(fast: Mapping[bytes, FastHandler]) -> dict[bytes, FastHandler]:
    """Fast handlers by the first 12 header bytes.

    They are given by the first 11, `{"code":310` or `{"code":11,`. The twelfth tells `310` from `3101`, and
    costs nothing when it is part of the key.
    """
    table: dict[bytes, FastHandler] = {}
    for key, handler in fast.items():
        if len(key) != FAST_KEY_BYTES - 1:
            raise ValueError(f"a fast handler's key is the first 11 bytes of a JSON header, not {key!r}")
        table[key + (b'"' if key.endswith(b",") else b",")] = handler
    return table


class Dispatcher:
    """The handlers of one server or client, and the requests it has taken and not yet answered."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        *,
        default: Handler | None,
        fast: Mapping[bytes, FastHandler],
        max_in_flight: int,
        max_in_flight_per_connection: int,
    ) -> None:
        self.fast = fast_table(fast)
        self.in_flight = 0
        self.stopping = False
        self._handlers = handlers
        self._default = default
        self._max_in_flight = max_in_flight
        self._max_per_connection = max_in_flight_per_connection
        self._tasks: set[asyncio.Future[None]] = set()
        self._settled: asyncio.Future[None] | None = None

    # what a connection calls

    def frame(self, connection: Connection, frame: bytes) -> bytes | None:
        """Takes one frame (without its length bytes): a response wakes its caller, a request is handled.

        Returns the encoded answer if there is one at once. RemoteProtocolError: the bytes are no frame.
        """
        command = decode(frame)
        if command.is_response:
            connection.answered(command)
            return None
        return self._request(connection, command)

    def failed(self, connection: Connection, frame: bytes, error: Exception) -> bytes | None:
        """The answer to a request in whose fast handler `error` was raised."""
        command = decode(frame)
        if command.is_response:
            return None
        return self._encode(command, self._describe(connection, command, error))

    def has_room(self, connection: Connection) -> bool:
        """Whether one more request of this connection may be under way."""
        return self.in_flight < self._max_in_flight and connection.in_flight < self._max_per_connection

    def release(self, count: int) -> None:
        """`count` requests are under way no longer."""
        self.in_flight -= count
        if self.in_flight == 0 and self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    # what the owner calls

    def stop(self) -> None:
        """From now on newer peers are sent away."""
        self.stopping = True
        self.fast = {}

    async def settle(self, grace_s: float) -> bool:
        """Waits until every request taken has been answered; False when `grace_s` seconds were not enough."""
        if self.in_flight == 0:
            return True
        self._settled = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(grace_s):
                await self._settled
        except TimeoutError:
            return False
        finally:
            self._settled = None
        return True

    async def cancel(self) -> None:
        """Ends the handlers that still run."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # inside

    def _request(self, connection: Connection, command: Command) -> bytes | None:
        code = command.code
        handler = self._handlers.get(code, self._default)
        if handler is None:
            remark = f" request type {code} not supported"
            return self._encode(command, response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
        if self.stopping and command.version > V5_3_1:
            return self._encode(command, response(command, ResponseCode.GO_AWAY, "please go away"))
        try:
            result = handler(connection, command)
        except Exception as error:
            return self._encode(command, self._describe(connection, command, error))
        if result is None:
            return None
        if isinstance(result, Command):
            return self._encode(command, result)
        return self._spawn(connection, command, result)

    def _spawn(
        self, connection: Connection, command: Command, result: Awaitable[Command | None]
    ) -> bytes | None:
        if not self.has_room(connection):
            _discard(result)
            return self._encode(command, response(command, ResponseCode.SYSTEM_BUSY, OVERLOAD))
        self.in_flight += 1
        connection.in_flight += 1
        task = asyncio.ensure_future(self._finish(connection, command, result))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    async def _finish(
        self, connection: Connection, command: Command, result: Awaitable[Command | None]
    ) -> None:
        try:
            answer = await result
        except Exception as error:
            answer = self._describe(connection, command, error)
        finally:
            connection.in_flight -= 1
            self.release(1)
        if answer is not None:
            frame = self._encode(command, answer)
            if frame is not None:
                connection.write(frame)

    def _describe(self, connection: Connection, command: Command, error: Exception) -> Command:
        if isinstance(error, RequestError):
            return response(command, error.code, error.remark)
        if isinstance(error, EpochMQError):
            log.warning(
                "request %d from %s: %s: %s", command.code, connection.remote, type(error).__name__, error
            )
        else:
            log.error("request %d from %s failed", command.code, connection.remote, exc_info=error)
        return response(command, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    def _encode(self, request: Command, answer: Command) -> bytes | None:
        if request.is_oneway:
            return None
        answer.opaque = request.opaque
        try:
            return encode(answer)
        except (
            EpochMQError
        ) as error:  # what a handler made cannot be written: the peer is told so, and we are
            log.error("the answer to request %d cannot be encoded", request.code, exc_info=error)
            return encode(response(request, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"))


def _discard(result: Awaitable[Command | None]) -> None:
    """Ends an awaitable that will not be awaited."""
    end: Callable[[], object] | None = getattr(result, "close", None) or getattr(result, "cancel", None)
    if end is not None:
        end()
