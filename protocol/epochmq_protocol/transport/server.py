"""Accepts remoting connections, passes their requests to handlers, and stops in order.

An orderly stop has four steps:

1. The server stops accepting connections.
2. New requests of peers newer than 5.3.1 get GO_AWAY, and these peers turn to another server. Older peers are
   still served.
3. The server waits until the requests in flight have their responses, for a grace period at most.
4. It sends the last bytes of every connection and closes it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping

from epochmq_protocol.transport import port_counts
from epochmq_protocol.transport.address_limits import AddressLimits
from epochmq_protocol.transport.connection import (
    LINGER_S,
    FastRequestHandler,
    RemotingConnection,
    RequestHandler,
)
from epochmq_protocol.transport.descriptors import RejectionCounter
from epochmq_protocol.transport.epoll_server import ListeningPort, has_turns, listen
from epochmq_protocol.transport.idle import IdleSweep
from epochmq_protocol.transport.late_requests import LateRequestMonitor, LateRequestPolicy
from epochmq_protocol.transport.port_counts import PortRejection
from epochmq_protocol.transport.protocol_sniffer import ProtocolSniffer
from epochmq_protocol.transport.request_dispatcher import RequestDispatcher
from epochmq_protocol.transport.request_timer import RequestTimer
from epochmq_protocol.transport.server_certificates import ServerCertificates
from epochmq_protocol.transport.settings import ServerSettings
from epochmq_protocol.transport.tls import TlsMode, TlsSettings
from epochmq_protocol.transport.unfinished_frames import UnfinishedFrames

log = logging.getLogger(__name__)

Listener = Callable[[RemotingConnection], None]


class LateRequestRejection:
    """Rejects the requests of a server that have waited too long (`epoll_server.LateReads`)."""

    def __init__(self, dispatcher: RequestDispatcher, policy: LateRequestPolicy) -> None:
        self.monitor = LateRequestMonitor(lambda: policy.shortest_wait_ms)
        self._dispatcher = dispatcher
        self._policy = policy

    def begin(self, waited_ms: int, ready: int) -> None:
        """Checks the requests until `end`."""
        policy = self._policy
        self._dispatcher.check_requests(lambda code: policy.rejection(code, waited_ms, ready))

    def end(self) -> None:
        """Serves requests without a check again."""
        self._dispatcher.check_requests(None)


class RemotingServer:
    """The server of one port. `start` and `stop` it once."""

    def __init__(
        self,
        handlers: Mapping[int, RequestHandler],
        *,
        default: RequestHandler | None = None,
        settings: ServerSettings | None = None,
        fast: Mapping[bytes, FastRequestHandler] | None = None,
        tls: TlsSettings | ServerCertificates | None = None,
        tls_mode: TlsMode | None = None,
        on_connect: Listener | None = None,
        on_close: Listener | None = None,
        on_idle: Listener | None = None,
        late: LateRequestPolicy | None = None,
        timer: RequestTimer | None = None,
    ) -> None:
        """`handlers` by request code; `default` handles all other codes. `fast` by the first 11 bytes of a
        JSON header, `{"code":310`. `late` says which requests are rejected because they have waited too long.
        `timer` measures the requests (with epoll only). Servers with the same certificates may share them in
        `tls`; `tls_mode` then replaces the mode of the settings. ConfigError: the TLS files cannot be used.

        `on_connect` is called before the first frame of a connection is handled, `on_close` after a
        connection is lost, `on_idle` before an idle connection is closed.
        """
        self.settings = settings if settings is not None else ServerSettings()
        self.certificates = tls if isinstance(tls, ServerCertificates) else ServerCertificates(tls)
        self.tls_mode = self.certificates.mode if tls_mode is None else tls_mode
        self.connections: set[RemotingConnection] = set()
        self.host = ""
        self.port = 0
        """The port after `start` (the kernel's choice for port 0)."""
        self.dispatcher = RequestDispatcher(
            handlers,
            default=default,
            fast=fast if fast is not None else {},
            max_in_flight=self.settings.max_in_flight,
            max_in_flight_per_connection=self.settings.max_in_flight_per_connection,
            timer=timer if has_turns() else None,
        )
        self._late = None if late is None else LateRequestRejection(self.dispatcher, late)
        self._on_connect = on_connect
        self._on_close = on_close
        self._sniffers: set[ProtocolSniffer] = set()
        self._sweep = IdleSweep(self.connections, self.settings.idle_timeout_ms, on_idle)
        self._unfinished = UnfinishedFrames(self.settings.frame_timeout_ms, self.settings.max_received_bytes)
        self._limits = AddressLimits(
            self.settings.max_connections_per_address, self.settings.max_new_connections_per_address
        )
        self._addresses: dict[ProtocolSniffer | RemotingConnection, str] = {}
        """The address of each accepted socket, which counts towards the limits."""
        self._rejections = RejectionCounter()
        self._server: ListeningPort | None = None
        self._gone: asyncio.Future[None] | None = None

    async def start(self, host: str, port: int) -> None:
        """Listens. OSError: the address cannot be bound."""
        settings = self.settings
        self._server = await listen(
            lambda: ProtocolSniffer(self),
            host or None,
            port,
            settings.backlog,
            settings.unsent_max_bytes,
            self._late,
            self.dispatcher.timer,
        )
        if self._late is not None:
            self._late.monitor.start()
        self.host = host
        self.port = self._server.port
        self._sweep.start()
        self._unfinished.start()

    def delay_reads(self, until_s: float) -> None:
        """Reads no requests before this time of the loop's clock, or for `READ_DELAY_MAX_S`: a handler whose
        requests wait until then anyway saves the turns for reading each of them."""
        if self._server is not None:
            self._server.delay_reads(until_s)

    async def stop(self, grace_s: float = 5.0) -> None:
        """Stops in order. After `grace_s` seconds it cancels the handlers that still run."""
        if self._server is None:
            return
        self._server.stop_accepting()
        self.dispatcher.stop()
        for sniffer in list(self._sniffers):
            sniffer.abort()
        if not await self.dispatcher.wait_until_idle(grace_s):
            log.warning(
                "%d requests have no response after a grace period of %g s",
                self.dispatcher.in_flight,
                grace_s,
            )
        await self.dispatcher.cancel()
        for connection in list(self.connections):
            connection.close()
        await self._wait_until_gone()
        self._sweep.stop()
        self._unfinished.stop()
        if self._late is not None:
            self._late.monitor.stop()
        self._server.close()
        self._server = None

    async def _wait_until_gone(self) -> None:
        """Waits until every connection is closed. Each aborts itself after LINGER_S."""
        if not self.connections:
            return
        self._gone = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(LINGER_S + 1):
                await self._gone
        except TimeoutError:
            log.error("%d connections did not close", len(self.connections))

    # called by a ProtocolSniffer (AcceptingServer)

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        """The context for a handshake now; None: the server accepts plain connections only."""
        return None if self.tls_mode is TlsMode.DISABLED else self.certificates.context

    def make_connection(self, source: tuple[str, int] | None) -> RemotingConnection:
        """Creates a connection of this server."""
        return RemotingConnection(
            self.dispatcher, self.settings, source=source, on_close=[self._lost], unfinished=self._unfinished
        )

    def admit(self, sniffer: ProtocolSniffer, address: str) -> bool:
        """Admits an accepted socket of a client at this address, unless the server stops or a limit rejects
        it."""
        if self.dispatcher.stopping:
            return False
        settings, now_s = self.settings, asyncio.get_running_loop().time()
        if len(self.connections) + len(self._sniffers) >= settings.max_connections:
            self._reject(PortRejection.CONNECTIONS, address, f"{settings.max_connections} are open")
        elif self._limits.too_fast(address, now_s):
            limit = settings.max_new_connections_per_address
            self._reject(PortRejection.RATE, address, f"it opens more than {limit} a second")
        elif not self._limits.has_room(address, now_s):
            limit = settings.max_connections_per_address
            self._reject(PortRejection.ADDRESS, address, f"it has {limit} open")
        else:
            self._limits.opened(address, now_s)
            self._addresses[sniffer] = address
            self._sniffers.add(sniffer)
            return True
        return False

    def _reject(self, why: PortRejection, address: str, text: str) -> None:
        port_counts.rejections[why] += 1
        if count := self._rejections.add():
            log.warning("rejected %d connections, the last one of %s: %s", count, address, text)

    def sniffing_ended(self, sniffer: ProtocolSniffer, connection: RemotingConnection | None) -> None:
        """Takes the connection that a sniffer made, if it made one."""
        self._sniffers.discard(sniffer)
        address = self._addresses.pop(sniffer, None)
        if connection is None:
            if address is not None:
                self._limits.closed(address)
            return
        if address is not None:
            self._addresses[connection] = address
        self.connections.add(connection)
        if self._on_connect is not None:
            self._on_connect(connection)

    def _lost(self, connection: RemotingConnection) -> None:
        self.connections.discard(connection)
        address = self._addresses.pop(connection, None)
        if address is not None:
            self._limits.closed(address)
        if self._gone is not None and not self.connections and not self._gone.done():
            self._gone.set_result(None)
        if self._on_close is not None:
            self._on_close(connection)
