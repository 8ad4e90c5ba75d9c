"""Serves the accepted sockets of one port from an epoll of their own.

The transports of an event loop cost a server of many connections more than the requests do: a callback, a
buffer and a write for every socket in every iteration. Here one turn reads all sockets that are ready, and
then sends what their handlers wrote, with one `send` per socket. The event loop watches one descriptor, that
of the epoll. Everything runs on the loop's thread.

To its protocol an `EpollTransport` is an ordinary `asyncio.Transport`: the same callbacks in the same order,
flow control included. Only Linux has epoll; elsewhere `listen` uses the loop's own server.

The server and its transports share the turn's buffers and lists, so this long module is not split.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
import time
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Protocol

from epochmq_protocol.memory_limit import memory_bytes
from epochmq_protocol.transport.descriptors import RejectionCounter, descriptor_limit
from epochmq_protocol.transport.late_requests import LateRequestMonitor, newest_wait_ms
from epochmq_protocol.transport.request_timer import RequestTimer

log = logging.getLogger(__name__)

READ_BYTES = 256 * 1024
"""Bytes that one turn reads from one socket at most."""
SOCKETS_PER_TURN_MAX = 256
"""Sockets that one turn serves at most, because the loop's other work waits meanwhile. The next turn
serves the rest."""
ACCEPTS_PER_TURN_MAX = 64
ACCEPT_PAUSE_S = 1.0
"""Pause in accepting after the process ran out of descriptors or memory (asyncio's own value)."""
BUFFERS_PER_SEND_MAX = 512
"""Buffers of one `sendmsg`; the kernel takes 1,024 (IOV_MAX)."""
READ_DELAY_MAX_S = 0.009
HIGH_WATER_BYTES = 64 * 1024
UNSENT_MIN_BYTES = 64 * 1024 * 1024
UNSENT_MAX_BYTES = 512 * 1024 * 1024

SLOW_TURN_S = 0.001

_HANGUP_EVENTS = getattr(select, "EPOLLHUP", 0) | getattr(select, "EPOLLERR", 0)
_RESOURCE_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

ProtocolFactory = Callable[[], asyncio.Protocol]


class ListeningPort(Protocol):
    """A port that accepts connections."""

    port: int

    def delay_reads(self, until_s: float) -> None:
        """Reads nothing before this time of the loop's clock, but waits no longer than `READ_DELAY_MAX_S`.
        What arrives meanwhile is read in one turn."""

    def stop_accepting(self) -> None:
        """Stops accepting; accepted connections stay open."""

    def close(self) -> None:
        """Frees the rest. Call it when no connection is left."""


class LateReads(Protocol):
    """Marks the reads of late requests: those that waited long before the server read them."""

    monitor: LateRequestMonitor

    def begin(self, waited_ms: int, ready: int) -> None:
        """The requests passed on until `end` have waited at least so long; so many sockets are ready."""

    def end(self) -> None:
        """The requests passed on from now on have not waited."""


def has_turns() -> bool:
    """Whether ports are served in turns, which can be timed: on Linux."""
    return hasattr(select, "epoll")


def derived_unsent_max() -> int:
    """The limit of a port's unsent bytes without a setting: a quarter of the memory that this process may
    use, between UNSENT_MIN_BYTES and UNSENT_MAX_BYTES."""
    return min(max(memory_bytes() // 4, UNSENT_MIN_BYTES), UNSENT_MAX_BYTES)


async def listen(
    factory: ProtocolFactory,
    host: str | None,
    port: int,
    backlog: int,
    unsent_max: int = 0,
    late: LateReads | None = None,
    timer: RequestTimer | None = None,
) -> ListeningPort:
    """Listens, and gives every accepted socket a protocol of the factory. `unsent_max` bounds the unsent
    bytes of all connections together (0: `derived_unsent_max`), `late` rejects requests that waited too long,
    and `timer` measures the turns. All three need epoll. OSError: the address cannot be bound."""
    loop = asyncio.get_running_loop()
    if not has_turns():
        return _LoopListeningPort(await loop.create_server(factory, host, port, backlog=backlog))
    found = await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, family=socket.AF_UNSPEC, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            sockets.append(_bind(family, (address[0], _port(sockets, port), *address[2:]), backlog))
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return EpollServer(
        loop=loop,
        listening=sockets,
        factory=factory,
        unsent_max=unsent_max or derived_unsent_max(),
        late=late,
        timer=timer,
    )


def _port(sockets: list[socket.socket], port: int) -> int:
    """The port for the next address: all addresses of a host share the port that the kernel chose for the
    first."""
    return port or (sockets[0].getsockname()[1] if sockets else 0)


def _bind(family: int, address: tuple[Any, ...], backlog: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot listen on {address[0]}:{address[1]}: {error.strerror}") from None
    return sock


class _LoopListeningPort:
    """The event loop's own server, for systems without epoll."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.port: int = server.sockets[0].getsockname()[1]

    def delay_reads(self, until_s: float) -> None:
        """The event loop reads each socket by itself."""

    def stop_accepting(self) -> None:
        self._server.close()

    def close(self) -> None:
        self._server.close()


class EpollServer:
    """The listening and the accepted sockets of one port, and the epoll that watches them."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        listening: Iterable[socket.socket],
        factory: ProtocolFactory,
        unsent_max: int,
        late: LateReads | None = None,
        timer: RequestTimer | None = None,
    ) -> None:
        self.loop = loop
        self._late = late
        self._timer = timer
        self.unsent_bytes = 0  # of sockets whose last send did not take everything
        self._unsent_max = unsent_max
        self._factory = factory
        self._epoll = select.epoll()
        self._transports: dict[int, EpollTransport] = {}
        self._listeners = {sock.fileno(): sock for sock in listening}
        self._unsent: list[EpollTransport] = []
        self._in_turn = False
        self._pause: asyncio.TimerHandle | None = None
        self._delay: asyncio.TimerHandle | None = None
        self._rejections = RejectionCounter()
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.port: int = next(iter(self._listeners.values())).getsockname()[1]
        self._watch_listeners()
        loop.add_reader(self._epoll.fileno(), self._turn)

    def delay_reads(self, until_s: float) -> None:
        """See `ListeningPort`."""
        if self._delay is not None or self._epoll.closed:
            return
        delay_s = min(until_s - self.loop.time(), READ_DELAY_MAX_S)
        if delay_s > 0:
            self.loop.remove_reader(self._epoll.fileno())
            self._delay = self.loop.call_later(delay_s, self._end_delay)

    def _end_delay(self) -> None:
        self._delay = None
        self.loop.add_reader(self._epoll.fileno(), self._turn)
        self._turn()

    def stop_accepting(self) -> None:
        """Stops accepting; accepted connections stay open."""
        if self._pause is not None:
            self._pause.cancel()
        for listener in self._listeners.values():
            listener.close()  # closing removes it from the epoll
        self._listeners.clear()

    def close(self) -> None:
        """Closes the epoll and aborts the connections that are left."""
        self.stop_accepting()
        for transport in list(self._transports.values()):
            transport.abort()
        if self._delay is not None:
            self._delay.cancel()
        if not self._epoll.closed:
            self.loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    # called by the transports

    def watch(self, transport: EpollTransport, handle: int) -> None:
        """Watches the socket of a transport for reads."""
        self._transports[handle] = transport
        self._epoll.register(handle, select.EPOLLIN)

    def set_events(self, handle: int, mask: int) -> None:
        """Sets the events that a socket is watched for."""
        self._epoll.modify(handle, mask)

    def unwatch(self, handle: int) -> None:
        """Stops watching a socket that is about to be closed."""
        self._transports.pop(handle, None)
        if not self._epoll.closed:
            self._epoll.unregister(handle)

    def queue_send(self, transport: EpollTransport) -> None:
        """Queues a transport whose first unsent bytes were written. They are sent at the end of this turn,
        or of the loop's iteration."""
        if not (self._unsent or self._in_turn):
            self.loop.call_soon(self._send)
        self._unsent.append(transport)

    def count_unsent(self, change: int) -> None:
        """Adds the change of a socket's unsent bytes. Above the limit it aborts the connections with the
        most unsent bytes."""
        self.unsent_bytes += change
        while self.unsent_bytes > self._unsent_max and self._transports:
            slowest = max(self._transports.values(), key=EpollTransport.counted_unsent)
            log.warning(
                "aborted the connection of %s: it does not read; %d bytes unsent on %d connections",
                slowest.get_extra_info("peername"),
                self.unsent_bytes,
                len(self._transports),
            )
            slowest.abort()

    # inside

    def _turn(self) -> None:
        """Reads every socket that is ready, then sends what the handlers wrote."""
        transports = self._transports
        timer, late = self._timer, self._late
        began_s = time.monotonic() if timer is not None or late is not None else 0.0
        if timer is not None:
            timer.began, timer.marks = began_s, timer.fast[:]
        self._in_turn = True
        try:
            events = self._epoll.poll(0, SOCKETS_PER_TURN_MAX)
            if late is not None and late.monitor.is_suspect(
                began_s, full=len(events) == SOCKETS_PER_TURN_MAX
            ):
                events = self._read_late(late, events)
            for handle, mask in events:
                transport = transports.get(handle)
                if transport is None:
                    if handle in self._listeners:
                        self._accept(self._listeners[handle])
                    continue
                if mask & select.EPOLLOUT:
                    transport.send()
                if mask & ~select.EPOLLOUT:
                    transport.read(mask)
        finally:
            self._in_turn = False
            self._send()
            if timer is not None and (took_s := time.monotonic() - began_s) >= SLOW_TURN_S:
                timer.end_slow_turn(took_s)

    def _read_late(self, late: LateReads, events: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Reads the sockets whose requests have waited, and returns the events of the others."""
        others = []
        for number, (handle, mask) in enumerate(events):
            transport = self._transports.get(handle)
            waited_ms = 0 if transport is None or mask != select.EPOLLIN else transport.newest_wait_ms()
            if transport is None or not late.monitor.is_late(waited_ms):
                others.append((handle, mask))
                continue
            late.begin(waited_ms, len(events) - number - 1)
            try:
                transport.read(mask)
            finally:
                late.end()
        return others

    def _send(self) -> None:
        unsent, self._unsent = self._unsent, []
        for transport in unsent:
            transport.send()

    def _accept(self, listener: socket.socket) -> None:
        limit = descriptor_limit()
        for _ in range(ACCEPTS_PER_TURN_MAX):
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _RESOURCE_ERRNOS:
                    raise
                log.error("stopped accepting connections for %g s: %s", ACCEPT_PAUSE_S, error)
                self._epoll.unregister(listener.fileno())
                self._pause = self.loop.call_later(ACCEPT_PAUSE_S, self._watch_listeners)
                return
            if sock.fileno() >= limit:
                sock.close()
                if count := self._rejections.add():
                    log.warning("rejected %d connections: %d descriptors are in use", count, limit)
                continue
            sock.setblocking(False)
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            EpollTransport(self, sock, self._factory())

    def _watch_listeners(self) -> None:
        for handle in self._listeners:
            try:
                self._epoll.register(handle, select.EPOLLIN)
            except FileExistsError:  # it is watched still: another listener was paused
                continue


class Intake(Enum):
    """Whether a transport takes bytes from its socket. `CLOSING`: never again; it sends what is unsent."""

    READING = "reading"
    PAUSED = "paused"
    CLOSING = "closing"


READING, PAUSED, CLOSING = Intake
"""Names of the module: the lookup of an enum's member costs more than the rest of the comparison."""


class EpollTransport(asyncio.Transport):
    """The transport of one accepted socket."""

    __slots__ = (
        "_counted_unsent",
        "_handle",
        "_has_views",
        "_high",
        "_intake",
        "_low",
        "_mask",
        "_names",
        "_out",
        "_out_size",
        "_paused",
        "_protocol",
        "_queued",
        "_receive",
        "_server",
        "_socket",
    )

    def __init__(self, server: EpollServer, sock: socket.socket, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._server = server
        self._socket = sock
        self._handle = sock.fileno()
        self._receive = sock.recv_into
        self._protocol: asyncio.Protocol = protocol
        self._out: list[bytes | memoryview] = []
        self._out_size = 0
        self._has_views = False  # whether some of `_out` may change or vanish when this turn has ended
        self._counted_unsent = 0  # this socket's share of the server's `unsent_bytes`
        self._queued = False
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        self._paused = False
        self._intake = READING
        self._mask = select.EPOLLIN
        self._names = {"socket": sock, "sockname": sock.getsockname(), "peername": _peer(sock)}
        server.watch(self, self._handle)
        protocol.connection_made(self)

    # called by the protocol (asyncio.Transport)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`socket`, `sockname` or `peername`."""
        return self._names.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replaces the protocol."""
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol."""
        return self._protocol

    def is_closing(self) -> bool:
        """Whether the transport is closed or closing."""
        return self._intake is CLOSING

    def is_reading(self) -> bool:
        """Whether the transport reads."""
        return self._intake is READING

    def pause_reading(self) -> None:
        """Stops reading; received bytes stay in the kernel."""
        if self._intake is READING:
            self._intake = PAUSED
        self._update_events()

    def resume_reading(self) -> None:
        """Starts reading again."""
        if self._intake is PAUSED:
            self._intake = READING
        self._update_events()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Sets the unsent bytes above which the protocol is paused, and below which it is resumed."""
        self._high = HIGH_WATER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """(low, high)."""
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        """Unsent bytes."""
        return self._out_size

    def counted_unsent(self) -> int:
        """Unsent bytes after the last send."""
        return self._counted_unsent

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queues bytes; the server sends them at the end of the turn. A closed transport drops them."""
        if self._intake is CLOSING or not data:
            return
        self._out.append(bytes(data) if isinstance(data, bytearray) else data)
        self._out_size += len(data)
        if not self._queued:
            self._queued = True
            self._server.queue_send(self)
        if self._out_size > self._high:
            self._limit_unsent()

    def write_views(self, pieces: Iterable[bytes | memoryview], size: int) -> None:
        """Queues pieces of `size` bytes together, for example views of mapped files. What the socket does not
        take by the end of the turn is copied then."""
        if self._intake is CLOSING:
            return
        self._out += pieces
        self._out_size += size
        self._has_views = True
        if not self._queued:
            self._queued = True
            self._server.queue_send(self)
        if self._out_size > self._high:
            self._limit_unsent()

    def can_write_eof(self) -> bool:
        """A half-close is not supported."""
        return False

    def close(self) -> None:
        """Sends the unsent bytes, then closes."""
        if self._intake is CLOSING:
            return
        self._intake = CLOSING
        self._update_events()
        if not self._out:
            self._server.loop.call_soon(self._finish, None)

    def abort(self) -> None:
        """Closes at once; unsent bytes are lost."""
        self._fail(None)

    # called by the server

    def newest_wait_ms(self) -> int:
        """Milliseconds since the last bytes arrived at the socket."""
        return newest_wait_ms(self._socket)

    def read(self, mask: int) -> None:
        """Reads once and passes the bytes, the end or the error on to the protocol."""
        if self._intake is not READING:
            if mask & _HANGUP_EVENTS:
                self._fail(ConnectionResetError("reset by the peer"))
            return
        buffer = self._server.buffer
        try:
            size = self._receive(buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(error)
            return
        try:
            if size:
                self._protocol.data_received(bytes(buffer[:size]))
            elif self._protocol.eof_received():
                self.pause_reading()
            else:
                self.close()
        except Exception as error:
            log.exception("a protocol raised while it handled bytes of %s", self._names["peername"])
            self._fail(error)

    def send(self) -> None:
        """Sends as many of the unsent bytes as the socket takes."""
        self._queued = False
        out = self._out
        if not out or self._handle < 0:
            return
        try:
            if len(out) == 1:
                sent = self._socket.send(out[0])
            else:
                sent = self._socket.sendmsg(out[:BUFFERS_PER_SEND_MAX])
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._fail(error)
            return
        if sent == self._out_size:
            out.clear()
            self._out_size = 0
            self._has_views = False
            if self._counted_unsent:
                self._count(0)
            if self._mask & select.EPOLLOUT:
                self._update_events()
        else:
            self._drop_sent(sent)
            self._update_events()
            self._count(self._out_size)
            if self._handle < 0:
                return  # the server aborted this connection: too many unsent bytes
        if self._paused and self._out_size <= self._low:
            self._paused = False
            self._protocol.resume_writing()
        if self._intake is CLOSING and not self._out:
            self._server.loop.call_soon(self._finish, None)

    # inside

    def _limit_unsent(self) -> None:
        """Above the high water mark: tries to send now, and pauses the protocol if too many bytes stay
        unsent."""
        if not self._mask & select.EPOLLOUT:
            queued = self._queued
            self.send()
            self._queued = queued
        if self._out_size > self._high and not self._paused and self._intake is not CLOSING:
            self._paused = True
            self._protocol.pause_writing()

    def _count(self, unsent: int) -> None:
        change, self._counted_unsent = unsent - self._counted_unsent, unsent
        self._server.count_unsent(change)

    def _drop_sent(self, sent: int) -> None:
        self._out_size -= sent
        done = 0
        for part in self._out:
            if sent < len(part):
                break
            sent -= len(part)
            done += 1
        del self._out[:done]
        if sent:
            self._out[0] = memoryview(self._out[0])[sent:]
        if self._has_views:
            self._has_views = False
            self._out[:] = [b"".join(self._out)]

    def _update_events(self) -> None:
        """Tells the epoll which events are wanted now."""
        mask = select.EPOLLIN if self._intake is READING else 0
        if self._out and not self._queued:
            mask |= select.EPOLLOUT
        if mask != self._mask and self._handle >= 0:
            self._mask = mask
            self._server.set_events(self._handle, mask)

    def _fail(self, error: Exception | None) -> None:
        if self._handle < 0:
            return
        self._intake = CLOSING
        self._out.clear()
        self._out_size = 0
        self._stop_watching()
        self._count(0)
        self._server.loop.call_soon(self._finish, error)

    def _stop_watching(self) -> None:
        """Removes the socket from the epoll; after that it neither reads nor sends."""
        if self._handle >= 0:
            self._server.unwatch(self._handle)
            self._handle = -1

    def _finish(self, error: Exception | None) -> None:
        if self._socket.fileno() < 0:
            return
        self._stop_watching()
        self._socket.close()
        self._protocol.connection_lost(error)


def _peer(sock: socket.socket) -> Any:
    try:
        return sock.getpeername()
    except OSError:  # closed already
        return None
