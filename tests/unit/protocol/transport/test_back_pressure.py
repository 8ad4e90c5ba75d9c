"""A peer that does not read costs a bounded amount of memory, and gets every response when it reads again."""

from __future__ import annotations

import asyncio
import socket

import msgspec
import pytest

from epochmq_protocol.frame import Command, decode, encode, response
from epochmq_protocol.transport import RemotingConnection, RemotingServer, ServerSettings, epoll_server
from tests.unit.protocol.transport.peers import ECHO, LATER, Peer, ask, echo, eventually, peer_of, serving

SMALL = ServerSettings(
    write_high_water_bytes=65_536, write_low_water_bytes=16_384, write_buffer_max_bytes=400_000
)
BODY = bytes(20_000)


def header_frame(header: bytes) -> bytes:
    """A frame with this header and no body, without its length."""
    return len(header).to_bytes(4, "big") + header


async def connect_with_small_buffers(server: RemotingServer) -> Peer:
    """A peer whose kernel buffers are small."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, (server.host, server.port))
    return Peer(*await asyncio.open_connection(sock=raw, limit=1000))


@pytest.mark.long
@pytest.mark.parametrize("views", [False, True], ids=["copied", "views"])
async def test_requests_of_a_peer_that_does_not_read_wait_and_all_get_a_response_when_it_reads(
    views: bool,
) -> None:
    handled = 0

    def big(connection: RemotingConnection, command: Command) -> Command:
        nonlocal handled
        handled += 1
        return response(command, 0, body=BODY)

    def fast_big(connection: RemotingConnection, header: bytes, body: bytes) -> None:
        nonlocal handled
        handled += 1
        frame = encode(response(decode(header_frame(header)), 0, body=BODY))
        at = len(frame) - len(BODY)
        connection.write_views(frame[:at], [memoryview(frame)[at:]], len(frame))

    count = 1000
    fast = {ask()[8:19]: fast_big} if views else None
    async with serving({ECHO: big}, settings=SMALL, fast=fast) as server:
        peer = await connect_with_small_buffers(server)
        sending = asyncio.ensure_future(peer.send(b"".join(ask(opaque=n) for n in range(count))))
        await eventually(lambda: bool(server.connections), "connected")
        (connection,) = server.connections
        await eventually(
            lambda: connection.unsent_bytes > SMALL.write_high_water_bytes // 4, "unsent responses"
        )
        assert handled < count
        assert connection.unsent_bytes < SMALL.write_buffer_max_bytes
        responses = [await peer.receive() for _ in range(count)]
        assert [received.opaque for received in responses] == list(range(count))
        assert handled == count
        await sending
        await peer.close()


async def test_a_peer_that_never_reads_pushed_frames_is_disconnected() -> None:
    deferred: list[RemotingConnection] = []

    def later(connection: RemotingConnection, command: Command) -> None:
        deferred.append(connection)

    async with serving({LATER: later}, settings=SMALL) as server:
        peer = await connect_with_small_buffers(server)
        await peer.send(ask(LATER))
        await eventually(lambda: bool(deferred), "the request is deferred")
        push = ask(40, body=BODY)
        for _ in range(1000):
            if deferred[0].closed:
                break
            deferred[0].write(push)
            await asyncio.sleep(0)
        assert deferred[0].closed
        await eventually(lambda: not server.connections, "the connection is closed")
        await peer.close()


async def test_a_slow_reader_does_not_delay_other_peers() -> None:
    def big(connection: RemotingConnection, command: Command) -> Command:
        return response(command, 0, body=BODY)

    async with serving({ECHO: big}, settings=SMALL) as server:
        slow = await connect_with_small_buffers(server)
        await slow.send(b"".join(ask(opaque=n) for n in range(50)))
        async with peer_of(server) as quick:
            for n in range(20):
                await quick.send(ask(opaque=n))
                assert (await quick.receive()).opaque == n
        await slow.close()


async def test_the_unsent_bytes_of_all_peers_together_are_bounded() -> None:
    """Above the limit the server closes the connections with the most unsent bytes, and no other."""
    limit = 1_000_000
    settings = msgspec.structs.replace(SMALL, unsent_max_bytes=limit)
    deferred: list[RemotingConnection] = []

    def later(connection: RemotingConnection, command: Command) -> None:
        deferred.append(connection)

    async with serving({LATER: later}, settings=settings) as server:
        peers = [await connect_with_small_buffers(server) for _ in range(8)]
        for number, peer in enumerate(peers):
            await peer.send(ask(LATER))
            await eventually(lambda number=number: len(deferred) > number, "the request is deferred")  # type: ignore[misc]
        push = ask(40, body=BODY)
        # Each connection stays far below its own limit; the first has fewer unsent bytes than the others.
        for round_number in range(1000):
            for connection in deferred if round_number < 8 else deferred[1:]:
                connection.write(push)
            await asyncio.sleep(0)
            assert sum(connection.unsent_bytes for connection in deferred) <= limit + 8 * len(push)
            if any(connection.closed for connection in deferred):
                break
        assert not deferred[0].closed
        assert sum(connection.closed for connection in deferred) == 1
        assert server._server.unsent_bytes <= limit  # type: ignore[union-attr]
        for peer in peers:
            await peer.close()
        await eventually(lambda: not server.connections, "the connection is closed")
        assert server._server.unsent_bytes == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("memory_mib", "expected_mib"), [(128, 64), (512, 128), (1024, 256), (64 * 1024, 512)]
)
async def test_the_bound_of_unsent_bytes_follows_the_memory_limit(
    monkeypatch: pytest.MonkeyPatch, memory_mib: int, expected_mib: int
) -> None:
    """In a pod of 512 MiB, peers that read nothing must not use up all of it."""
    monkeypatch.setattr(epoll_server, "memory_bytes", lambda: memory_mib << 20)
    async with serving({ECHO: echo}) as server:
        assert server._server._unsent_max == expected_mib << 20  # type: ignore[union-attr]
