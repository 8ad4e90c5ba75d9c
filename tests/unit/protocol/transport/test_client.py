"""A client keeps one connection per peer, matches responses to calls, and never waits beyond a deadline."""

from __future__ import annotations

import asyncio
import socket

import pytest

from epochmq_protocol.errors import CallTimeoutError, ConnectError, ConnectionClosedError, RequestError
from epochmq_protocol.frame import Command, request, response
from epochmq_protocol.transport import ClientSettings, RemotingClient, RemotingConnection, ServerSettings
from epochmq_protocol.transport.client import split_address
from tests.support.net import free_port, loopback
from tests.unit.protocol.transport.peers import ECHO, LATER, SLOW, address_of, echo, eventually, serving


async def test_concurrent_calls_share_one_connection_and_get_their_own_responses() -> None:
    async def slow(connection: RemotingConnection, command: Command) -> Command:
        await asyncio.sleep(0.001 * (10 - int(command.body)))
        return response(command, 0, body=command.body)

    async with serving({SLOW: slow}) as server, RemotingClient() as client:
        calls = [client.call(address_of(server), request(SLOW, body=b"%d" % n)) for n in range(10)]
        responses = await asyncio.gather(*calls)
        assert [received.body for received in responses] == [b"%d" % n for n in range(10)]
        assert len(server.connections) == 1


async def test_a_call_without_a_response_ends_at_its_deadline_and_a_late_response_is_dropped() -> None:
    deferred: list[tuple[RemotingConnection, Command]] = []

    def later(connection: RemotingConnection, command: Command) -> None:
        deferred.append((connection, command))

    async with serving({LATER: later, ECHO: echo}) as server, RemotingClient() as client:
        await client.call(address_of(server), request(ECHO))  # connected
        with pytest.raises(CallTimeoutError, match=r"no response to request 33 from .* within \d+ ms"):
            await client.call(address_of(server), request(LATER), 30)
        await eventually(lambda: bool(deferred), "the request has arrived")
        connection, command = deferred[0]
        connection.respond(response(command, 0, body=b"late"))
        received = await client.call(address_of(server), request(ECHO, body=b"mine"))
        assert received.body == b"mine"


async def test_waiting_calls_fail_when_the_connection_is_lost_and_the_next_call_connects_again() -> None:
    def hang_up(connection: RemotingConnection, command: Command) -> None:
        connection.close()

    async with serving({LATER: hang_up, ECHO: echo}) as server, RemotingClient() as client:
        with pytest.raises(ConnectionClosedError):
            await client.call(address_of(server), request(LATER))
        assert (await client.call(address_of(server), request(ECHO))).code == 0


async def test_an_unreachable_peer_raises_connect_error() -> None:
    host = loopback(51)
    async with RemotingClient() as client:
        with pytest.raises(ConnectError):
            await client.call(f"{host}:{free_port(host)}", request(ECHO))
        for nonsense in ("nowhere", "host:", ":1", "host:0", "host:70000", "host:x"):
            with pytest.raises(ConnectError):
                await client.call(nonsense, request(ECHO))


async def test_addresses_of_both_ip_versions_are_parsed() -> None:
    assert split_address("[::1]:9876") == ("::1", 9876)
    assert split_address("127.0.0.1:10911") == ("127.0.0.1", 10911)


async def test_connecting_counts_against_the_deadline_of_the_call() -> None:
    listener = socket.create_server((loopback(51), 0), backlog=0)
    address = listener.getsockname()
    fillers = []  # the listener accepts nothing: once the kernel's queue is full, connecting hangs
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(address)
        fillers.append(filler)
    async with RemotingClient() as client:
        with pytest.raises(CallTimeoutError, match="no connection"):
            await client.call(f"{address[0]}:{address[1]}", request(ECHO), 50)
    async with RemotingClient(ClientSettings(connect_timeout_ms=50)) as client:
        with pytest.raises(ConnectError, match="within 50 ms"):
            await client.call(f"{address[0]}:{address[1]}", request(ECHO))
    for filler in [*fillers, listener]:
        filler.close()


async def test_the_peers_own_requests_reach_the_clients_handlers() -> None:
    got: list[bytes] = []

    def notice(connection: RemotingConnection, command: Command) -> None:
        got.append(command.body)

    async with serving({ECHO: echo}) as server, RemotingClient(handlers={40: notice, 307: echo}) as client:
        await client.call(address_of(server), request(ECHO))
        (connection,) = server.connections
        connection.oneway(request(40, body=b"changed"))
        received = await connection.call(request(307, body=b"info"), 60_000)
        assert (received.body, got) == (b"info", [b"changed"])
        received = await connection.call(request(999), 60_000)
        assert received.code == 3


async def test_a_call_that_gets_go_away_is_repeated_once_over_a_new_connection() -> None:
    connections: set[RemotingConnection] = set()

    def once(connection: RemotingConnection, command: Command) -> Command:
        connections.add(connection)
        return response(command, 1500 if len(connections) == 1 else 0)

    async with serving({ECHO: once}) as server, RemotingClient() as client:
        assert (await client.call(address_of(server), request(ECHO))).code == 0
        assert len(connections) == 2


async def test_oneway_requests_are_sent_without_waiting() -> None:
    got: list[tuple[bool, bytes]] = []

    def note(connection: RemotingConnection, command: Command) -> None:
        got.append((command.is_oneway, command.body))

    async with serving({ECHO: note}) as server, RemotingClient() as client:
        await client.oneway(address_of(server), request(ECHO, body=b"x"))
        await eventually(lambda: got == [(True, b"x")], "it arrives")
        await client.close()
        with pytest.raises(ConnectionClosedError):
            await client.oneway(address_of(server), request(ECHO))


async def test_closing_the_client_ends_waiting_calls() -> None:
    async with serving({LATER: lambda connection, command: None}) as server, RemotingClient() as client:
        call = asyncio.ensure_future(client.call(address_of(server), request(LATER), 60_000))
        await eventually(lambda: bool(client.connections), "connected")
        await client.close()
        with pytest.raises(ConnectionClosedError):
            await call
        assert not client.connections


async def test_calls_beyond_the_bound_are_rejected_locally() -> None:
    received: list[Command] = []
    async with (
        serving({LATER: lambda connection, command: received.append(command)}) as server,
        RemotingClient(ClientSettings(max_calls=1)) as client,
    ):
        first = asyncio.ensure_future(client.call(address_of(server), request(LATER), 60_000))
        await eventually(lambda: bool(received), "the first call waits for its response")
        with pytest.raises(RequestError):
            await client.call(address_of(server), request(LATER))
        await client.close()
        with pytest.raises(ConnectionClosedError):
            await first


async def test_an_idle_connection_of_a_client_is_closed() -> None:
    closed: list[str] = []
    async with (
        serving({ECHO: echo}, settings=ServerSettings(idle_timeout_ms=0)) as server,
        RemotingClient(
            ClientSettings(idle_timeout_ms=100), on_close=lambda c: closed.append(c.remote)
        ) as client,
    ):
        await client.call(address_of(server), request(ECHO))
        await eventually(lambda: closed == [address_of(server)], "closed as idle")
        assert (await client.call(address_of(server), request(ECHO))).code == 0


async def test_a_cancelled_caller_does_not_cancel_connecting_for_the_others() -> None:
    async with serving({ECHO: echo}) as server, RemotingClient() as client:
        hasty = asyncio.ensure_future(client.call(address_of(server), request(ECHO)))
        patient = asyncio.ensure_future(client.call(address_of(server), request(ECHO)))
        await asyncio.sleep(0)
        hasty.cancel()
        assert (await patient).code == 0
        with pytest.raises(asyncio.CancelledError):
            await hasty
