"""A peer that does not read costs a bounded amount of memory, and gets every answer once it reads again."""

from __future__ import annotations

import asyncio
import socket

import msgspec

from epochmq_protocol.frame import Command, response
from epochmq_protocol.transport import RemotingConnection, RemotingServer, ServerSettings
from tests.unit.transport.peers import ECHO, LATER, Peer, ask, eventually, peer_of, serving

SMALL = ServerSettings(
    write_high_water_bytes=65_536, write_low_water_bytes=16_384, write_buffer_max_bytes=400_000
)
BODY = bytes(20_000)


async def narrow_peer_of(server: RemotingServer) -> Peer:
    """A peer whose kernel buffers are small."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, (server.host, server.port))
    return Peer(*await asyncio.open_connection(sock=raw, limit=1000))


async def test_requests_of_a_peer_that_does_not_read_wait_and_are_all_answered_when_it_does() -> None:
    handled = 0

    def big(connection: RemotingConnection, command: Command) -> Command:
        nonlocal handled
        handled += 1
        return response(command, 0, body=BODY)

    count = 1000
    async with serving({ECHO: big}, settings=SMALL) as server:
        peer = await narrow_peer_of(server)
        sending = asyncio.ensure_future(peer.send(b"".join(ask(opaque=n) for n in range(count))))
        await eventually(lambda: bool(server.connections), "connected")
        (connection,) = server.connections
        await eventually(
            lambda: connection.unsent_bytes > SMALL.write_high_water_bytes // 4, "answers pile up"
        )
        assert handled < count
        assert connection.unsent_bytes < SMALL.write_buffer_max_bytes
        answers = [await peer.take() for _ in range(count)]
        assert [answer.opaque for answer in answers] == list(range(count))
        assert handled == count
        await sending
        await peer.close()


async def test_a_peer_that_never_reads_what_is_pushed_to_it_is_dropped() -> None:
    held: list[RemotingConnection] = []

    def later(connection: RemotingConnection, command: Command) -> None:
        held.append(connection)

    async with serving({LATER: later}, settings=SMALL) as server:
        peer = await narrow_peer_of(server)
        await peer.send(ask(LATER))
        await eventually(lambda: bool(held), "the request is held")
        push = ask(40, body=BODY)
        for _ in range(1000):
            if held[0].closed:
                break
            held[0].write(push)
            await asyncio.sleep(0)
        assert held[0].closed
        await eventually(lambda: not server.connections, "gone")
        await peer.close()


async def test_a_slow_reader_does_not_hold_up_the_others() -> None:
    def big(connection: RemotingConnection, command: Command) -> Command:
        return response(command, 0, body=BODY)

    async with serving({ECHO: big}, settings=SMALL) as server:
        slow = await narrow_peer_of(server)
        await slow.send(b"".join(ask(opaque=n) for n in range(50)))
        async with peer_of(server) as quick:
            for n in range(20):
                await quick.send(ask(opaque=n))
                assert (await quick.take()).opaque == n
        await slow.close()


async def test_many_peers_that_do_not_read_cost_a_bounded_amount_of_memory_together() -> None:
    """The limit holds over all connections; those with the most unsent bytes are dropped, and no other."""
    limit = 1_000_000
    settings = msgspec.structs.replace(SMALL, unsent_max_bytes=limit)
    held: list[RemotingConnection] = []

    def later(connection: RemotingConnection, command: Command) -> None:
        held.append(connection)

    async with serving({LATER: later}, settings=settings) as server:
        peers = [await narrow_peer_of(server) for _ in range(8)]
        for number, peer in enumerate(peers):
            await peer.send(ask(LATER))
            await eventually(lambda number=number: len(held) > number, "the request is held")  # type: ignore[misc]
        push = ask(40, body=BODY)
        # Each stays far below what one connection may have; the first has less than the others.
        for round_number in range(1000):
            for connection in held if round_number < 8 else held[1:]:
                connection.write(push)
            await asyncio.sleep(0)
            assert sum(connection.unsent_bytes for connection in held) <= limit + 8 * len(push)
            if any(connection.closed for connection in held):
                break
        assert not held[0].closed
        assert sum(connection.closed for connection in held) == 1
        assert server._server.unsent_bytes <= limit  # type: ignore[union-attr]
        for peer in peers:
            await peer.close()
        await eventually(lambda: not server.connections, "gone")
        assert server._server.unsent_bytes == 0  # type: ignore[union-attr]
