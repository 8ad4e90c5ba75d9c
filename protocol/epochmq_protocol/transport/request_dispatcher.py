"""Dispatches requests to their handlers, encodes the responses, and counts the requests in flight.

The rules are those of RocketMQ's `NettyRemotingAbstract.processRequestCommand`:

- A code without a handler: REQUEST_CODE_NOT_SUPPORTED, remark ` request type N not supported`.
- While the server stops, peers newer than 5.3.1 get GO_AWAY; older ones are still served.
- More requests in flight than the bounds allow: SYSTEM_BUSY, remark `[OVERLOAD]system busy, …`.
- `RequestError`: its own code. Any other exception: SYSTEM_ERROR.
- A request with an oversized header: SYSTEM_ERROR (RocketMQ has no such bound).
- A one-way request gets no response, not even an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from epochmq_protocol.codes import V5_3_1, ResponseCode
from epochmq_protocol.errors import EpochMQError, OversizedError, RequestError
from epochmq_protocol.frame import HEADER_BYTES_MAX, Command, answerable, decode, encode, response
from epochmq_protocol.transport.connection import (
    FAST_KEY_BYTES,
    OVERLOAD_REMARK,
    FastRequestHandler,
    RemotingConnection,
    RequestHandler,
)
from epochmq_protocol.transport.descriptors import RejectionCounter
from epochmq_protocol.transport.peer_warnings import PEER_WARNINGS
from epochmq_protocol.transport.request_timer import RequestTimer

log = logging.getLogger(__name__)


def index_fast_handlers(fast: Mapping[bytes, FastRequestHandler]) -> dict[bytes, FastRequestHandler]:
    """Fast handlers by the first 12 header bytes.

    They are registered by the first 11, `{"code":310` or `{"code":11,`. The twelfth byte tells `310` from
    `3101`; as part of the key it costs nothing. A handler of longer codes is registered by all 12,
    `{"code":2000`, and looks at the rest of the code.
    """
    table: dict[bytes, FastRequestHandler] = {}
    for key, handler in fast.items():
        if len(key) == FAST_KEY_BYTES and key[-1:].isdigit():
            table[key] = handler
        elif len(key) == FAST_KEY_BYTES - 1:
            table[key + (b'"' if key.endswith(b",") else b",")] = handler
        else:
            raise ValueError(f"a fast handler's key is the first 11 bytes of a JSON header, not {key!r}")
    return table


class RequestDispatcher:
    """The handlers of one server or client, and its requests in flight."""

    def __init__(
        self,
        handlers: Mapping[int, RequestHandler],
        *,
        default: RequestHandler | None,
        fast: Mapping[bytes, FastRequestHandler],
        max_in_flight: int,
        max_in_flight_per_connection: int,
        timer: RequestTimer | None = None,
    ) -> None:
        self.timer = timer
        self.fast = self._all_fast = index_fast_handlers(fast)
        self._rejection: Callable[[int], str | None] | None = None
        self._rejections = RejectionCounter()
        self._oversized = RejectionCounter()
        self.in_flight = 0
        self.stopping = False
        self._handlers = handlers
        self._default = default
        self._max_in_flight = max_in_flight
        self._max_per_connection = max_in_flight_per_connection
        self._tasks: dict[asyncio.Future[None], int] = {}  # → request code
        self._idle: asyncio.Future[None] | None = None

    # called by a connection

    def handle_frame(
        self, connection: RemotingConnection, frame: bytes, header_bytes_max: int = HEADER_BYTES_MAX
    ) -> bytes | None:
        """Handles one frame, given without its length bytes: completes a call, or runs the handler of a
        request. A request with a header of more than `header_bytes_max` bytes gets an error.

        Returns the encoded response if the handler has one at once. RemoteProtocolError: the bytes are no
        frame.
        """
        try:
            command = decode(frame, header_bytes_max)
        except OversizedError as error:
            return self._reject_header(connection, frame, error)
        if command.is_response:
            connection.handle_response(command)
            return None
        return self._request(connection, command)

    def encode_failure(self, connection: RemotingConnection, frame: bytes, error: Exception) -> bytes | None:
        """The encoded response to a request whose fast handler raised `error`."""
        command = decode(frame)
        if command.is_response:
            return None
        return self._encode(command, self._describe(connection, command, error))

    def has_room(self, connection: RemotingConnection) -> bool:
        """Whether the bounds allow one more request of this connection in flight."""
        return self.in_flight < self._max_in_flight and connection.in_flight < self._max_per_connection

    def release(self, count: int) -> None:
        """Subtracts `count` from the requests in flight."""
        self.in_flight -= count
        if self.in_flight == 0 and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    # called by the owner

    def use_fast_handlers(self, fast: Mapping[bytes, FastRequestHandler]) -> None:
        """Replaces the fast handlers, given by the first 11 bytes of a JSON header."""
        self._all_fast = index_fast_handlers(fast)
        self._choose_fast()

    def stop(self) -> None:
        """From now on peers newer than 5.3.1 get GO_AWAY."""
        self.stopping = True
        self._choose_fast()

    def check_requests(self, rejection: Callable[[int], str | None] | None) -> None:
        """From now on a request is rejected with SYSTEM_BUSY if `rejection` has a remark for its code. None:
        requests are not checked. Fast handlers do not run meanwhile, because they do not know the code."""
        self._rejection = rejection
        self._choose_fast()

    def _choose_fast(self) -> None:
        self.fast = {} if self.stopping or self._rejection is not None else self._all_fast

    async def wait_until_idle(self, grace_s: float) -> bool:
        """Waits until no request is in flight. False when that takes longer than `grace_s` seconds."""
        if self.in_flight == 0:
            return True
        self._idle = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(grace_s):
                await self._idle
        except TimeoutError:
            return False
        finally:
            self._idle = None
        return True

    async def cancel(self) -> None:
        """Cancels the handlers that still run."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def running_codes(self) -> list[int]:
        """The codes of the requests whose handlers run as tasks."""
        return list(self._tasks.values())

    # inside

    def _request(self, connection: RemotingConnection, command: Command) -> bytes | None:
        code = command.code
        handler = self._handlers.get(code, self._default)
        if handler is None:
            remark = f" request type {code} not supported"
            return self._encode(command, response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
        if self.stopping and command.version > V5_3_1:
            return self._encode(command, response(command, ResponseCode.GO_AWAY, "please go away"))
        if self._rejection is not None and (late := self._rejection(code)) is not None:
            if count := self._rejections.add():
                log.warning(
                    "rejected %d requests, request %d of %s with: %s", count, code, connection.remote, late
                )
            return self._encode(command, response(command, ResponseCode.SYSTEM_BUSY, late))
        try:
            result = handler(connection, command)
        except Exception as error:
            return self._encode(command, self._describe(connection, command, error))
        if result is None:
            return None
        if isinstance(result, Command):
            return self._encode(command, result)
        return self._spawn(connection, command, result)

    def _reject_header(
        self, connection: RemotingConnection, frame: bytes, error: OversizedError
    ) -> bytes | None:
        """The error that a request with an oversized header gets. The error itself, which closes the
        connection, for a response, or if the frame does not say what to answer."""
        command = answerable(frame)
        if command is None or command.is_response:
            raise error
        if count := self._oversized.add():
            log.warning("rejected %d requests, one of %s: %s", count, connection.remote, error)
        return None if command.is_oneway else encode(response(command, ResponseCode.SYSTEM_ERROR, str(error)))

    def _spawn(
        self, connection: RemotingConnection, command: Command, result: Awaitable[Command | None]
    ) -> bytes | None:
        if not self.has_room(connection):
            _discard(result)
            return self._encode(command, response(command, ResponseCode.SYSTEM_BUSY, OVERLOAD_REMARK))
        self.in_flight += 1
        connection.in_flight += 1
        began_s = 0.0 if self.timer is None else self.timer.began
        task = asyncio.ensure_future(self._finish(connection, command, result, began_s))
        self._tasks[task] = command.code
        task.add_done_callback(self._tasks.pop)
        return None

    async def _finish(
        self,
        connection: RemotingConnection,
        command: Command,
        result: Awaitable[Command | None],
        began_s: float,
    ) -> None:
        try:
            reply = await result
        except Exception as error:
            reply = self._describe(connection, command, error)
        finally:
            connection.in_flight -= 1
            self.release(1)
        if reply is not None:
            frame = self._encode(command, reply, began_s)
            if frame is not None:
                connection.write(frame)

    def _describe(self, connection: RemotingConnection, command: Command, error: Exception) -> Command:
        if isinstance(error, RequestError):
            return response(command, error.code, error.remark)
        if isinstance(error, EpochMQError):
            PEER_WARNINGS.write(
                log,
                "request %d from %s: %s: %s",
                command.code,
                connection.remote,
                type(error).__name__,
                error,
            )
        else:
            log.error("request %d from %s failed", command.code, connection.remote, exc_info=error)
        return response(command, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    def _encode(self, request: Command, reply: Command, began_s: float | None = None) -> bytes | None:
        """The response to a request of the present turn, or of the one that began at `began_s`."""
        timer = self.timer
        if timer is not None:
            since_s = timer.began if began_s is None else began_s
            timer.record(request.code, reply.code, since_s, oneway=request.is_oneway)
        if request.is_oneway:
            return None
        reply.opaque = request.opaque
        try:
            return encode(reply)
        except EpochMQError as error:  # the handler's fault: the log and the peer get it
            log.error("cannot encode the response to request %d", request.code, exc_info=error)
            return encode(response(request, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"))


def _discard(result: Awaitable[Command | None]) -> None:
    """Closes an awaitable that nothing will await."""
    end: Callable[[], object] | None = getattr(result, "close", None) or getattr(result, "cancel", None)
    if end is not None:
        end()
