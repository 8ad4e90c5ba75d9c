"""The first bytes of an accepted connection: a PROXY preamble, a TLS handshake, or at once a frame.

The order is RocketMQ's (`NettyRemotingServer.HandshakeHandler`, then `TlsModeHandler`): an optional
preamble, then one byte decides: 0x16 is TLS, anything else is plain. What has been read is handed on, so
nothing is lost.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Protocol, cast

from epochmq_protocol.errors import RemoteProtocolError
from epochmq_protocol.transport import preamble
from epochmq_protocol.transport.connection import Connection
from epochmq_protocol.transport.settings import ServerSettings
from epochmq_protocol.transport.tls import HANDSHAKE_BYTE, TlsLayer, TlsMode

log = logging.getLogger(__name__)


class Door(Protocol):
    """What an opening needs of the server that accepts it."""

    settings: ServerSettings
    tls_mode: TlsMode
    tls_context: ssl.SSLContext | None

    def make(self, source: tuple[str, int] | None) -> Connection:
        """A connection for a client, whose address a preamble may have named."""

    def entered(self, opening: Opening) -> bool:
        """A socket was accepted; False refuses it."""

    def opened(self, opening: Opening, connection: Connection | None) -> None:
        """The opening is over, with a connection that speaks or with none."""


class Opening(asyncio.Protocol):
    """From accept to the first frame."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._bytes = b""
        self._source: tuple[str, int] | None = None
        self._transport: asyncio.Transport
        self._deadline: asyncio.TimerHandle | None = None
        self._begun = False
        self._seen_preamble = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accepted. A client may stay silent as long as an idle connection may."""
        # uvloop's transports are Transports in all but their class.
        self._transport = cast(asyncio.Transport, transport)
        if not self._door.entered(self):
            self._transport.abort()
            return
        self._restart_deadline(self._door.settings.idle_timeout_ms)

    def data_received(self, data: bytes) -> None:
        """The first bytes."""
        if not self._begun:
            self._begun = True
            self._restart_deadline(self._door.settings.opening_timeout_ms)
        self._bytes += data
        if not self._seen_preamble and preamble.may_start(self._bytes):
            try:
                found = preamble.parse(self._bytes)
            except RemoteProtocolError as error:
                self._refuse(str(error))
                return
            if found is None:
                return
            self._seen_preamble = True
            self._source = found.source
            self._bytes = self._bytes[found.size :]
        if not self._bytes:
            return
        if self._bytes[0] == HANDSHAKE_BYTE:
            self._start_tls()
        elif self._door.tls_mode is TlsMode.ENFORCING:
            self._refuse("it does not speak TLS, and this port enforces it")
        else:
            self._hand_over(self._door.make(self._source))

    def connection_lost(self, exc: Exception | None) -> None:
        """Gone before it said anything."""
        self._finish(None)

    def abort(self) -> None:
        """The server stops, or the deadline is over."""
        self._transport.abort()

    def _start_tls(self) -> None:
        context = self._door.tls_context
        if context is None:
            self._refuse("it speaks TLS, and this port has no certificate or TLS is disabled")
            return

        def ready(layer: TlsLayer) -> Connection:
            connection = self._door.make(self._source)
            connection.connection_made(layer)
            self._finish(connection)
            return connection

        layer = TlsLayer(
            context,
            server_side=True,
            timeout_ms=self._door.settings.opening_timeout_ms,
            on_ready=ready,
            on_failed=lambda error: self._finish(None),
        )
        self._cancel_deadline()
        first, self._bytes = self._bytes, b""
        self._transport.set_protocol(layer)
        layer.connection_made(self._transport)
        layer.data_received(first)

    def _hand_over(self, connection: Connection) -> None:
        first, self._bytes = self._bytes, b""
        self._transport.set_protocol(connection)
        connection.connection_made(self._transport)
        self._finish(connection)
        connection.data_received(first)

    def _refuse(self, why: str) -> None:
        log.warning("%s is disconnected: %s", self._transport.get_extra_info("peername"), why)
        self._transport.abort()

    def _finish(self, connection: Connection | None) -> None:
        self._cancel_deadline()
        self._door.opened(self, connection)

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
