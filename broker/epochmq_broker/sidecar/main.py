"""The process `epochmq admin`: settings in, one sidecar until SIGTERM or SIGINT, exit status out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from epochmq_broker import logging_setup
from epochmq_broker.sidecar.app import CLIENT_CERTIFICATE, make_app
from epochmq_broker.sidecar.config import SidecarConfig, load
from epochmq_broker.sidecar.credentials import Tokens, server_context
from epochmq_protocol.admin_api.operations import AdminArguments
from epochmq_protocol.errors import ConfigError
from epochmq_protocol.transport.admin_socket import call_admin_socket

log = logging.getLogger(__name__)

EXIT_OK, EXIT_FAILED, EXIT_CONFIG = 0, 1, 2
CONNECTIONS_MAX: Final = 64
IDLE_S: Final = 10.0
"""A client that has begun no request for so long, twice at most, is let go."""
STOP_GRACE_S: Final = 3


def run(config_path: str | None, overrides: Mapping[str, str] | None = None) -> int:
    """Serves. 0: stopped in order; 1: it could not listen; 2: a setting cannot be, said on stderr."""
    logging_setup.configure()
    try:
        config, warnings = load(config_path, overrides)
        for warning in warnings:
            log.warning("%s", warning)
        tokens, context = Tokens(config), server_context(config)
    except ConfigError as error:
        log.error("%s", error, extra={"key": error.key, "value": error.value, "expected": error.expected})
        return EXIT_CONFIG
    try:
        return asyncio.run(_serve(config, tokens, context))
    except OSError as error:
        log.error("%s:%d: %s", config.bind_address, config.listen_port, error.strerror or error)
        return EXIT_FAILED


class HTTPConnection(H11Protocol):
    """Says whether its client has shown a certificate, and is closed when that client asks for nothing:
    connections are few, and probes need theirs."""

    _seen: object = None
    """The latest request when it was looked at last."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """asyncio: connected; the handshake, with its checks, is over."""
        shown = bool(transport.get_extra_info("peercert"))
        self.app_state = {**self.app_state, CLIENT_CERTIFICATE: shown}
        super().connection_made(transport)
        self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: it is over."""
        self._timer.cancel()
        super().connection_lost(exc)

    def _look_later(self) -> None:
        self._timer = self.loop.call_later(IDLE_S, self._look)

    def _look(self) -> None:
        request = self.cycle
        is_idle = request is None or request.response_complete
        if is_idle and request is self._seen:
            self.transport.close()
            return
        self._seen = request
        self._look_later()


class _Server(uvicorn.Server):
    """Uvicorn's, which ends with status 0 when it is asked to end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours."""
        yield


async def _serve(config: SidecarConfig, tokens: Tokens, context: ssl.SSLContext | None) -> int:
    async def ask(operation: str, arguments: AdminArguments | None, timeout_ms: int) -> bytes:
        return await call_admin_socket(config.admin_socket_path, operation, arguments, timeout_ms=timeout_ms)

    family = socket.AF_INET6 if ":" in config.bind_address else socket.AF_INET
    listener = socket.create_server((config.bind_address, config.listen_port), family=family)
    settings = uvicorn.Config(
        make_app(config, tokens, ask),
        http=HTTPConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=STOP_GRACE_S,
    )
    settings.load()
    settings.ssl = context
    server = _Server(settings)

    def stop() -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    scheme = "https" if context is not None else "http"
    log.info("serves %s at %s://%s", config.admin_socket_path, scheme, _address(config))
    await server.serve(sockets=[listener])
    log.info("the sidecar has stopped")
    return EXIT_OK


def _address(config: SidecarConfig) -> str:
    """`host:port`."""
    host = f"[{config.bind_address}]" if ":" in config.bind_address else config.bind_address
    return f"{host}:{config.listen_port}"
