"""Stream sockets, listening sockets and epoll of a simulated kernel.

They have the methods of `socket.socket` and `select.epoll` that the servers and asyncio's own transports use,
with the same errors. Bytes travel through `network.Network`.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

EVENT_READ, EVENT_WRITE = 1, 2
FD_MIN = 1 << 20
"""Simulated descriptors begin here; files have real ones."""
WINDOW_BYTES = 256 * 1024
"""Bytes that one direction of a connection holds until its receiver reads."""


def error_of(number: int) -> OSError:
    """The OSError of an errno."""
    return OSError(number, os.strerror(number))


class Carrier(Protocol):
    """What carries segments from a socket to its peer."""

    def send(self, source: SimulatedSocket, kind: str, data: bytes) -> None: ...


class Kernel:
    """The descriptors of all simulated processes."""

    FAMILY, STREAM = socket.AF_INET, socket.SOCK_STREAM

    def __init__(self) -> None:
        self.objects: dict[int, Any] = {}
        self._next_fd = FD_MIN
        self._changed: Callable[[int], None] = lambda fd: None
        self.owner_of_new: Callable[[], Any] = lambda: None
        self.connect_from: Callable[[str, int], Awaitable[SimulatedSocket]] | None = None
        self.bind: Callable[[SimulatedSocket, str, int], tuple[str, int]] | None = None
        self.carrier: Carrier | None = None

    def attach(self, changed: Callable[[int], None]) -> None:
        """`changed` is called whenever a descriptor may have become ready."""
        self._changed = changed

    def add(self, thing: Any) -> int:
        """Gives an object a descriptor."""
        fd, self._next_fd = self._next_fd, self._next_fd + 1
        self.objects[fd] = thing
        return fd

    def events(self, fd: int) -> int:
        """EVENT_READ and EVENT_WRITE, as far as the descriptor is ready."""
        thing = self.objects.get(fd)
        return 0 if thing is None else int(thing.events())

    def changed(self, fd: int) -> None:
        """Reports that a descriptor may have become ready."""
        self._changed(fd)

    async def connect(self, host: str, port: int) -> SimulatedSocket:
        """Connects from the host of the present process. Raises OSError."""
        assert self.connect_from is not None
        return await self.connect_from(host, port)


class SimulatedSocket:
    """One end of a connection, or a listening socket."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM
    proto = socket.IPPROTO_TCP

    def __init__(self, kernel: Kernel, owner: Any) -> None:
        self.kernel = kernel
        self.owner = owner  # the process; None after it has ended
        self.fd = kernel.add(self)
        self.handle = self.fd  # stays when `fd` is gone
        self.local: tuple[str, int] = ("0.0.0.0", 0)
        self.remote: tuple[str, int] | None = None
        self.peer: SimulatedSocket | None = None
        self.accepted: deque[SimulatedSocket] | None = None  # of a listening socket
        self.on_close: Callable[[], None] | None = None
        self.epoll: SimulatedEpoll | None = None
        self.inbox = bytearray()
        self.in_flight = 0  # bytes that the peer has not read
        self.ended = False  # the peer has sent its end
        self.sent_end = False
        self.error: int = 0

    # what the simulator calls

    def events(self) -> int:
        """See `Kernel.events`."""
        if self.accepted is not None:
            return EVENT_READ if self.accepted else 0
        found = EVENT_READ if self.inbox or self.ended or self.error else 0
        return found | (EVENT_WRITE if self.error or self.in_flight < WINDOW_BYTES else 0)

    def notify(self) -> None:
        """Wakes who waits for this socket."""
        if self.epoll is not None:
            self.kernel.changed(self.epoll.fd)
        elif self.fd >= 0:
            self.kernel.changed(self.fd)

    def deliver(self, kind: str, data: bytes) -> None:
        """Takes a segment that has arrived."""
        if kind == "data":
            self.inbox += data
        elif kind == "end":
            self.ended = True
        else:
            self.fail(errno.ECONNRESET)
        self.notify()

    def fail(self, number: int) -> None:
        """The connection is lost."""
        self.error = self.error or number
        self.inbox.clear()
        self.notify()

    # socket.socket

    def fileno(self) -> int:
        return self.fd

    def setblocking(self, flag: bool) -> None:
        """Simulated sockets never block."""

    def gettimeout(self) -> float:
        return 0.0

    def setsockopt(self, *_args: Any) -> None:
        """Options have no effect."""

    def getsockopt(self, level: int, option: int, *_size: int) -> Any:
        raise error_of(errno.ENOPROTOOPT)

    def getsockname(self) -> tuple[str, int]:
        return self.local

    def getpeername(self) -> tuple[str, int]:
        if self.remote is None or self.error:
            raise error_of(errno.ENOTCONN)
        return self.remote

    def bind(self, address: tuple[str, int]) -> None:
        assert self.kernel.bind is not None
        self.local = self.kernel.bind(self, address[0], address[1])

    def listen(self, _backlog: int = 0) -> None:
        self.accepted = deque()

    def accept(self) -> tuple[SimulatedSocket, tuple[str, int]]:
        if self.accepted is None or not self.accepted:
            raise BlockingIOError(errno.EAGAIN, "nobody has connected")
        sock = self.accepted.popleft()
        assert sock.remote is not None
        return sock, sock.remote

    def recv(self, size: int, _flags: int = 0) -> bytes:
        self._check()
        if not self.inbox:
            if self.ended:
                return b""
            raise BlockingIOError(errno.EAGAIN, "nothing has arrived")
        data = bytes(self.inbox[:size])
        del self.inbox[:size]
        if self.peer is not None:
            self.peer.in_flight -= len(data)
            self.peer.notify()
        return data

    def recv_into(self, buffer: Any, size: int = 0, _flags: int = 0) -> int:
        data = self.recv(size or len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def send(self, data: Any, _flags: int = 0) -> int:
        self._check()
        if self.sent_end:
            raise BrokenPipeError(errno.EPIPE, "the socket was shut down")
        room = WINDOW_BYTES - self.in_flight
        if room <= 0:
            raise BlockingIOError(errno.EAGAIN, "the window is full")
        part = bytes(memoryview(data)[:room])
        self.in_flight += len(part)
        assert self.kernel.carrier is not None
        self.kernel.carrier.send(self, "data", part)
        return len(part)

    def sendmsg(self, buffers: Iterable[Any], *_options: Any) -> int:
        return self.send(b"".join(buffers))

    def shutdown(self, _how: int) -> None:
        self._send_end()

    def close(self) -> None:
        if self.fd < 0:
            return
        if self.epoll is not None:
            self.epoll.watched.pop(self.fd, None)
            self.epoll = None
        self.kernel.objects.pop(self.fd, None)
        self.fd = -1
        if self.on_close is not None:
            self.on_close()
        if self.accepted is not None:
            for waiting in self.accepted:
                waiting.close()
        elif self.inbox:
            self._send("reset")
        else:
            self._send_end()

    def _send_end(self) -> None:
        if not self.sent_end and not self.error and self.peer is not None:
            self.sent_end = True
            self._send("end")

    def _send(self, kind: str) -> None:
        if self.kernel.carrier is not None and self.peer is not None and not self.error:
            self.kernel.carrier.send(self, kind, b"")

    def _check(self) -> None:
        if self.fd < 0:
            raise error_of(errno.EBADF)
        if self.error:
            raise error_of(self.error)


class SimulatedEpoll:
    """`select.epoll`, level-triggered."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.watched: dict[int, int] = {}
        self.fd = kernel.add(self)
        self.owner = kernel.owner_of_new()
        self.closed = False

    def fileno(self) -> int:
        return self.fd

    def register(self, fd: int, mask: int) -> None:
        if fd in self.watched:
            raise FileExistsError(errno.EEXIST, "watched already")
        self.watched[fd] = mask
        self._kernel.objects[fd].epoll = self
        self._kernel.changed(self.fd)

    def modify(self, fd: int, mask: int) -> None:
        self.watched[fd] = mask
        self._kernel.changed(self.fd)

    def unregister(self, fd: int) -> None:
        del self.watched[fd]
        self._kernel.objects[fd].epoll = None

    def poll(self, _timeout: float = 0, max_events: int = -1) -> list[tuple[int, int]]:
        found = [(fd, ready) for fd, mask in self.watched.items() if (ready := self._ready(fd, mask))]
        return found if max_events < 0 else found[:max_events]

    def close(self) -> None:
        self.closed = True
        self._kernel.objects.pop(self.fd, None)

    def events(self) -> int:
        """See `Kernel.events`."""
        return EVENT_READ if any(self._ready(fd, mask) for fd, mask in self.watched.items()) else 0

    def _ready(self, fd: int, mask: int) -> int:
        sock: SimulatedSocket = self._kernel.objects[fd]
        events = sock.events()
        ready = select.EPOLLIN if events & EVENT_READ else 0
        ready |= select.EPOLLOUT if events & EVENT_WRITE else 0
        return (ready & mask) | (select.EPOLLHUP if sock.error else 0)
