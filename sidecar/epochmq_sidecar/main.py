"""Runs the process `epochmq admin`: reads the settings, serves until SIGTERM or SIGINT, and returns the exit
code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from epochmq_protocol.admin_api.operations import AdminArguments
from epochmq_protocol.errors import ConfigError
from epochmq_protocol.log_lines import JsonLinesFormatter, log_to_stderr
from epochmq_protocol.transport.admin_socket import call_admin_socket
from epochmq_sidecar.app import CLIENT_CERTIFICATE, make_app
from epochmq_sidecar.config import SidecarConfig, load
from epochmq_sidecar.credentials import Tokens, server_context

log = logging.getLogger(__name__)

EXIT_OK, EXIT_FAILED, EXIT_CONFIG = 0, 1, 2
CONNECTIONS_MAX: Final = 64
IDLE_S: Final = 10.0
"""A connection without a request for this time, or at most twice as long, is closed. It is closed sooner if a
further connection needs its place."""
STOP_GRACE_S: Final = 3


def run(config_path: str | None, overrides: Mapping[str, str] | None = None) -> int:
    """Serves. Returns 0 after an orderly stop, 1 if it cannot listen, 2 for an invalid setting, which it
    logs."""
    log_to_stderr(JsonLinesFormatter())
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
    """Records whether the client presented a certificate, and closes an idle connection, because the number
    of connections is limited and probes need some. With too many connections, the one that has been idle for
    longest makes room for a new one."""

    _checked_request: object = None
    """The latest request at the previous check."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """asyncio: connected; the TLS handshake is complete."""
        shown = bool(transport.get_extra_info("peercert"))
        self.app_state = {**self.app_state, CLIENT_CERTIFICATE: shown}
        super().connection_made(transport)
        self._opened_s = self.loop.time()
        self._make_room()
        self._schedule_check()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection is closed."""
        self._timer.cancel()
        super().connection_lost(exc)

    def _make_room(self) -> None:
        """Closes idle connections until one more is below the limit at which the server rejects requests."""
        while len(self.connections) >= CONNECTIONS_MAX:
            others = (one for one in self.connections if isinstance(one, HTTPConnection) and one is not self)
            idle = [one for one in others if one._is_idle]
            if not idle:
                return  # each of the others serves a request
            oldest = min(idle, key=lambda one: one._opened_s)
            self.connections.discard(oldest)
            oldest.transport.close()

    @property
    def _is_idle(self) -> bool:
        request = self.cycle
        return request is None or request.response_complete

    def _schedule_check(self) -> None:
        self._timer = self.loop.call_later(IDLE_S, self._close_if_idle)

    def _close_if_idle(self) -> None:
        request = self.cycle
        if self._is_idle and request is self._checked_request:
            self.transport.close()
            return
        self._checked_request = request
        self._schedule_check()


class ServerWithoutSignals(uvicorn.Server):
    """Uvicorn's server, but signals only set `should_exit`, so that the exit code is 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signal handlers to the caller of `serve`."""
        yield


async def serve_until_signal(
    app: FastAPI,
    listener: socket.socket,
    started: Callable[[], None],
    *,
    context: ssl.SSLContext | None = None,
) -> None:
    """Serves an application at a listening socket until SIGTERM or SIGINT. `started` is called when a signal
    already ends it in order, just before the first request. With `context` clients use TLS."""
    settings = uvicorn.Config(
        app,
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
    server = ServerWithoutSignals(settings)

    def stop() -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    started()
    await server.serve(sockets=[listener])


async def _serve(config: SidecarConfig, tokens: Tokens, context: ssl.SSLContext | None) -> int:
    async def ask(operation: str, arguments: AdminArguments | None, timeout_ms: int) -> bytes:
        return await call_admin_socket(config.admin_socket_path, operation, arguments, timeout_ms=timeout_ms)

    family = socket.AF_INET6 if ":" in config.bind_address else socket.AF_INET
    listener = socket.create_server((config.bind_address, config.listen_port), family=family)

    def started() -> None:
        scheme = "https" if context is not None else "http"
        log.info("sidecar of %s serves at %s://%s", config.admin_socket_path, scheme, _address(config))

    await serve_until_signal(make_app(config, tokens, ask), listener, started, context=context)
    log.info("sidecar stopped")
    return EXIT_OK


def _address(config: SidecarConfig) -> str:
    """`host:port`."""
    host = f"[{config.bind_address}]" if ":" in config.bind_address else config.bind_address
    return f"{host}:{config.listen_port}"
