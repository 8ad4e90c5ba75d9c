"""Serves clients at the main port, at the VIP port, and at the external port if there is one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from epochmq_broker.config.broker_config import BrokerConfig
from epochmq_broker.config.port_settings import port_settings
from epochmq_broker.config.tls_settings import server_tls
from epochmq_broker.membership.acting.isolation import IsolationGate
from epochmq_broker.requests.fast_failure import FastFailure
from epochmq_broker.requests.fast_handler import Port
from epochmq_broker.requests.pipeline import RequestPipeline
from epochmq_broker.requests.request_latencies import RequestLatencies, watermarks
from epochmq_broker.tables.metric_tables import Sample
from epochmq_protocol.transport.connection import RemotingConnection
from epochmq_protocol.transport.member_authentication import MemberAuthentication
from epochmq_protocol.transport.server import RemotingServer
from epochmq_protocol.transport.server_certificates import ServerCertificates
from epochmq_protocol.transport.tls import TlsMode

STOP_GRACE_S = 5.0
"""How long a stop waits for requests in flight."""


class ClientPorts:
    """The main port, which serves every request; the VIP port, which serves no pulls; and the external port,
    which serves what the main port serves, with a TLS mode of its own."""

    def __init__(
        self,
        config: BrokerConfig,
        pipeline: RequestPipeline,
        latencies: RequestLatencies,
        on_close: Callable[[RemotingConnection], None],
        fast_failure: FastFailure,
        isolation: IsolationGate | None = None,
        members: MemberAuthentication | None = None,
    ) -> None:
        """`isolation`: the gate of a broker that may start isolated. `members`: serves the proofs of
        membership; None where nobody proves one."""
        self._config = config
        self._pipeline = pipeline
        self._latencies = latencies
        settings = port_settings(config)
        tls_mode = TlsMode(config.tls_server_mode)
        external_mode = TlsMode(config.external_tls_mode or config.tls_server_mode)
        self.certificates = ServerCertificates.for_ports(server_tls(config), tls_mode, external_mode)

        def server(port: Port, tls_mode: TlsMode = tls_mode) -> RemotingServer:
            handlers = pipeline.handlers(port)
            return RemotingServer(
                handlers if members is None else {**handlers, **members.handlers()},
                default=pipeline.default,
                settings=settings,
                fast=pipeline.fast_handlers(port),
                tls=self.certificates,
                tls_mode=tls_mode,
                on_close=on_close,
                late=fast_failure,
                timer=latencies,
            )

        self.main = server(Port.MAIN)
        self.vip = server(Port.VIP)
        self.external = server(Port.MAIN, external_mode) if config.external_listen_port else None
        if isolation is not None:
            isolation.on_open.append(self._use_fast_handlers)

    @property
    def _servers(self) -> list[RemotingServer]:
        return [self.main, self.vip] if self.external is None else [self.main, self.vip, self.external]

    def metric_samples(self) -> Iterator[Sample | None]:
        """The samples of RocketMQ's metrics of requests, and None where the caller should pause for other
        work."""
        yield from self._latencies.samples()
        running: list[int] = []
        waiting: list[int] = []
        for server in self._servers:
            running += server.dispatcher.running_codes()
            for connection in list(server.connections):
                waiting += connection.deferred_codes()
                yield None
        yield from watermarks(running, waiting)

    async def start(self) -> None:
        """Listens. Raises OSError or ConfigError."""
        config = self._config
        await self.main.start(config.bind_address, config.listen_port)
        await self.vip.start(config.bind_address, config.vip_port)
        if self.external is not None:
            await self.external.start(config.bind_address, config.external_listen_port)

    def _use_fast_handlers(self) -> None:
        """The isolation has ended: the fast handlers, which did not run before, serve clients' requests."""
        for server in self._servers:
            port = Port.VIP if server is self.vip else Port.MAIN
            server.dispatcher.use_fast_handlers(self._pipeline.fast_handlers(port))

    async def stop(self) -> None:
        """Finishes the requests in flight within `STOP_GRACE_S`, and closes the ports."""
        await asyncio.gather(*(server.stop(STOP_GRACE_S) for server in self._servers))
