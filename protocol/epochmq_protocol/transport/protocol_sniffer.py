"""Decides from the first bytes of an accepted connection which protocol the client speaks.

The order is RocketMQ's (`NettyRemotingServer.HandshakeHandler`, then `TlsModeHandler`): an optional PROXY
protocol header, then one byte: 0x16 begins a TLS handshake, anything else a plain frame. The next protocol
receives the bytes already read.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Protocol, cast

from epochmq_protocol.errors import RemoteProtocolError
from epochmq_protocol.transport import proxy_protocol
from epochmq_protocol.transport.connection import RemotingConnection
from epochmq_protocol.transport.peer_warnings import PEER_WARNINGS
from epochmq_protocol.transport.settings import ServerSettings
from epochmq_protocol.transport.tls import HANDSHAKE_BYTE, TlsLayer, TlsMode
from epochmq_protocol.transport.trusted_proxies import KEY as PROXIES_KEY

log = logging.getLogger(__name__)


class AcceptingServer(Protocol):
    """What a sniffer needs of the server that accepted its socket."""

    settings: ServerSettings
    tls_mode: TlsMode

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        """The context for a handshake now; None: the server accepts plain connections only."""

    def make_connection(self, source: tuple[str, int] | None) -> RemotingConnection:
        """Creates the connection of a client. `source`: its address from a PROXY protocol header."""

    def admit(self, sniffer: ProtocolSniffer, address: str) -> bool:
        """Whether the server keeps an accepted socket of a client at this address. False: it is closed."""

    def sniffing_ended(self, sniffer: ProtocolSniffer, connection: RemotingConnection | None) -> None:
        """Takes the result of a sniffer: a connection that can receive frames, or None."""


class ProtocolSniffer(asyncio.Protocol):
    """The protocol of an accepted socket until its first frame."""

    def __init__(self, server: AcceptingServer) -> None:
        self._server = server
        self._bytes = b""
        self._address = ""
        self._source: tuple[str, int] | None = None
        self._transport: asyncio.Transport
        self._deadline: asyncio.TimerHandle | None = None
        self._has_bytes = False
        self._has_proxy_header = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asks the server to admit the socket. A client may stay silent as long as an idle connection may."""
        # uvloop's transports have the interface of `asyncio.Transport` but not the class.
        self._transport = cast(asyncio.Transport, transport)
        peer = self._transport.get_extra_info("peername")
        self._address = peer[0] if isinstance(peer, tuple) else ""
        if not self._server.admit(self, self._address):
            self._transport.abort()
            return
        self._restart_deadline(self._server.settings.idle_timeout_ms)

    def data_received(self, data: bytes) -> None:
        """Collects the first bytes until they decide."""
        if not self._has_bytes:
            self._has_bytes = True
            self._restart_deadline(self._server.settings.handshake_timeout_ms)
        self._bytes += data
        if not self._has_proxy_header and proxy_protocol.may_start_proxy_header(self._bytes):
            if not self._server.settings.trusted_proxies.includes(self._address):
                self._reject(
                    f"it begins with a PROXY protocol header, and {self._address} is not in {PROXIES_KEY}"
                )
                return
            try:
                header = proxy_protocol.parse_proxy_header(self._bytes)
            except RemoteProtocolError as error:
                self._reject(str(error))
                return
            if header is None:
                return
            self._has_proxy_header = True
            self._source = header.source
            self._bytes = self._bytes[header.size :]
        if not self._bytes:
            return
        if self._bytes[0] == HANDSHAKE_BYTE:
            self._start_tls()
        elif self._server.tls_mode is TlsMode.ENFORCING:
            self._reject("it speaks plain text, and this port accepts TLS only")
        else:
            self._pass_on(self._server.make_connection(self._source))

    def connection_lost(self, exc: Exception | None) -> None:
        """Reports that the client closed before the first frame."""
        self._finish(None)

    def abort(self) -> None:
        """Closes the socket: the server stops, or the deadline has passed."""
        self._transport.abort()

    def _start_tls(self) -> None:
        context = self._server.tls_context
        if context is None:
            self._reject("it speaks TLS, and this port has no certificate or has TLS disabled")
            return

        def ready(layer: TlsLayer) -> RemotingConnection:
            connection = self._server.make_connection(self._source)
            connection.connection_made(layer)
            self._finish(connection)
            return connection

        layer = TlsLayer(
            context,
            server_side=True,
            timeout_ms=self._server.settings.handshake_timeout_ms,
            on_ready=ready,
            on_failed=lambda error: self._finish(None),
        )
        self._cancel_deadline()
        first, self._bytes = self._bytes, b""
        self._transport.set_protocol(layer)
        layer.connection_made(self._transport)
        layer.data_received(first)

    def _pass_on(self, connection: RemotingConnection) -> None:
        first, self._bytes = self._bytes, b""
        self._transport.set_protocol(connection)
        connection.connection_made(self._transport)
        self._finish(connection)
        connection.data_received(first)

    def _reject(self, why: str) -> None:
        PEER_WARNINGS.write(
            log, "closed the connection of %s: %s", self._transport.get_extra_info("peername"), why
        )
        self._transport.abort()

    def _finish(self, connection: RemotingConnection | None) -> None:
        self._cancel_deadline()
        self._server.sniffing_ended(self, connection)

    def _restart_deadline(self, timeout_ms: int) -> None:
        self._cancel_deadline()
        if timeout_ms > 0:
            loop = asyncio.get_running_loop()
            callback: Callable[[], None] = self.abort
            self._deadline = loop.call_later(timeout_ms / 1000, callback)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
