"""Receives and sends frames over one remoting connection, and matches responses to this side's own calls.

Both directions carry requests. Each side numbers its own requests (`opaque`) independently. A frame with the
response flag completes a call of this side; the dispatcher handles every other frame.

This module is on the hot path. `_consume` walks over the bytes of one socket read: a fast handler costs one
dictionary lookup and three slices, and all responses to one read leave in one write.

Bounds:

- A frame has at most `max_frame_bytes`. The pieces of an incomplete frame are joined once.
- Above `write_high_water_bytes` unsent bytes the connection reads and handles nothing more until the peer has
  taken its responses. Above `write_buffer_max_bytes` the connection is aborted.
- `defer` rejects requests above the bounds of the dispatcher.
- At most `max_calls` calls wait for their response, each with a deadline.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import struct
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol

from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import (
    CallTimeoutError,
    ConnectionClosedError,
    FastPathMiss,
    RemoteProtocolError,
    RequestError,
)
from epochmq_protocol.frame import FLAG_ONEWAY, Command, encode, response_code
from epochmq_protocol.member_proofs import RecordOpener, RecordSealer
from epochmq_protocol.message import encode_host
from epochmq_protocol.transport.peer_warnings import PEER_WARNINGS
from epochmq_protocol.transport.request_timer import RequestTimer
from epochmq_protocol.transport.sealed_transport import ConnectionTransport, SealedTransport
from epochmq_protocol.transport.settings import ConnectionSettings
from epochmq_protocol.transport.unfinished_frames import UnfinishedFrames

log = logging.getLogger(__name__)

LINGER_S = 5.0
"""Time a closing connection has to send its last bytes before it is aborted."""
JOINED_MAX_BYTES = 65_536
"""Responses to one read that are longer together go to the transport one by one; it still sends them
together. Joined, they would be copied into a block so large that malloc maps and clears it on every
allocation."""
OPAQUE_MAX = 0x7FFF_FFFF
OVERLOAD_REMARK = "[OVERLOAD]system busy, start flow control for a while"
"""RocketMQ's remark of a SYSTEM_BUSY response."""
FAST_KEY_BYTES = 12
"""Length of the key by which a fast handler is found: the first bytes of a JSON header."""
_unpack_lengths = struct.Struct(">II").unpack_from
_HEADER_AT = 8  # after the length and the type-and-header-length words
_KEY_END = _HEADER_AT + FAST_KEY_BYTES


RequestHandler = Callable[["RemotingConnection", Command], "Command | Awaitable[Command | None] | None"]
"""Serves a request. The dispatcher writes a returned command together with the other responses to the same
read. None: the handler responds later (see `RemotingConnection.defer`). An awaitable becomes a task of the
dispatcher, whose result is the response."""

FastRequestHandler = Callable[["RemotingConnection", bytes, bytes], "bytes | None"]
"""Serves a request from the bytes of its JSON header and its body, without decoding a `Command`.

Returns a whole encoded frame, or None or b"" when it responds later or never (one-way). Raises
`errors.FastPathMiss` for a header that it cannot read: another layout, or a response whose header starts with
the same bytes."""


class PendingCall(Protocol):
    """A call that waits for its response, such as an `asyncio.Future`."""

    def done(self) -> bool: ...
    def set_result(self, response: Command, /) -> None: ...
    def set_exception(self, error: Exception, /) -> None: ...


class FrameDispatcher(Protocol):
    """What a connection needs of the `RequestDispatcher` of its owner."""

    fast: dict[bytes, FastRequestHandler]
    in_flight: int
    timer: RequestTimer | None

    def handle_frame(
        self, connection: RemotingConnection, frame: bytes, header_bytes_max: int
    ) -> bytes | None: ...
    def encode_failure(
        self, connection: RemotingConnection, frame: bytes, error: Exception
    ) -> bytes | None: ...
    def has_room(self, connection: RemotingConnection) -> bool: ...
    def release(self, count: int) -> None: ...


class ConnectionPhase(enum.Enum):
    """The phases of a connection, in order. A connection never goes back to an earlier one."""

    NEW = "new"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


_OPEN = ConnectionPhase.OPEN  # on the hot path a global costs less than a lookup in the enum


class RemotingConnection(asyncio.Protocol):
    """One remoting connection. A server or a client creates and owns it; every handler receives it.

    `in_flight` counts the peer's requests without a response. Reads and writes set `active`; the idle sweep
    clears it and keeps `idle_since`, in seconds of the loop's clock. `member` is the id of the secret by
    which the peer has proven that it is a member (`member_authentication`); None: it has not."""

    __slots__ = (
        "_calls",
        "_deferred",
        "_dispatcher",
        "_header_limit",
        "_held",
        "_high_water",
        "_is_full",
        "_limit",
        "_linger",
        "_loop",
        "_needed",
        "_next_opaque",
        "_opener",
        "_paused",
        "_phase",
        "_pieces",
        "_pieces_size",
        "_settings",
        "_transport",
        "_transport_write_views",
        "_unfinished",
        "active",
        "attributes",
        "before_responses",
        "idle_since",
        "in_flight",
        "local",
        "member",
        "on_close",
        "remote",
        "remote_host",
    )

    _transport: ConnectionTransport

    def __init__(
        self,
        dispatcher: FrameDispatcher,
        settings: ConnectionSettings,
        *,
        source: tuple[str, int] | None = None,
        on_close: list[Callable[[RemotingConnection], None]] | None = None,
        unfinished: UnfinishedFrames | None = None,
    ) -> None:
        """`source` is the client's address from a PROXY protocol header; it replaces the socket's.
        `unfinished` bounds what the connection holds of frames that are not complete."""
        self.remote = "" if source is None else f"{source[0]}:{source[1]}"
        self.remote_host = b"" if source is None else encode_host(*source)
        self.local = ""
        self.attributes: dict[str, Any] = {}
        self.on_close: list[Callable[[RemotingConnection], None]] = on_close if on_close is not None else []
        self.active = True
        self.idle_since = 0.0
        self.in_flight = 0
        self.member: str | None = None
        self._opener: tuple[RecordOpener, str] | None = None
        self._dispatcher = dispatcher
        self._settings = settings
        self._limit = settings.max_frame_bytes - 4
        self._header_limit = settings.max_header_bytes
        self._high_water = settings.write_high_water_bytes
        self._phase = ConnectionPhase.NEW
        self._held = False
        self._is_full = False
        self._paused = False  # while it is held or full
        self._pieces: list[bytes] = []
        self._pieces_size = 0
        self._unfinished = unfinished
        self._needed = _HEADER_AT
        self._deferred: dict[int, tuple[int, float, bool]] = {}
        self._calls: dict[int, PendingCall] = {}
        self._next_opaque = 0
        self._linger: asyncio.TimerHandle | None = None
        self.before_responses: Callable[[], None] | None = None
        """Called once, before the responses to the requests of the present read are sent. It must not raise.
        A fast handler sets it that does its work for several requests together."""
        self._loop = asyncio.get_running_loop()

    # for handlers and owners

    @property
    def closed(self) -> bool:
        """True unless the connection is open: a write now would be lost."""
        return self._phase is not _OPEN

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were written and not sent yet."""
        return 0 if self.closed else self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        """Sends whole encoded frames. A closed connection drops them."""
        if self._phase is not _OPEN:
            return
        self.active = True
        self._transport.write(data)
        if self._paused and self._transport.get_write_buffer_size() > self._settings.write_buffer_max_bytes:
            PEER_WARNINGS.write(
                log,
                "aborted the connection of %s: it does not read; %d bytes unsent",
                self.remote,
                self.unsent_bytes,
            )
            self.abort()

    def write_views(self, head: bytes, body: Sequence[bytes | memoryview], size: int) -> None:
        """Sends one frame of `size` bytes whose body lies elsewhere, for example in a mapped file. To be
        called from a fast handler only: the transport sends or copies the body before the turn ends."""
        if self._phase is not _OPEN:
            return
        if self._transport_write_views is None:
            self._transport.write(b"".join((head, *body)))
        else:
            self._transport_write_views((head, *body), size)

    def respond(self, command: Command) -> None:
        """Sends the response to a request whose handler returned None."""
        if command.opaque in self._deferred:
            self._finish_deferred(command.opaque, command.code)
        self.write(encode(command))

    @property
    def can_defer(self) -> bool:
        """Whether `defer` would accept one more request. Check it before the request changes anything: after
        a change it is too late to reject the request."""
        return self._dispatcher.has_room(self)

    def defer(self, opaque: int, code: int = 0, *, polls: bool = False) -> None:
        """Marks a request with this code as deferred: `respond` or `respond_encoded` sends its response
        later. It counts as in flight, and an orderly stop waits for it. `polls`: it waits for messages.
        One-way requests get no response and are never deferred. RequestError SYSTEM_BUSY: too many requests
        are in flight."""
        deferred = self._deferred
        if opaque in deferred:
            return
        if not self._dispatcher.has_room(self):
            raise RequestError(ResponseCode.SYSTEM_BUSY, OVERLOAD_REMARK)
        timer = self._dispatcher.timer
        deferred[opaque] = (code, 0.0 if timer is None else timer.began, polls)
        self.in_flight += 1
        self._dispatcher.in_flight += 1

    def respond_encoded(self, opaque: int, data: bytes) -> bool:
        """Sends an encoded frame as the response to a deferred request. False, and nothing is sent, when the
        request has a response already or the connection was lost."""
        if opaque not in self._deferred:
            return False
        self._finish_deferred(opaque, response_code(data))
        self.write(data)
        return True

    def abandon(self, opaque: int) -> None:
        """Ends a deferred request that gets no response: its sender times out."""
        if opaque in self._deferred:
            self._finish_deferred(opaque, ResponseCode.SYSTEM_ERROR)

    def deferred_codes(self) -> Iterator[int]:
        """The codes of the deferred requests that do not wait for messages."""
        return (code for code, _, polls in self._deferred.values() if not polls)

    async def call(self, command: Command, timeout_ms: float) -> Command:
        """Sends a request and returns its response, whatever its code.

        CallTimeoutError: no response within `timeout_ms`. ConnectionClosedError: the connection is lost; the
        peer may have handled the request. RequestError SYSTEM_BUSY: `max_calls` calls wait for their
        response.
        """
        future: asyncio.Future[Command] = self._loop.create_future()
        opaque = command.opaque = self.add_call(future)
        timer = self._loop.call_later(timeout_ms / 1000, self._expire, future, command.code, timeout_ms)
        try:
            self.write(encode(command))
            return await future
        finally:
            timer.cancel()
            self.end_call(opaque)

    def add_call(self, call: PendingCall) -> int:
        """Adds a call, and returns the opaque of its request, which the caller then writes. The call gets the
        response, or a ConnectionClosedError when the connection is lost. Raises the errors of `call`."""
        if self._phase is not _OPEN:
            raise ConnectionClosedError(f"no connection to {self.remote}")
        calls = self._calls
        if len(calls) >= self._settings.max_calls:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY, f"{len(calls)} calls to {self.remote} wait for their response"
            )
        opaque = self._take_opaque()
        calls[opaque] = call
        return opaque

    def end_call(self, opaque: int) -> None:
        """Forgets a call. Its response is dropped when it comes."""
        self._calls.pop(opaque, None)

    def oneway(self, command: Command) -> None:
        """Sends a one-way request, which gets no response. ConnectionClosedError: the connection is not
        open."""
        if self._phase is not _OPEN:
            raise ConnectionClosedError(f"no connection to {self.remote}")
        command.opaque = self._take_opaque()
        command.flag |= FLAG_ONEWAY
        self.write(encode(command))

    def close(self) -> None:
        """Sends the unsent bytes, then closes. Aborts when that takes longer than `LINGER_S`."""
        if self._phase is _OPEN:
            self._phase = ConnectionPhase.CLOSING
            self._linger = self._loop.call_later(LINGER_S, self._transport.abort)
            self._transport.close()

    def abort(self) -> None:
        """Closes at once; unsent bytes are lost."""
        if self._phase in (ConnectionPhase.OPEN, ConnectionPhase.CLOSING):
            self._phase = ConnectionPhase.CLOSING
            self._transport.abort()

    # for the proof of membership

    def seal(self, sealer: RecordSealer, opener: RecordOpener, member: str) -> None:
        """From now on sends records, and accepts nothing else. The peer counts as a member once it has sent a
        record: bytes that arrived together with its proof are not known to be its own."""
        self._transport = SealedTransport(self._transport, sealer)
        self._transport_write_views = None
        self._opener = opener, member

    def _open_records(self, opener: RecordOpener, member: str, data: bytes) -> bytes:
        """The bytes of the complete records; closes the connection if one is not the member's."""
        try:
            opened = opener.open(data)
        except RemoteProtocolError as error:
            PEER_WARNINGS.write(log, "closed the connection of member %s: %s", self.remote, error)
            self.abort()
            return b""
        if opened:
            self.member = member
        return opened

    def _fail_calls(self, what: str) -> None:
        """Ends the calls that wait for a response."""
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.done():
                call.set_exception(ConnectionClosedError(f"the connection to {self.remote} {what}"))

    # for the dispatcher

    def handle_response(self, command: Command) -> None:
        """Completes the call that a response belongs to. Drops a response whose call has ended."""
        call = self._calls.pop(command.opaque, None)
        if call is not None and not call.done():
            call.set_result(command)

    # for requests that are handled in several turns

    def hold(self) -> None:
        """Keeps the peer's further requests until `release`: they come after the present one."""
        self._held = self._paused = True
        if self._phase is _OPEN:
            self._transport.pause_reading()

    def release(self) -> None:
        """Handles the kept requests in the next turn, unless the peer does not take its responses."""
        self._held = False
        if not self._is_full:
            self._loop.call_soon(self._read_again)

    # for the bounds of unfinished frames

    @property
    def reads_later(self) -> bool:
        """Whether it holds requests until the peer takes the responses to earlier ones."""
        return self._paused

    def drop_unfinished(self) -> None:
        """Aborts, and drops the bytes of a frame that is not complete."""
        self._forget_pieces()
        self.abort()

    # for the transport

    def connection_made(self, transport: ConnectionTransport) -> None:  # type: ignore[override]
        """Takes the transport and opens the connection (asyncio.Protocol)."""
        self._transport = transport
        self._transport_write_views = getattr(transport, "write_views", None)
        self._phase = ConnectionPhase.OPEN
        settings = self._settings
        transport.set_write_buffer_limits(settings.write_high_water_bytes, settings.write_low_water_bytes)
        self.local = _name(transport.get_extra_info("sockname"))
        self.idle_since = self._loop.time()
        if not self.remote:
            peer = transport.get_extra_info("peername")
            self.remote = _name(peer)
            self.remote_host = encode_host(peer[0], peer[1]) if peer else encode_host("0.0.0.0", 0)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fails the waiting calls and runs `on_close` (asyncio.Protocol)."""
        if self._phase is ConnectionPhase.CLOSED:
            return
        self._phase = ConnectionPhase.CLOSED
        if self._linger is not None:
            self._linger.cancel()
        if self._deferred:
            self.in_flight -= len(self._deferred)
            self._dispatcher.release(len(self._deferred))
            self._deferred.clear()
        if self._pieces:
            self._forget_pieces()
        self._fail_calls("was lost")
        for callback in list(self.on_close):
            try:
                callback(self)
            except Exception:  # the other listeners must still run
                log.exception("a close listener of the connection of %s failed", self.remote)

    def pause_writing(self) -> None:
        """Stops reading: the peer does not take its responses (asyncio.Protocol)."""
        self._is_full = self._paused = True
        if self._phase is _OPEN:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Handles the requests left over, then reads again (asyncio.Protocol)."""
        self._is_full = False
        self._read_again()

    def _read_again(self) -> None:
        if self._held or self._is_full:
            return
        self._paused = False
        if self._phase is not _OPEN:
            return
        if self._pieces_size >= self._needed:
            self._consume(self._join())
        if not self._paused and self._phase is _OPEN:
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Handles the bytes of one socket read (asyncio.Protocol)."""
        self.active = True
        if self._opener is not None and not (data := self._open_records(*self._opener, data)):
            return
        if self._pieces:
            self._pieces.append(data)
            self._pieces_size += len(data)
            if self._unfinished is not None:
                self._unfinished.grow(len(data))
            if self._paused or self._pieces_size < self._needed:
                return
            data = self._join()
        elif self._paused:
            self._keep(data, 0)
            return
        self._consume(data)

    # inside

    def _consume(self, data: bytes) -> None:
        """Handles every whole frame in `data` and keeps the rest."""
        dispatcher = self._dispatcher
        fast_handler = dispatcher.fast.get
        unpack = _unpack_lengths
        limit, header_limit = self._limit, self._header_limit
        high_water = self._high_water
        position, end, needed = 0, len(data), _HEADER_AT
        responses: list[bytes] = []
        collect = responses.append
        size = 0
        try:
            while end - position >= _HEADER_AT:
                length, mark = unpack(data, position)
                if length > limit or length < 4:
                    raise RemoteProtocolError(_wrong_length(data[position : position + 4], length, limit))
                after = position + 4 + length
                if after > end:
                    needed = 4 + length
                    break
                # If the type byte in `mark` is not JSON's 0, `body_at` is beyond the frame: the ordinary path
                # decodes it.
                body_at = position + _HEADER_AT + mark
                handler = fast_handler(data[position + _HEADER_AT : position + _KEY_END])
                if handler is None or body_at > after or mark > header_limit:
                    response = dispatcher.handle_frame(self, data[position + 4 : after], header_limit)
                else:
                    try:
                        response = handler(self, data[position + _HEADER_AT : body_at], data[body_at:after])
                    except FastPathMiss:
                        response = dispatcher.handle_frame(self, data[position + 4 : after], header_limit)
                    except Exception as error:
                        response = dispatcher.encode_failure(self, data[position + 4 : after], error)
                position = after
                if response:
                    collect(response)
                    size += len(response)
                    if size > high_water:
                        self._flush(responses)
                        size = 0
                        if self._paused:
                            needed = 0
                            break
                elif self._paused:
                    needed = 0
                    break
        except RemoteProtocolError as error:
            PEER_WARNINGS.write(log, "closed the connection of %s: %s", self.remote, error)
            self._flush(responses)
            self._fail_calls(f"was closed: {error}")
            self.close()
            return
        before = self.before_responses
        if before is not None:
            self.before_responses = None
            before()
        if responses and self._phase is _OPEN:
            if len(responses) == 1:
                self._transport.write(responses[0])
            elif size <= JOINED_MAX_BYTES:
                self._transport.write(b"".join(responses))
            else:
                for response in responses:
                    self._transport.write(response)
        if position < end:
            self._keep(data[position:], needed)

    def _keep(self, rest: bytes, needed: int) -> None:
        """Keeps the bytes of frames that are handled later, once there are as many as `needed`."""
        self._pieces.append(rest)
        self._pieces_size = len(rest)
        self._needed = needed
        if self._unfinished is not None:
            self._unfinished.add(self, len(rest))

    def _do_before_responses(self) -> None:
        before, self.before_responses = self.before_responses, None
        if before is not None:
            before()

    def _flush(self, responses: list[bytes]) -> None:
        self._do_before_responses()
        if self._phase is _OPEN:
            for response in responses:
                self._transport.write(response)
        responses.clear()

    def _join(self) -> bytes:
        data = b"".join(self._pieces)
        self._forget_pieces()
        return data

    def _forget_pieces(self) -> None:
        self._pieces.clear()
        if self._unfinished is not None:
            self._unfinished.remove(self, self._pieces_size)
        self._pieces_size = 0

    def _finish_deferred(self, opaque: int, answer: int) -> None:
        code, began_s, polls = self._deferred.pop(opaque)
        self.in_flight -= 1
        dispatcher = self._dispatcher
        dispatcher.release(1)
        if dispatcher.timer is not None:
            dispatcher.timer.record(code, answer, began_s, polls=polls)

    def _take_opaque(self) -> int:
        opaque = self._next_opaque
        while opaque in self._calls:  # at most max_calls of 2^31 numbers are in use
            opaque = (opaque + 1) & OPAQUE_MAX
        self._next_opaque = (opaque + 1) & OPAQUE_MAX
        return opaque

    def _expire(self, future: asyncio.Future[Command], code: int, timeout_ms: float) -> None:
        if not future.done():
            future.set_exception(
                CallTimeoutError(
                    f"no response to request {code} from {self.remote} within {timeout_ms:.0f} ms"
                )
            )


def _name(address: Any) -> str:
    """`host:port` of a socket address; empty for a socket that has none."""
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else ""


def _wrong_length(begin: bytes, length: int, limit: int) -> str:
    """What is wrong with the begin of a frame. A server of another protocol sends text there."""
    if begin.startswith(b"HTTP"):
        return "the peer speaks HTTP, expected RocketMQ's remoting protocol: is the port the right one?"
    return f"frame of {length + 4} bytes: expected 8 to {limit + 4}"
