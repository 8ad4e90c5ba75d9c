"""One connection between two peers: frames in, frames out, and calls that await their answer.

Both directions carry requests. The two sides number theirs (`opaque`) independently; a frame with the
response flag belongs to a call of ours, any other to the dispatcher.

This module is on the hot path. `_consume` walks over one read of the socket: a fast handler costs one
dictionary look-up and three slices, and all answers of the read leave in one write.

What bounds what:

- a frame: `max_frame_bytes`; an incomplete one is kept in pieces and joined once;
- unsent bytes: above `write_high_water_bytes` nothing more of this peer is read or handled until it has
  taken them, above `write_buffer_max_bytes` it is dropped;
- requests answered later: `defer` refuses above the dispatcher's bounds;
- calls of ours: `max_calls`, each with a deadline.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import struct
from collections.abc import Callable
from typing import Any, Protocol

from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import (
    CallTimeout,
    ConnectionClosed,
    FallBack,
    RemoteProtocolError,
    RequestError,
)
from epochmq_protocol.frame import FLAG_ONEWAY, Command, encode
from epochmq_protocol.message import encode_host
from epochmq_protocol.transport.dispatch import FAST_KEY_BYTES, OVERLOAD, Dispatcher
from epochmq_protocol.transport.settings import ConnectionSettings

log = logging.getLogger(__name__)

LINGER_S = 5.0
"""How long a closed connection may take to get its last bytes out before it is aborted."""
JOINED_MAX_BYTES = 65_536
"""Answers of one read that are longer together are handed to the wire one by one. It sends them together all
the same; joined they would be copied into a block so large that malloc maps and clears it anew each time."""
OPAQUE_MAX = 0x7FFF_FFFF
_unpack_lengths = struct.Struct(">II").unpack_from
_HEADER_AT = 8  # after the length and the type-and-header-length words
_KEY_END = _HEADER_AT + FAST_KEY_BYTES


class Wire(Protocol):
    """What a connection needs of its transport: an asyncio transport, or the TLS layer on top of one."""

    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_write_buffer_size(self) -> int: ...
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def get_extra_info(self, name: str, default: Any = None) -> Any: ...


class Phase(enum.Enum):
    """Where a connection is in its life. It only moves down this list."""

    NEW = "new"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


_OPEN = Phase.OPEN  # looking a member up in its class costs more than the comparison


class Connection(asyncio.Protocol):
    """One connection. Its owner (a server or a client) makes it; handlers get it with every request."""

    __slots__ = (
        "_calls",
        "_dispatcher",
        "_held",
        "_high_water",
        "_limit",
        "_linger",
        "_loop",
        "_needed",
        "_next_opaque",
        "_paused",
        "_phase",
        "_pieces",
        "_pieces_size",
        "_settings",
        "_wire",
        "active",
        "attributes",
        "in_flight",
        "local",
        "on_close",
        "quiet_since",
        "remote",
        "remote_host",
    )

    _wire: Wire

    def __init__(
        self,
        dispatcher: Dispatcher,
        settings: ConnectionSettings,
        *,
        source: tuple[str, int] | None = None,
        on_close: list[Callable[[Connection], None]] | None = None,
    ) -> None:
        """`source` is the client's address as a PROXY preamble names it, in place of the socket's."""
        self.remote = "" if source is None else f"{source[0]}:{source[1]}"
        self.remote_host = b"" if source is None else encode_host(*source)
        self.local = ""
        self.attributes: dict[str, Any] = {}
        self.on_close: list[Callable[[Connection], None]] = on_close if on_close is not None else []
        self.active = True
        self.quiet_since = 0.0
        self.in_flight = 0
        self._dispatcher = dispatcher
        self._settings = settings
        self._limit = settings.max_frame_bytes - 4
        self._high_water = settings.write_high_water_bytes
        self._phase = Phase.NEW
        self._paused = False
        self._pieces: list[bytes] = []
        self._pieces_size = 0
        self._needed = _HEADER_AT
        self._held: set[int] = set()
        self._calls: dict[int, asyncio.Future[Command]] = {}
        self._next_opaque = 0
        self._linger: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    # for handlers and owners

    @property
    def closed(self) -> bool:
        """Whether anything written now would be lost."""
        return self._phase is not _OPEN

    @property
    def unsent(self) -> int:
        """Bytes that the peer has not taken yet."""
        return 0 if self.closed else self._wire.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        """Sends whole encoded frames. A closed connection drops them: its peer is gone."""
        if self._phase is not _OPEN:
            return
        self.active = True
        self._wire.write(data)
        if self._paused and self._wire.get_write_buffer_size() > self._settings.write_buffer_max_bytes:
            log.warning("%s does not read: dropped with more than %d bytes unsent", self.remote, self.unsent)
            self.abort()

    def respond(self, command: Command) -> None:
        """Answers a request that its handler did not answer (it returned None)."""
        if command.opaque in self._held:
            self._let_go(command.opaque)
        self.write(encode(command))

    @property
    def may_defer(self) -> bool:
        """Whether `defer` would take one more request. To be asked before a request changes anything: after
        that it is too late to reject it."""
        return self._dispatcher.has_room(self)

    def defer(self, opaque: int) -> None:
        """Notes that this request will be answered later, by `respond` or `answer`: it counts as under way,
        and an orderly stop waits for it. Not for one-way requests, which are never answered. RequestError
        SYSTEM_BUSY: too many are under way."""
        held = self._held
        if opaque in held:
            return
        if not self._dispatcher.has_room(self):
            raise RequestError(ResponseCode.SYSTEM_BUSY, OVERLOAD)
        held.add(opaque)
        self.in_flight += 1
        self._dispatcher.in_flight += 1

    def answer(self, opaque: int, data: bytes) -> bool:
        """Answers a deferred request with an encoded frame, once: False, and nothing sent, when it is not
        waiting any more (answered before, or the connection was lost)."""
        if opaque not in self._held:
            return False
        self._let_go(opaque)
        self.write(data)
        return True

    async def call(self, command: Command, timeout_ms: float) -> Command:
        """Sends a request and returns its response, whatever its code.

        CallTimeout after `timeout_ms`; ConnectionClosed when the connection is or gets lost: the peer may
        or may not have handled it. RequestError SYSTEM_BUSY when `max_calls` are awaiting their answer
        already.
        """
        if self._phase is not _OPEN:
            raise ConnectionClosed(f"no connection to {self.remote}")
        calls = self._calls
        if len(calls) >= self._settings.max_calls:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY, f"{len(calls)} calls to {self.remote} await their answer"
            )
        opaque = command.opaque = self._take_opaque()
        data = encode(command)
        future: asyncio.Future[Command] = self._loop.create_future()
        calls[opaque] = future
        timer = self._loop.call_later(timeout_ms / 1000, self._expire, future, command.code, timeout_ms)
        try:
            self.write(data)
            return await future
        finally:
            timer.cancel()
            calls.pop(opaque, None)

    def oneway(self, command: Command) -> None:
        """Sends a request that is never answered. ConnectionClosed when there is no connection."""
        if self._phase is not _OPEN:
            raise ConnectionClosed(f"no connection to {self.remote}")
        command.opaque = self._take_opaque()
        command.flag |= FLAG_ONEWAY
        self.write(encode(command))

    def close(self) -> None:
        """Sends what is unsent, then closes; aborted when that takes longer than `LINGER_S`."""
        if self._phase is _OPEN:
            self._phase = Phase.CLOSING
            self._linger = self._loop.call_later(LINGER_S, self._wire.abort)
            self._wire.close()

    def abort(self) -> None:
        """Closes at once; unsent bytes are lost."""
        if self._phase in (Phase.OPEN, Phase.CLOSING):
            self._phase = Phase.CLOSING
            self._wire.abort()

    # for the dispatcher

    def answered(self, command: Command) -> None:
        """A response came: wakes its caller. One that nobody awaits (any more) is dropped."""
        future = self._calls.pop(command.opaque, None)
        if future is not None and not future.done():
            future.set_result(command)

    # for the transport

    def connection_made(self, transport: Wire) -> None:  # type: ignore[override]
        """The wire is there (asyncio.Protocol)."""
        self._wire = transport
        self._phase = Phase.OPEN
        settings = self._settings
        transport.set_write_buffer_limits(settings.write_high_water_bytes, settings.write_low_water_bytes)
        self.local = _name(transport.get_extra_info("sockname"))
        self.quiet_since = self._loop.time()
        if not self.remote:
            peer = transport.get_extra_info("peername")
            self.remote = _name(peer)
            self.remote_host = encode_host(peer[0], peer[1]) if peer else encode_host("0.0.0.0", 0)

    def connection_lost(self, exc: Exception | None) -> None:
        """The wire is gone (asyncio.Protocol): whoever waits is told."""
        if self._phase is Phase.CLOSED:
            return
        self._phase = Phase.CLOSED
        if self._linger is not None:
            self._linger.cancel()
        if self._held:
            self.in_flight -= len(self._held)
            self._dispatcher.release(len(self._held))
            self._held.clear()
        self._pieces.clear()
        calls, self._calls = self._calls, {}
        for future in calls.values():
            if not future.done():
                future.set_exception(ConnectionClosed(f"the connection to {self.remote} was lost"))
        for callback in list(self.on_close):
            try:
                callback(self)
            except Exception:  # one listener's fault must not hide the loss from the others
                log.exception("a close listener of %s failed", self.remote)

    def pause_writing(self) -> None:
        """The peer does not take its answers (asyncio.Protocol): nothing more of it is read."""
        self._paused = True
        if self._phase is _OPEN:
            self._wire.pause_reading()

    def resume_writing(self) -> None:
        """It has taken them (asyncio.Protocol): what was left unhandled comes first."""
        self._paused = False
        if self._phase is not _OPEN:
            return
        if self._pieces_size >= self._needed:
            self._consume(self._join())
        if not self._paused and self._phase is _OPEN:
            self._wire.resume_reading()

    def data_received(self, data: bytes) -> None:
        """One read of the socket (asyncio.Protocol)."""
        self.active = True
        if self._pieces:
            self._pieces.append(data)
            self._pieces_size += len(data)
            if self._paused or self._pieces_size < self._needed:
                return
            data = self._join()
        self._consume(data)

    # inside

    def _consume(self, data: bytes) -> None:
        """Handles every whole frame in `data`; keeps the rest."""
        dispatcher = self._dispatcher
        fast_handler = dispatcher.fast.get
        unpack = _unpack_lengths
        limit = self._limit
        high_water = self._high_water
        position, end, needed = 0, len(data), _HEADER_AT
        answers: list[bytes] = []
        collect = answers.append
        size = 0
        try:
            while end - position >= _HEADER_AT:
                length, mark = unpack(data, position)
                if length > limit or length < 4:
                    raise RemoteProtocolError(f"a frame of {length + 4} bytes; 8 to {limit + 4} are taken")
                after = position + 4 + length
                if after > end:
                    needed = 4 + length
                    break
                # A mark with a type byte other than JSON's 0 points behind the frame: the ordinary path
                # looks closer.
                body_at = position + _HEADER_AT + mark
                handler = fast_handler(data[position + _HEADER_AT : position + _KEY_END])
                if handler is None or body_at > after:
                    answer = dispatcher.frame(self, data[position + 4 : after])
                else:
                    try:
                        answer = handler(self, data[position + _HEADER_AT : body_at], data[body_at:after])
                    except FallBack:
                        answer = dispatcher.frame(self, data[position + 4 : after])
                    except Exception as error:
                        answer = dispatcher.failed(self, data[position + 4 : after], error)
                position = after
                if answer:
                    collect(answer)
                    size += len(answer)
                    if size > high_water:
                        self._flush(answers)
                        size = 0
                        if self._paused:
                            needed = 0
                            break
        except RemoteProtocolError as error:
            log.warning("%s is disconnected: %s", self.remote, error)
            self._flush(answers)
            self.close()
            return
        if answers and self._phase is _OPEN:
            if len(answers) == 1:
                self._wire.write(answers[0])
            elif size <= JOINED_MAX_BYTES:
                self._wire.write(b"".join(answers))
            else:
                for answer in answers:
                    self._wire.write(answer)
        if position < end:
            rest = data[position:]
            self._pieces.append(rest)
            self._pieces_size = len(rest)
            self._needed = needed

    def _flush(self, answers: list[bytes]) -> None:
        if self._phase is _OPEN:
            for answer in answers:
                self._wire.write(answer)
        answers.clear()

    def _join(self) -> bytes:
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._pieces_size = 0
        return data

    def _let_go(self, opaque: int) -> None:
        self._held.discard(opaque)
        self.in_flight -= 1
        self._dispatcher.release(1)

    def _take_opaque(self) -> int:
        opaque = self._next_opaque
        while opaque in self._calls:  # at most max_calls are, out of 2^31 numbers
            opaque = (opaque + 1) & OPAQUE_MAX
        self._next_opaque = (opaque + 1) & OPAQUE_MAX
        return opaque

    def _expire(self, future: asyncio.Future[Command], code: int, timeout_ms: float) -> None:
        if not future.done():
            future.set_exception(
                CallTimeout(f"{self.remote} did not answer request {code} within {timeout_ms:.0f} ms")
            )


def _name(address: Any) -> str:
    """`host:port` of a socket address; empty for a socket that has none."""
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else ""
