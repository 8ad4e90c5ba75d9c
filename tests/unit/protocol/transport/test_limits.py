"""Peers cannot make a server hold more bytes, frames or connections than its limits allow."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress

import pytest

from epochmq_protocol.transport import ServerSettings, port_counts
from epochmq_protocol.transport.address_limits import BURST_S, PRUNE_MIN, AddressLimits
from epochmq_protocol.transport.port_counts import PortRejection
from tests.unit.protocol.transport.peers import ECHO, ask, echo, eventually, peer_of, serving

UNFINISHED = struct.pack(">II", 16_000_000, 100)
HANDLERS = {ECHO: echo}


@pytest.fixture(autouse=True)
def _balanced() -> Iterator[None]:
    """What a test's servers held is counted off at its end."""
    yield
    assert port_counts.unfinished_bytes == 0


def rejected(why: PortRejection) -> int:
    return port_counts.rejections[why]


async def test_unfinished_frames_of_all_servers_share_one_bound() -> None:
    """The connection whose frame began first is aborted; a client that works does not notice."""
    settings = ServerSettings(max_received_bytes=1_000_000)
    before = rejected(PortRejection.RECEIVED_BYTES)
    async with (
        serving(HANDLERS, settings=settings) as first,
        serving(HANDLERS, settings=settings) as second,
        peer_of(first) as oldest,
        peer_of(second) as younger,
        peer_of(second) as client,
    ):
        await oldest.send(UNFINISHED + bytes(400_000))
        await eventually(lambda: port_counts.unfinished_bytes == 400_008, "the first bytes arrive")
        await younger.send(UNFINISHED + bytes(500_000))
        await eventually(lambda: port_counts.unfinished_bytes == 900_016, "the next bytes arrive")
        await client.send(ask(body=bytes(900_000)))
        assert len((await client.receive()).body) == 900_000
        assert await oldest.receive_all() == b""
        assert rejected(PortRejection.RECEIVED_BYTES) >= before + 1


async def test_a_single_connection_cannot_exceed_the_bound() -> None:
    settings = ServerSettings(max_received_bytes=300_000)
    async with serving(HANDLERS, settings=settings) as server, peer_of(server) as peer:
        with suppress(ConnectionError):
            await peer.send(UNFINISHED + bytes(15_000_000))
        assert await peer.receive_all() == b""
        await eventually(lambda: not server.connections, "the connection is lost")
        assert port_counts.unfinished_bytes == 0


async def test_a_frame_that_is_not_complete_in_time_closes_its_connection() -> None:
    """Bytes that trickle in do not extend the time; whole frames begin it anew."""
    settings = ServerSettings(frame_timeout_ms=300)
    before = rejected(PortRejection.FRAME_TIMEOUT)
    async with (
        serving(HANDLERS, settings=settings) as server,
        peer_of(server) as slow,
        peer_of(server) as client,
    ):
        async with asyncio.timeout(60):
            await slow.send(UNFINISHED)
            while server.connections and rejected(PortRejection.FRAME_TIMEOUT) == before:
                await client.send(ask())
                assert (await client.receive()).code == 0
                try:
                    await slow.send(b"x")
                except ConnectionError:
                    break
            assert await slow.receive_all() == b""
        assert rejected(PortRejection.FRAME_TIMEOUT) == before + 1
        await client.send(ask())
        assert (await client.receive()).code == 0


async def test_connections_of_one_address_beyond_the_bound_are_rejected() -> None:
    settings = ServerSettings(max_connections_per_address=2)
    before = rejected(PortRejection.ADDRESS)
    async with serving(HANDLERS, settings=settings) as server:
        async with peer_of(server) as first, peer_of(server) as second, peer_of(server) as third:
            for peer in (first, second):
                await peer.send(ask())
                assert (await peer.receive()).code == 0
            assert await third.receive_all() == b""
            assert rejected(PortRejection.ADDRESS) == before + 1
        await eventually(lambda: not server.connections, "all connections are lost")
        async with peer_of(server) as again:
            await again.send(ask())
            assert (await again.receive()).code == 0


async def test_an_address_that_opens_connections_too_fast_is_rejected() -> None:
    settings = ServerSettings(max_new_connections_per_address=1)
    before = rejected(PortRejection.RATE)
    async with serving(HANDLERS, settings=settings) as server, AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(peer_of(server)) for _ in range(40)]
        await eventually(lambda: rejected(PortRejection.RATE) > before, "one is rejected")
        await peers[0].send(ask())
        assert (await peers[0].receive()).code == 0


def test_a_burst_of_some_seconds_is_allowed_and_then_the_rate() -> None:
    limits = AddressLimits(0, 10)
    burst = int(10 * BURST_S)
    assert [limits.too_fast("a", 100.0) for _ in range(burst + 1)] == [False] * burst + [True]
    assert not limits.too_fast("b", 100.0)
    assert [limits.too_fast("a", 101.0) for _ in range(11)] == [False] * 10 + [True]


def test_addresses_without_connections_are_forgotten() -> None:
    limits = AddressLimits(5, 10)
    limits.opened("kept", 0.0)
    for number in range(20 * PRUNE_MIN):
        now_s = number * 10 * BURST_S / PRUNE_MIN
        assert not limits.too_fast(f"a{number}", now_s)
        limits.opened(f"a{number}", now_s)
        limits.closed(f"a{number}")
    assert len(limits._uses) <= 2 * PRUNE_MIN
    assert limits._uses["kept"].open == 1
