"""TLS below HA connections (`haTlsMode`), with certificates on both sides. The frames inside are unchanged.

A master that accepts TLS gives each replica's connection to an `HAConnection` as one end of a pair of
sockets, and passes bytes between the other end and the network, encrypted. So the plain path is as without
TLS: the kernel passes the log from the file to the network. A replica decrypts into the buffer of its
connection.

Both sides present their certificate and verify the other's with `tls.client.trustCertPath`, the authorities
of members: those of clients (`tls.server.trustCertPath`) count for nothing here.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final, cast

from msgspec.structs import replace

from epochmq_broker.config.broker_config import BrokerConfig
from epochmq_broker.config.tls_settings import client_tls, server_tls
from epochmq_protocol.transport.outgoing_tls import ClientCertificates
from epochmq_protocol.transport.peer_warnings import PEER_WARNINGS
from epochmq_protocol.transport.sealed_transport import ConnectionTransport
from epochmq_protocol.transport.server_certificates import ServerCertificates
from epochmq_protocol.transport.tls import HANDSHAKE_BYTE, ClientAuth, TlsLayer, TlsMode

log = logging.getLogger(__name__)

ARRIVALS_MAX: Final = 16
"""Connections of which it is not known yet whether they have a certificate of a member. For one more, the
oldest of the address with the most of them is closed."""
ARRIVAL_S: Final = 5.0
"""Time from the connect to the end of the TLS handshake."""
UNSENT_BYTES: Final = 1024 * 1024
"""With more unsent ciphertext no more of the log is taken from the connection."""

Admit = Callable[[socket.socket, str], None]
"""Takes the socket of a replica's connection, and the replica's host:port."""


class HATls:
    """The certificates of a broker for its HA connections."""

    def __init__(self, config: BrokerConfig) -> None:
        """ConfigError names a file that cannot be used."""
        client, server = client_tls(config), server_tls(config)
        self.mode = TlsMode(config.ha_tls_mode)
        self._connecting = ClientCertificates(replace(client, auth_server=True))
        self._accepting = ServerCertificates(
            replace(server, mode=self.mode, trust_path=client.trust_path, client_auth=ClientAuth.REQUIRE)
        )

    @classmethod
    def of(cls, config: BrokerConfig) -> HATls | None:
        """The TLS of HA connections by the broker's keys; None: plain ones. Raises as the constructor."""
        return None if config.ha_tls_mode == TlsMode.DISABLED.value else cls(config)

    @property
    def is_required(self) -> bool:
        """Whether plain connections are refused."""
        return self.mode is TlsMode.ENFORCING

    @property
    def connecting(self) -> ssl.SSLContext:
        """The context for the next connection to a master."""
        return self._connecting.context

    @property
    def accepting(self) -> ssl.SSLContext:
        """The context for the next connection of a replica."""
        context = self._accepting.context
        assert context is not None
        return context


class _End(asyncio.Protocol):
    """One end of a connection that is passed on: writes what it receives to the other end, and stops reading
    while that takes no more. If it is lost, the other one is closed."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self.transport: ConnectionTransport | None = None
        self.other: _End | None = None
        self._on_lost = on_lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio, or by the TLS layer with plain text."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        """Called when the transport takes no more."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """Called when the transport takes bytes again."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when the connection has ended."""
        self._on_lost()


class _Arrival:
    """One accepted connection: first it waits for its first byte and, with TLS, for the handshake; then, with
    TLS, it passes bytes on until its end. `is_waiting`: nothing shows yet that the peer is a member."""

    def __init__(self, sock: socket.socket, remote: str, owner: TlsArrivals) -> None:
        self.remote = remote
        self.is_waiting = True
        self._sock = sock
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.call_later(
            ARRIVAL_S, self.end, f"it has not presented a certificate within {ARRIVAL_S:g} s"
        )
        self._task: asyncio.Task[None] | None = None
        self._layer: TlsLayer | None = None
        self._plain = _End(lambda: self.end(""))
        self._sealed = _End(lambda: self.end(""))
        self._near: socket.socket | None = None
        self._loop.add_reader(sock.fileno(), self._readable)

    def end(self, why: str) -> None:
        """Closes everything; `why` is for the log."""
        if self not in self._owner.arrivals:
            return
        self._owner.arrivals.remove(self)
        if why:
            PEER_WARNINGS.write(log, "the HA connection of %s ends: %s", self.remote, why)
        self._deadline.cancel()
        if self._task is None:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
            return
        self._task.cancel()
        if self._near is not None:
            self._near.close()
        for one in (self._layer, self._plain.transport):
            if one is not None:
                one.abort()

    def _readable(self) -> None:
        try:
            first = self._sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.end(str(error))
            return
        if not first:
            self.end("the peer has closed it")
        elif first[0] == HANDSHAKE_BYTE:
            self._loop.remove_reader(self._sock.fileno())
            self._task = self._loop.create_task(self._seal())
        elif self._owner.tls.is_required:
            self.end("it speaks plain text, and haTlsMode is enforcing")
        else:
            self._loop.remove_reader(self._sock.fileno())
            self._deadline.cancel()
            self._owner.arrivals.remove(self)
            self._owner.admit(self._sock, self.remote)

    async def _seal(self) -> None:
        """Makes the pair of sockets, and begins the handshake."""
        try:
            self._near, far = socket.socketpair()
            self._near.setblocking(False)
            far.setblocking(False)
            await self._loop.create_unix_connection(lambda: self._plain, sock=far)
            layer = TlsLayer(
                self._owner.tls.accepting,
                server_side=True,
                timeout_ms=ARRIVAL_S * 1000,
                on_ready=self._ready,
                on_failed=lambda error: self.end(str(error)),
            )
            await self._loop.connect_accepted_socket(lambda: layer, self._sock)
        except OSError as error:
            self._sock.close()
            self.end(str(error))

    def _ready(self, layer: TlsLayer) -> asyncio.Protocol:
        """The peer has a certificate of a member: its plain text goes to an HA connection."""
        self._deadline.cancel()
        self._layer = self._sealed.transport = layer
        layer.set_write_buffer_limits(UNSENT_BYTES)
        self._plain.other, self._sealed.other = self._sealed, self._plain
        self.is_waiting = False
        near, self._near = self._near, None
        assert near is not None
        self._owner.admit(near, self.remote)
        return self._sealed


class TlsArrivals:
    """The connections that a master has accepted: until it is known whose they are, and with TLS until their
    end."""

    def __init__(self, tls: HATls, admit: Admit) -> None:
        """`admit` takes the connection of a replica with a certificate of a member, or a plain one if those
        are accepted."""
        self.tls = tls
        self.admit = admit
        self.arrivals: list[_Arrival] = []

    def take(self, sock: socket.socket, remote: str) -> None:
        """Takes over an accepted socket of host:port `remote`."""
        waiting = [one for one in self.arrivals if one.is_waiting]
        if len(waiting) >= ARRIVALS_MAX:
            hosts = [one.remote.rpartition(":")[0] for one in waiting]
            most = max(dict.fromkeys(hosts), key=hosts.count)
            waiting[hosts.index(most)].end(f"{ARRIVALS_MAX} connections have not presented a certificate yet")
        self.arrivals.append(_Arrival(sock, remote, self))

    def stop(self) -> None:
        """Closes every connection."""
        for one in list(self.arrivals):
            one.end("this broker stops being the master")


class _BufferFeed(asyncio.Protocol):
    """Gives plain text to a protocol that receives into a buffer of its own."""

    def __init__(self, stream: asyncio.BufferedProtocol) -> None:
        self._stream = stream

    def data_received(self, data: bytes) -> None:
        """Called by the TLS layer."""
        view = memoryview(data)
        while view:
            buffer = memoryview(self._stream.get_buffer(len(view)))
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            view = view[count:]
            self._stream.buffer_updated(count)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when the connection has ended."""
        self._stream.connection_lost(exc)


async def connect_sealed(
    stream: asyncio.BufferedProtocol,
    context: ssl.SSLContext,
    host: str,
    port: int,
    *,
    local_addr: tuple[str, int] | None,
    timeout_ms: float,
) -> None:
    """Connects `stream` to a master by TLS. OSError: it cannot be reached. HandshakeError: it has no TLS, or
    no certificate of a member."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def on_ready(layer: TlsLayer) -> asyncio.Protocol:
        stream.connection_made(layer)  # type: ignore[arg-type]
        if not ready.done():
            ready.set_result(None)
        return _BufferFeed(stream)

    def on_failed(error: Exception) -> None:
        if not ready.done():
            ready.set_exception(HandshakeError(f"TLS with the master failed: {error}"))

    layer = TlsLayer(
        context, server_side=False, timeout_ms=timeout_ms, on_ready=on_ready, on_failed=on_failed
    )
    transport, _ = await loop.create_connection(lambda: layer, host, port, local_addr=local_addr)
    try:
        await ready
    except BaseException:
        transport.abort()
        raise


class HandshakeError(ConnectionError):
    """The TLS handshake with a master has failed."""
