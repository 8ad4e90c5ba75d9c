"""The network between simulated hosts: delays, cuts, refused and half-open connections.

A connection is a TCP connection. Its bytes arrive in order or not at all. While a link is cut, segments
wait, as they are sent again by a kernel; after the cut they arrive. A host without power answers nothing; a
host that runs, but does not know a connection, resets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from tests.simulation.whole.sockets import Kernel, SimulatedSocket, error_of

CONNECT_TIMEOUT_S = 60.0
FIRST_PORT = 32768


class NetworkHost(Protocol):
    """What the network needs to know of a host."""

    name: str
    address: str
    has_power: bool


class Network:
    """Carries segments between the sockets of hosts."""

    def __init__(
        self,
        kernel: Kernel,
        now_s: Callable[[], float],
        delay_s: Callable[[], float],
        trace: Callable[[str], None],
    ) -> None:
        """`delay_s` draws the delay of a segment, `trace` gets a line for each one that arrives."""
        self._kernel = kernel
        self._now_s, self._delay_s, self._trace = now_s, delay_s, trace
        self.loop: asyncio.AbstractEventLoop | None = None
        self.host_of: Callable[[Any], NetworkHost] = lambda owner: owner.host
        self._hosts: dict[str, NetworkHost] = {}
        self._cut: set[tuple[str, str]] = set()
        self._separated: Counter[tuple[str, str]] = Counter()  # how many outages cut a link
        self.slow_s: dict[tuple[str, str], float] = {}
        self._listening: dict[tuple[str, int], SimulatedSocket] = {}
        self._lanes: dict[int, _Lane] = {}  # by the sending socket
        self._next_port = FIRST_PORT
        kernel.connect_from = self._connect
        kernel.bind = self._bind
        kernel.carrier = self

    def add_host(self, host: NetworkHost) -> None:
        """Connects a host to the network."""
        self._hosts[host.address] = host

    # faults

    def cut(self, one: str, other: str, *, both: bool = True) -> None:
        """Cuts the link from one host to another, by their names."""
        self._cut.add((one, other))
        if both:
            self._cut.add((other, one))

    def heal(self) -> None:
        """Ends all cuts but those of `separated`, and all delays."""
        self._cut.clear()
        self.slow_s.clear()
        self._pump()

    def heal_links(self, links: Iterable[tuple[str, str]]) -> None:
        """Ends the cuts of some links."""
        self._cut.difference_update(links)
        self._pump()

    @contextlib.contextmanager
    def separated(self, links: Iterable[tuple[str, str]]) -> Iterator[None]:
        """Cuts links, each from a host to another, until the block ends, also if they are healed."""
        given = list(links)
        self._separated.update(given)
        yield
        self._separated.subtract(given)
        self._pump()

    def _pump(self) -> None:
        for lane in list(self._lanes.values()):
            lane.pump()

    def is_cut(self, one: str, other: str) -> bool:
        """Whether segments from one host do not reach another."""
        return (one, other) in self._cut or self._separated[one, other] > 0

    @property
    def cuts(self) -> frozenset[tuple[str, str]]:
        """The links that are cut, each from a host to another."""
        return frozenset(self._cut) | {pair for pair, count in self._separated.items() if count > 0}

    def power_lost(self, host: NetworkHost) -> None:
        """Forgets what a host was about to send, and its sockets."""
        for key, lane in list(self._lanes.items()):
            if lane.from_host is host:
                del self._lanes[key]
                lane.drop()
        for address, listener in list(self._listening.items()):
            if address[0] == host.address:
                listener.on_close = None
                del self._listening[address]

    # sockets

    def _bind(self, sock: SimulatedSocket, host: str, port: int) -> tuple[str, int]:
        own = self.host_of(sock.owner)
        port = port or self._port()
        if (own.address, port) in self._listening:
            raise error_of(errno.EADDRINUSE)
        self._listening[own.address, port] = sock
        sock.on_close = lambda: self._unbind(own.address, port, sock)
        return own.address if host in ("0.0.0.0", "") else host, port

    def _unbind(self, address: str, port: int, sock: SimulatedSocket) -> None:
        if self._listening.get((address, port)) is sock:
            del self._listening[address, port]

    def _port(self) -> int:
        self._next_port += 1
        return self._next_port

    async def _connect(self, address: str, port: int) -> SimulatedSocket:
        owner = self._kernel.owner_of_new()
        source = self.host_of(owner)
        target = self._hosts.get(address)
        if target is None:
            raise error_of(errno.EHOSTUNREACH)
        await asyncio.sleep(self._delay_s() + self._slow(source, target))
        deadline_s = self._now_s() + CONNECT_TIMEOUT_S
        while self._blocked(source, target):
            # The kernel sends its request again, after 1, 2, 4 … s.
            await asyncio.sleep(1.0)
            if self._now_s() > deadline_s:
                raise error_of(errno.ETIMEDOUT)
        listener = self._listening.get((address, port))
        if listener is None:
            await asyncio.sleep(self._delay_s())
            raise error_of(errno.ECONNREFUSED)
        mine, theirs = SimulatedSocket(self._kernel, owner), SimulatedSocket(self._kernel, listener.owner)
        mine.local, mine.remote = (source.address, self._port()), (address, port)
        theirs.local, theirs.remote = mine.remote, mine.local
        mine.peer, theirs.peer = theirs, mine
        assert listener.accepted is not None
        listener.accepted.append(theirs)
        listener.notify()
        await asyncio.sleep(self._delay_s())
        return mine

    def _blocked(self, source: NetworkHost, target: NetworkHost) -> bool:
        return (
            not target.has_power
            or self.is_cut(source.name, target.name)
            or self.is_cut(target.name, source.name)
        )

    def _slow(self, source: NetworkHost, target: NetworkHost) -> float:
        return self.slow_s.get((source.name, target.name), 0.0)

    # segments

    def send(self, source: SimulatedSocket, kind: str, data: bytes) -> None:
        """Takes a segment of a socket."""
        lane = self._lanes.get(source.handle)
        if lane is None:
            assert source.remote is not None
            from_host, to_host = self._hosts[source.local[0]], self._hosts[source.remote[0]]
            lane = self._lanes[source.handle] = _Lane(self, source, from_host, to_host)
        delay_s = self._delay_s() + self._slow(lane.from_host, lane.to_host)
        lane.add(self._now_s() + delay_s, kind, data)

    def arrived(self, source: SimulatedSocket, lane: _Lane, kind: str, data: bytes) -> None:
        """Delivers a segment to the peer of a socket."""
        if not lane.to_host.has_power:
            return
        peer = source.peer
        assert peer is not None
        if kind == "data":
            self._trace(f"{lane.from_host.name}>{lane.to_host.name} {len(data)} {zlib.crc32(data):08x}")
        if peer.fd < 0:
            if kind != "reset":  # the peer does not know this connection any more
                delay_s = self._delay_s()
                assert self.loop is not None
                self.loop.call_later(delay_s, self._reset, source, lane, context=contextvars.Context())
            return
        peer.deliver(kind, data)

    def _reset(self, source: SimulatedSocket, lane: _Lane) -> None:
        if source.fd >= 0 and not self.is_cut(lane.to_host.name, lane.from_host.name):
            source.fail(errno.ECONNRESET)


class _Lane:
    """The segments on their way from one socket to its peer, in their order."""

    def __init__(
        self, network: Network, source: SimulatedSocket, from_host: NetworkHost, to_host: NetworkHost
    ) -> None:
        self._network, self._source = network, source
        self.from_host, self.to_host = from_host, to_host
        self._queue: deque[tuple[float, str, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, at_s: float, kind: str, data: bytes) -> None:
        """Sends a segment that arrives at a time, but not before the earlier ones."""
        if self._queue:
            at_s = max(at_s, self._queue[-1][0])
        self._queue.append((at_s, kind, data))
        self.pump()

    def pump(self) -> None:
        """Waits for the arrival of the first segment, unless the link is cut."""
        if self._timer is None and self._queue:
            assert self._network.loop is not None
            # Of no process: what was sent arrives, even if its process has ended.
            self._timer = self._network.loop.call_at(
                self._queue[0][0], self._first_arrives, context=contextvars.Context()
            )

    def drop(self) -> None:
        """Drops all segments."""
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _first_arrives(self) -> None:
        self._timer = None
        if self._network.is_cut(self.from_host.name, self.to_host.name):
            return  # `heal` continues
        if self._queue:
            _, kind, data = self._queue.popleft()
            self._network.arrived(self._source, self, kind, data)
        self.pump()
