"""The listening side: accepts connections, hands their requests to handlers, and stops in order.

An orderly stop: nothing more is accepted; requests that still arrive from peers newer than 5.3.1 are
answered GO_AWAY (they go elsewhere), those of older ones are served; what was taken is answered, within a
grace period; then the connections are closed, their last bytes sent.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping

from epochmq_protocol.transport.connection import LINGER_S, Connection
from epochmq_protocol.transport.dispatch import Dispatcher, FastHandler, Handler
from epochmq_protocol.transport.idle import IdleSweep
from epochmq_protocol.transport.opening import Opening
from epochmq_protocol.transport.settings import ServerSettings
from epochmq_protocol.transport.tls import TlsMode, TlsSettings, server_context
from epochmq_protocol.transport.wires import Listening, listen

log = logging.getLogger(__name__)

Listener = Callable[[Connection], None]


class RemotingServer:
    """One port. Make, `start`, `stop`; not started again."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        *,
        default: Handler | None = None,
        settings: ServerSettings | None = None,
        fast: Mapping[bytes, FastHandler] | None = None,
        tls: TlsSettings | None = None,
        on_connect: Listener | None = None,
        on_close: Listener | None = None,
        on_idle: Listener | None = None,
    ) -> None:
        """`handlers` by request code; `default` takes the codes not in it. `fast` by the first 11 bytes of
        a JSON header, `{"code":310`. ConfigError when the TLS files cannot be used.

        `on_connect` is told of a connection before its first frame is handled, `on_close` when it is gone,
        `on_idle` before it is closed for silence.
        """
        self.settings = settings if settings is not None else ServerSettings()
        self.tls_mode = tls.mode if tls is not None else TlsMode.PERMISSIVE
        self.tls_context: ssl.SSLContext | None = server_context(tls) if tls is not None else None
        self.connections: set[Connection] = set()
        self.host = ""
        self.port = 0
        """Where it listens, once started (the kernel's choice when started with port 0)."""
        self.dispatcher = Dispatcher(
            handlers,
            default=default,
            fast=fast if fast is not None else {},
            max_in_flight=self.settings.max_in_flight,
            max_in_flight_per_connection=self.settings.max_in_flight_per_connection,
        )
        self._on_connect = on_connect
        self._on_close = on_close
        self._openings: set[Opening] = set()
        self._sweep = IdleSweep(self.connections, self.settings.idle_timeout_ms, on_idle)
        self._server: Listening | None = None
        self._gone: asyncio.Future[None] | None = None

    async def start(self, host: str, port: int) -> None:
        """Listens. OSError when the address cannot be bound."""
        settings = self.settings
        self._server = await listen(
            lambda: Opening(self), host or None, port, settings.backlog, settings.unsent_max_bytes
        )
        self.host = host
        self.port = self._server.port
        self._sweep.start()

    async def stop(self, grace_s: float = 5.0) -> None:
        """Stops in order; `grace_s` seconds for what was taken, then what still runs is cancelled."""
        if self._server is None:
            return
        self._server.stop_accepting()
        self.dispatcher.stop()
        for opening in list(self._openings):
            opening.abort()
        if not await self.dispatcher.settle(grace_s):
            log.warning("%d requests unanswered after %g s of grace", self.dispatcher.in_flight, grace_s)
        await self.dispatcher.cancel()
        for connection in list(self.connections):
            connection.close()
        await self._wait_until_gone()
        self._sweep.stop()
        self._server.close()
        self._server = None

    async def _wait_until_gone(self) -> None:
        """Every connection aborts itself after LINGER_S, so this ends."""
        if not self.connections:
            return
        self._gone = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(LINGER_S + 1):
                await self._gone
        except TimeoutError:
            log.error("%d connections would not close", len(self.connections))

    # what an Opening calls (opening.Door)

    def make(self, source: tuple[str, int] | None) -> Connection:
        """A connection of this server."""
        return Connection(self.dispatcher, self.settings, source=source, on_close=[self._lost])

    def entered(self, opening: Opening) -> bool:
        """Takes an accepted socket, unless there are too many or the server stops."""
        if self.dispatcher.stopping:
            return False
        if len(self.connections) + len(self._openings) >= self.settings.max_connections:
            log.warning("refused a connection: %d are open", self.settings.max_connections)
            return False
        self._openings.add(opening)
        return True

    def opened(self, opening: Opening, connection: Connection | None) -> None:
        """An opening is over."""
        self._openings.discard(opening)
        if connection is None:
            return
        self.connections.add(connection)
        if self._on_connect is not None:
            self._on_connect(connection)

    def _lost(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self._gone is not None and not self.connections and not self._gone.done():
            self._gone.set_result(None)
        if self._on_close is not None:
            self._on_close(connection)
