"""Calls peers: opens one connection to each peer on first use, and again after it was lost.

All callers share the connection to a peer; the opaque tells their calls apart. Requests that the peer sends
over it go to the handlers given here. A peer that responds GO_AWAY is stopping: like Java's client, this
client then repeats the call once over a new connection.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from typing import Self

from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import (
    CallTimeoutError,
    ConnectError,
    ConnectionClosedError,
    RequestError,
    RetryableError,
)
from epochmq_protocol.frame import Command
from epochmq_protocol.signatures import SessionCredentials, sign
from epochmq_protocol.transport.connection import LINGER_S, RemotingConnection, RequestHandler
from epochmq_protocol.transport.idle import IdleSweep
from epochmq_protocol.transport.member_authentication import MemberAuthentication
from epochmq_protocol.transport.outgoing_tls import ClientCertificates
from epochmq_protocol.transport.request_dispatcher import RequestDispatcher
from epochmq_protocol.transport.settings import ClientSettings
from epochmq_protocol.transport.tls import TlsLayer, TlsSettings

log = logging.getLogger(__name__)


def split_address(address: str) -> tuple[str, int]:
    """(host, port) of `host:port`; an IPv6 host may stand in brackets. ConnectError: malformed address."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or len(port) > 5 or not 0 < int(port) <= 65535:
        raise ConnectError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


class RemotingClient:
    """Calls any number of peers. `close` it at the end."""

    def __init__(
        self,
        settings: ClientSettings | None = None,
        handlers: Mapping[int, RequestHandler] | None = None,
        *,
        default: RequestHandler | None = None,
        tls: TlsSettings | ClientCertificates | None = None,
        on_close: Callable[[RemotingConnection], None] | None = None,
        credentials: SessionCredentials | None = None,
        members: MemberAuthentication | None = None,
    ) -> None:
        """With `tls` every connection uses TLS. `on_close` is called after every loss of a connection. With
        `credentials` every request is signed. With `members` this side proves its membership on every
        connection to a peer that can check it."""
        self.settings = settings if settings is not None else ClientSettings()
        self.dispatcher = RequestDispatcher(
            handlers if handlers is not None else {},
            default=default,
            fast={},
            max_in_flight=self.settings.max_in_flight,
            max_in_flight_per_connection=self.settings.max_in_flight_per_connection,
        )
        self.connections: set[RemotingConnection] = set()
        self.certificates = ClientCertificates(tls) if isinstance(tls, TlsSettings) else tls
        self._on_close = on_close
        self._credentials = credentials
        self._members = members
        self._by_address: dict[str, RemotingConnection] = {}
        self._connecting: dict[str, asyncio.Task[RemotingConnection]] = {}
        self._sweep = IdleSweep(self.connections, self.settings.idle_timeout_ms)
        self._closed = False
        self._gone: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def call(self, address: str, command: Command, timeout_ms: float = 3000) -> Command:
        """Sends a request to `host:port` and returns its response, whatever its code.

        CallTimeoutError: no response within `timeout_ms`, which includes connecting. ConnectError: the peer
        was not reached. ConnectionClosedError: the connection was lost; the peer may have handled the
        request.
        """
        if self._credentials is not None:
            sign(command, self._credentials)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        connection = await self._connect_within(address, timeout_ms)
        self._check_peer(address, connection, command)
        response = await connection.call(command, max(deadline - loop.time(), 0) * 1000)
        if response.code != ResponseCode.GO_AWAY:
            return response
        self._forget(address, connection)
        connection = await self._connect_within(address, (deadline - loop.time()) * 1000)
        self._check_peer(address, connection, command)
        return await connection.call(command, max(deadline - loop.time(), 0) * 1000)

    async def oneway(self, address: str, command: Command, timeout_ms: float = 3000) -> None:
        """Sends a one-way request, which gets no response. `timeout_ms` bounds connecting."""
        if self._credentials is not None:
            sign(command, self._credentials)
        connection = await self._connect_within(address, timeout_ms)
        self._check_peer(address, connection, command)
        connection.oneway(command)

    async def connect(self, address: str) -> RemotingConnection:
        """The open connection to `host:port`; opens one if there is none. ConnectError: not reached."""
        connection = self._by_address.get(address)
        if connection is not None and not connection.closed:
            return connection
        if self._closed:
            raise ConnectionClosedError("this client is closed")
        task = self._connecting.get(address)
        if task is None:
            if len(self._by_address) + len(self._connecting) >= self.settings.max_addresses:
                raise ConnectError(
                    f"no connection to {address}: {self.settings.max_addresses} addresses are connected"
                )
            task = asyncio.get_running_loop().create_task(self._open(address))
            self._connecting[address] = task
            task.add_done_callback(lambda done: self._connected(address, done))
        return await asyncio.shield(task)  # a cancelled caller does not cancel the others

    def prove_with(self, members: MemberAuthentication | None) -> None:
        """Proves this membership on connections that are opened from now on."""
        self._members = members

    def open_connection(self, address: str) -> RemotingConnection | None:
        """The connection to `host:port` if it is open, requests need no signature, and any request may be
        sent over it. A request over it is not repeated after GO_AWAY."""
        if self._credentials is not None:
            return None
        connection = self._by_address.get(address)
        if connection is None or connection.closed:
            return None
        is_stranger = self._members is not None and self._members.required and connection.member is None
        return None if is_stranger else connection

    def disconnect(self, address: str) -> None:
        """Closes the connection to a peer, if there is one."""
        connection = self._by_address.get(address)
        if connection is not None:
            self._forget(address, connection)
            connection.close()

    async def close(self) -> None:
        """Closes all connections. Calls that wait for a response fail with ConnectionClosedError."""
        self._closed = True
        self.dispatcher.stop()
        connecting = list(self._connecting.values())
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        await self.dispatcher.cancel()
        for connection in list(self.connections):
            connection.close()
        if self.connections:
            self._gone = asyncio.get_running_loop().create_future()
            async with asyncio.timeout(LINGER_S + 1):
                await self._gone
        self._sweep.stop()

    # inside

    def _check_peer(self, address: str, connection: RemotingConnection, command: Command) -> None:
        """ConnectError: the request is for members only, and the peer is not known to be one. The next
        connection gives it another chance, since its secret may have changed."""
        if self._members is None or self._members.may_send(connection, command):
            return
        self._forget(address, connection)
        connection.close()
        raise ConnectError(
            f"request {command.code} was not sent to {address}, which has no proof of membership: check "
            "memberSecretPath there and here"
        )

    async def _connect_within(self, address: str, timeout_ms: float) -> RemotingConnection:
        connection = self._by_address.get(address)
        if connection is not None and not connection.closed:
            return connection
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self.connect(address)
        except TimeoutError:
            raise CallTimeoutError(f"no connection to {address} within {timeout_ms:g} ms") from None

    async def _open(self, address: str) -> RemotingConnection:
        host, port = split_address(address)
        limit_ms = self.settings.connect_timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                connection = await (
                    self._open_plain(host, port)
                    if self.certificates is None
                    else self._open_tls(host, port, self.certificates.context)
                )
                if self._members is not None:
                    await self._prove(self._members, connection)
        except TimeoutError:
            raise ConnectError(f"no connection to {address} within {limit_ms} ms") from None
        except OSError as error:
            raise ConnectError(f"no connection to {address}: {error}") from None
        return connection

    async def _prove(self, members: MemberAuthentication, connection: RemotingConnection) -> None:
        """Proves the membership; closes a connection on which that fails. ConnectError."""
        try:
            await members.prove(connection, self.settings.connect_timeout_ms)
        except (RetryableError, RequestError) as error:
            connection.abort()
            raise ConnectError(f"no proof of membership with {connection.remote}: {error}") from None
        except BaseException:
            connection.abort()
            raise

    async def _open_plain(self, host: str, port: int) -> RemotingConnection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: RemotingConnection(self.dispatcher, self.settings), host, port
        )
        return self._adopt(connection)

    async def _open_tls(self, host: str, port: int, context: ssl.SSLContext) -> RemotingConnection:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[RemotingConnection] = loop.create_future()

        def on_ready(layer: TlsLayer) -> RemotingConnection:
            connection = RemotingConnection(self.dispatcher, self.settings)
            connection.connection_made(layer)
            if ready.done():
                connection.abort()
            else:
                ready.set_result(connection)
            return connection

        def on_failed(error: Exception) -> None:
            if not ready.done():
                ready.set_exception(OSError(f"TLS: {error}"))

        limit_ms = self.settings.connect_timeout_ms
        layer = TlsLayer(
            context, server_side=False, timeout_ms=limit_ms, on_ready=on_ready, on_failed=on_failed
        )
        transport, _ = await loop.create_connection(lambda: layer, host, port)
        try:
            return self._adopt(await ready)
        except BaseException:
            transport.abort()
            raise

    def _adopt(self, connection: RemotingConnection) -> RemotingConnection:
        """Takes over a new connection. OSError: it is lost already."""
        if connection.closed:
            raise OSError("the peer closed it at once")
        connection.on_close.append(self._lost)
        self.connections.add(connection)
        self._sweep.start()
        return connection

    def _connected(self, address: str, task: asyncio.Task[RemotingConnection]) -> None:
        self._connecting.pop(address, None)
        if task.cancelled() or task.exception() is not None:
            return
        connection = task.result()
        if self._closed:
            connection.abort()
        elif not connection.closed:
            self._by_address[address] = connection
            connection.on_close.append(lambda lost: self._forget(address, lost))

    def _forget(self, address: str, connection: RemotingConnection) -> None:
        if self._by_address.get(address) is connection:
            del self._by_address[address]

    def _lost(self, connection: RemotingConnection) -> None:
        self.connections.discard(connection)
        if self._gone is not None and not self.connections and not self._gone.done():
            self._gone.set_result(None)
        if self._on_close is not None:
            self._on_close(connection)
