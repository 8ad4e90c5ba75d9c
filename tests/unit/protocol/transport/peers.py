"""Helpers for tests of the transport: a server on its own loopback address, a raw peer, handlers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from epochmq_protocol.frame import FLAG_ONEWAY, Command, decode, encode, response
from epochmq_protocol.transport import RemotingConnection, RemotingServer
from tests.support.net import loopback

ECHO, LATER, BROKEN, SLOW, FAST = 12, 33, 14, 15, 310
DEADLINE_S = 60


async def eventually(condition: Callable[[], bool], what: str) -> None:
    """Waits until the condition holds."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():  # noqa: ASYNC110 - the condition has no event to wait for
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"not within {DEADLINE_S} s: {what}") from None


def echo(connection: RemotingConnection, command: Command) -> Command:
    """Responds with the fields and body of the request."""
    return response(command, 0, ext=command.ext, body=command.body)


def ask(
    code: int = ECHO, opaque: int = 1, *, body: bytes = b"", oneway: bool = False, **fields: Any
) -> bytes:
    """An encoded request."""
    flag = FLAG_ONEWAY if oneway else 0
    return encode(Command(code, opaque, flag, ext={"a": "b"}, body=body, **fields))


class Peer:
    """The other end of a connection, which sends and receives raw frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        async with asyncio.timeout(DEADLINE_S):
            await self.writer.drain()

    async def receive(self) -> Command:
        """Receives the next frame."""
        async with asyncio.timeout(DEADLINE_S):
            length = int.from_bytes(await self.reader.readexactly(4), "big")
            return decode(await self.reader.readexactly(length))

    async def receive_all(self) -> bytes:
        """Receives the bytes until the connection is closed; a reset counts as closed."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


@asynccontextmanager
async def peer_of(server: RemotingServer) -> AsyncIterator[Peer]:
    """A raw connection to a server."""
    peer = Peer(*await asyncio.open_connection(server.host, server.port))
    try:
        yield peer
    finally:
        await peer.close()


@asynccontextmanager
async def serving(*args: Any, **kwargs: Any) -> AsyncIterator[RemotingServer]:
    """A server, started here and stopped at the end."""
    server = RemotingServer(*args, **kwargs)
    await server.start(loopback(51), 0)
    try:
        yield server
    finally:
        await server.stop(1)
        assert not server.connections
        assert server.dispatcher.in_flight == 0


def address_of(server: RemotingServer) -> str:
    """`host:port` of a started server."""
    return f"{server.host}:{server.port}"
