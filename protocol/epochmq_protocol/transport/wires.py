"""Accepted sockets, watched by an epoll of their server's own.

A loop's transports cost a server of many connections more than the requests that come over them: a callback,
a buffer and a write for every socket at every turn. Here all sockets that have something are read in one
turn, and what their handlers answered leaves afterwards, one `send` a socket. The loop sees a single
descriptor, that of the epoll, and everything runs on the loop's thread.

To its protocol a `SocketWire` is an ordinary `asyncio.Transport`: the same callbacks in the same order, flow
control included. Linux alone has epoll; elsewhere `listen` uses the loop's own server.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from epochmq_protocol.transport.descriptors import RejectionLog, descriptor_limit

log = logging.getLogger(__name__)

READ_BYTES = 256 * 1024
"""The most that is taken from one socket in one turn."""
SOCKETS_A_TURN_MAX = 256
"""The loop's other work waits for one turn; sockets left over have the next."""
ACCEPTED_A_TURN_MAX = 64
ACCEPT_PAUSE_S = 1.0
"""How long nothing is accepted after the process ran out of descriptors or memory, as asyncio does it."""
PARTS_A_SEND_MAX = 512
"""Of a scattered write; the kernel takes 1,024 (IOV_MAX)."""
HIGH_WATER_BYTES = 64 * 1024
UNSENT_MAX_BYTES = 512 * 1024 * 1024

_OVER = getattr(select, "EPOLLHUP", 0) | getattr(select, "EPOLLERR", 0)
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

ProtocolFactory = Callable[[], asyncio.Protocol]


class Listening(Protocol):
    """A port that is listened on."""

    port: int

    def stop_accepting(self) -> None:
        """Accepts nothing more; what was accepted stays."""

    def close(self) -> None:
        """Lets go of what is left; call it when no connection is."""


async def listen(
    factory: ProtocolFactory, host: str | None, port: int, backlog: int, unsent_max: int = UNSENT_MAX_BYTES
) -> Listening:
    """Listens; every accepted socket gets a protocol of the factory's. `unsent_max`: bytes that may be unsent
    over all of them (where there is epoll). OSError when the address cannot be bound."""
    loop = asyncio.get_running_loop()
    if not hasattr(select, "epoll"):
        return _LoopServer(await loop.create_server(factory, host, port, backlog=backlog))
    found = await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, family=socket.AF_UNSPEC, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            sockets.append(_bound(family, (address[0], _port(sockets, port), *address[2:]), backlog))
    except BaseException:
        for one in sockets:
            one.close()
        raise
    return Wires(loop, sockets, factory, unsent_max)


def _port(sockets: list[socket.socket], port: int) -> int:
    """All addresses of a host share the port that the kernel chose for the first."""
    return port or (sockets[0].getsockname()[1] if sockets else 0)


def _bound(family: int, address: tuple[Any, ...], backlog: int) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
        one.listen(backlog)
    except OSError as error:
        one.close()
        raise OSError(error.errno, f"cannot listen on {address[0]}:{address[1]}: {error.strerror}") from None
    return one


class _LoopServer:
    """The loop's own server, where there is no epoll."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.port: int = server.sockets[0].getsockname()[1]

    def stop_accepting(self) -> None:
        self._server.close()

    def close(self) -> None:
        self._server.close()


class Wires:
    """The sockets of one server."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listening: Iterable[socket.socket],
        factory: ProtocolFactory,
        unsent_max: int,
    ) -> None:
        self.loop = loop
        self.unsent_bytes = 0  # of sockets that did not take all at their last send
        self._unsent_max = unsent_max
        self._factory = factory
        self._epoll = select.epoll()
        self._wires: dict[int, SocketWire] = {}
        self._doors = {one.fileno(): one for one in listening}
        self._unsent: list[SocketWire] = []
        self._in_turn = False
        self._pause: asyncio.TimerHandle | None = None
        self._rejections = RejectionLog()
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.port: int = next(iter(self._doors.values())).getsockname()[1]
        self._open_doors()
        loop.add_reader(self._epoll.fileno(), self._turn)

    def stop_accepting(self) -> None:
        """Accepts nothing more; what was accepted stays."""
        if self._pause is not None:
            self._pause.cancel()
        for door in self._doors.values():
            door.close()  # which takes it out of the epoll
        self._doors.clear()

    def close(self) -> None:
        """Ends; connections that are left are lost."""
        self.stop_accepting()
        for wire in list(self._wires.values()):
            wire.abort()
        if not self._epoll.closed:
            self.loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    # for the wires

    def watch(self, wire: SocketWire, handle: int) -> None:
        """Begins to watch a wire's socket."""
        self._wires[handle] = wire
        self._epoll.register(handle, select.EPOLLIN)

    def change(self, handle: int, mask: int) -> None:
        """What to watch a socket for from now on."""
        self._epoll.modify(handle, mask)

    def forget(self, handle: int) -> None:
        """A socket is about to be closed."""
        self._wires.pop(handle, None)
        if not self._epoll.closed:
            self._epoll.unregister(handle)

    def to_send(self, wire: SocketWire) -> None:
        """A wire has its first unsent bytes: they leave when this turn is over, or the loop's."""
        if not (self._unsent or self._in_turn):
            self.loop.call_soon(self._send)
        self._unsent.append(wire)

    def count_unsent(self, change: int) -> None:
        """A socket's unsent bytes have changed. Above the limit, those with the most are dropped."""
        self.unsent_bytes += change
        while self.unsent_bytes > self._unsent_max and self._wires:
            slowest = max(self._wires.values(), key=SocketWire.unsent_counted)
            log.warning(
                "dropped %s, which does not read: %d bytes are unsent over %d connections",
                slowest.get_extra_info("peername"),
                self.unsent_bytes,
                len(self._wires),
            )
            slowest.abort()

    # inside

    def _turn(self) -> None:
        """Reads every socket that has something, then sends what was answered."""
        wires = self._wires
        self._in_turn = True
        try:
            for handle, mask in self._epoll.poll(0, SOCKETS_A_TURN_MAX):
                wire = wires.get(handle)
                if wire is None:
                    if handle in self._doors:
                        self._accept(self._doors[handle])
                    continue
                if mask & select.EPOLLOUT:
                    wire.send()
                if mask & ~select.EPOLLOUT:
                    wire.read(mask)
        finally:
            self._in_turn = False
            self._send()

    def _send(self) -> None:
        unsent, self._unsent = self._unsent, []
        for wire in unsent:
            wire.send()

    def _accept(self, door: socket.socket) -> None:
        limit = descriptor_limit()
        for _ in range(ACCEPTED_A_TURN_MAX):
            try:
                one, _ = door.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                log.error("nothing is accepted for %g s: %s", ACCEPT_PAUSE_S, error)
                self._epoll.unregister(door.fileno())
                self._pause = self.loop.call_later(ACCEPT_PAUSE_S, self._open_doors)
                return
            if one.fileno() >= limit:
                one.close()
                if count := self._rejections.add():
                    log.warning("rejected %d connections: %d descriptors are in use", count, limit)
                continue
            one.setblocking(False)
            if one.family in (socket.AF_INET, socket.AF_INET6):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            SocketWire(self, one, self._factory())

    def _open_doors(self) -> None:
        for handle in self._doors:
            try:
                self._epoll.register(handle, select.EPOLLIN)
            except FileExistsError:  # another one was shut, not this
                continue


class SocketWire(asyncio.Transport):
    """One accepted socket as its protocol sees it."""

    __slots__ = (
        "_closing",
        "_counted",
        "_handle",
        "_high",
        "_low",
        "_mask",
        "_names",
        "_out",
        "_out_size",
        "_paused",
        "_protocol",
        "_queued",
        "_reading",
        "_receive",
        "_socket",
        "_wires",
    )

    def __init__(self, wires: Wires, one: socket.socket, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._wires = wires
        self._socket = one
        self._handle = one.fileno()
        self._receive = one.recv_into
        self._protocol: asyncio.Protocol = protocol
        self._out: list[bytes | memoryview] = []
        self._out_size = 0
        self._counted = 0  # unsent bytes that the server's sum has
        self._queued = False
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        self._paused = False
        self._reading = True
        self._closing = False
        self._mask = select.EPOLLIN
        self._names = {"socket": one, "sockname": one.getsockname(), "peername": _peer(one)}
        wires.watch(self, self._handle)
        protocol.connection_made(self)

    # for the protocol (asyncio.Transport)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`socket`, `sockname` or `peername`."""
        return self._names.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Who is told from now on."""
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Who is told."""
        return self._protocol

    def is_closing(self) -> bool:
        """Whether it is closed or about to be."""
        return self._closing

    def is_reading(self) -> bool:
        """Whether what comes is read."""
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        """Leaves what comes to the kernel."""
        self._reading = False
        self._watch()

    def resume_reading(self) -> None:
        """Reads again."""
        self._reading = True
        self._watch()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Unsent bytes above which the protocol is paused, and below which it goes on."""
        self._high = HIGH_WATER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """(low, high)."""
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        """Unsent bytes."""
        return self._out_size

    def unsent_counted(self) -> int:
        """Unsent bytes after the last send."""
        return self._counted

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sends soon; a closed wire drops it."""
        if self._closing or not data:
            return
        self._out.append(bytes(data) if isinstance(data, bytearray) else data)
        self._out_size += len(data)
        if not self._queued:
            self._queued = True
            self._wires.to_send(self)
        if self._out_size > self._high:
            self._relieve()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Sends all of them soon."""
        for data in list_of_data:
            self.write(data)

    def can_write_eof(self) -> bool:
        """Half a close is not offered."""
        return False

    def close(self) -> None:
        """Sends what is unsent, then closes."""
        if self._closing:
            return
        self._closing = True
        self._watch()
        if not self._out:
            self._wires.loop.call_soon(self._end, None)

    def abort(self) -> None:
        """Closes at once."""
        self._fail(None)

    # for the wires

    def read(self, mask: int) -> None:
        """The socket has something, or has come to its end."""
        if self._closing or not self._reading:
            if mask & _OVER:
                self._fail(ConnectionResetError("the peer is gone"))
            return
        buffer = self._wires.buffer
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
            log.exception("a protocol failed")
            self._fail(error)

    def send(self) -> None:
        """As much of the unsent bytes as the socket takes."""
        self._queued = False
        out = self._out
        if not out or self._handle < 0:
            return
        try:
            if len(out) == 1:
                sent = self._socket.send(out[0])
            else:
                sent = self._socket.sendmsg(out[:PARTS_A_SEND_MAX])
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._fail(error)
            return
        if sent == self._out_size:
            out.clear()
            self._out_size = 0
            if self._counted:
                self._count(0)
            if self._mask & select.EPOLLOUT:
                self._watch()
        else:
            self._take_off(sent)
            self._watch()
            self._count(self._out_size)
            if self._handle < 0:
                return  # that was too much
        if self._paused and self._out_size <= self._low:
            self._paused = False
            self._protocol.resume_writing()
        if self._closing and not self._out:
            self._wires.loop.call_soon(self._end, None)

    # inside

    def _relieve(self) -> None:
        """Above the high water mark: the protocol is paused when the socket does not take enough now."""
        if not self._mask & select.EPOLLOUT:
            queued = self._queued
            self.send()
            self._queued = queued
        if self._out_size > self._high and not self._paused and not self._closing:
            self._paused = True
            self._protocol.pause_writing()

    def _count(self, unsent: int) -> None:
        change, self._counted = unsent - self._counted, unsent
        self._wires.count_unsent(change)

    def _take_off(self, sent: int) -> None:
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

    def _watch(self) -> None:
        """Has the epoll watch for what is wanted now."""
        mask = select.EPOLLIN if self._reading and not self._closing else 0
        if self._out and not self._queued:
            mask |= select.EPOLLOUT
        if mask != self._mask and self._handle >= 0:
            self._mask = mask
            self._wires.change(self._handle, mask)

    def _fail(self, error: Exception | None) -> None:
        if self._handle < 0:
            return
        self._closing = True
        self._out.clear()
        self._out_size = 0
        self._let_go()
        self._count(0)
        self._wires.loop.call_soon(self._end, error)

    def _let_go(self) -> None:
        """The socket is watched no more, and neither reads nor writes."""
        if self._handle >= 0:
            self._wires.forget(self._handle)
            self._handle = -1

    def _end(self, error: Exception | None) -> None:
        if self._socket.fileno() < 0:
            return
        self._let_go()
        self._socket.close()
        self._protocol.connection_lost(error)


def _peer(one: socket.socket) -> Any:
    try:
        return one.getpeername()
    except OSError:  # gone already
        return None
