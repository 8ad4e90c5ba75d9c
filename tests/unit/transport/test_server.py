"""A server answers what it is asked, whatever way the bytes come, and refuses what it must."""

from __future__ import annotations

import asyncio
import struct

import pytest

from epochmq_protocol.codes import V5_3_1, ResponseCode
from epochmq_protocol.errors import FastPathMiss, RequestError
from epochmq_protocol.frame import FLAG_RESPONSE, Command, SerializeType, decode, encode, response
from epochmq_protocol.transport import RemotingConnection, ServerSettings
from tests.unit.transport.peers import (
    BROKEN,
    ECHO,
    FAST,
    LATER,
    SLOW,
    ask,
    echo,
    eventually,
    peer_of,
    serving,
)

OVERLOAD = "[OVERLOAD]system busy, start flow control for a while"


async def test_a_request_is_answered_with_its_own_opaque_and_the_response_flag() -> None:
    async with serving({ECHO: echo}) as server, peer_of(server) as peer:
        await peer.send(ask(opaque=77, body=b"hello"))
        answer = await peer.take()
    assert (answer.opaque, answer.flag, answer.code, answer.body) == (77, FLAG_RESPONSE, 0, b"hello")


async def test_requests_sent_byte_by_byte_and_all_at_once_get_the_same_answers() -> None:
    frames = b"".join(ask(opaque=n, body=bytes(n)) for n in range(5))
    async with serving({ECHO: echo}) as server:
        async with peer_of(server) as peer:
            await peer.send(frames)
            at_once = [await peer.take() for _ in range(5)]
        async with peer_of(server) as peer:
            for n in range(len(frames)):
                await peer.send(frames[n : n + 1])
                await asyncio.sleep(0)
            in_pieces = [await peer.take() for _ in range(5)]
    assert at_once == in_pieces
    assert [answer.opaque for answer in at_once] == [0, 1, 2, 3, 4]


async def test_a_body_of_many_reads_arrives_whole() -> None:
    body = bytes(range(256)) * 20_000
    async with serving({ECHO: echo}) as server, peer_of(server) as peer:
        await peer.send(ask(body=body) + ask(opaque=2, body=b"next"))
        assert (await peer.take()).body == body
        assert (await peer.take()).body == b"next"


async def test_an_unknown_code_is_answered_not_supported_in_javas_words() -> None:
    async with serving({ECHO: echo}) as server, peer_of(server) as peer:
        await peer.send(ask(9999))
        answer = await peer.take()
    assert (answer.code, answer.remark) == (3, " request type 9999 not supported")


async def test_the_default_handler_takes_codes_nobody_else_takes() -> None:
    async with serving({}, default=echo) as server, peer_of(server) as peer:
        await peer.send(ask(9999))
        assert (await peer.take()).code == 0


async def test_a_oneway_request_is_never_answered_not_even_with_an_error() -> None:
    def broken(connection: RemotingConnection, command: Command) -> Command:
        raise ValueError("no")

    async def slow(connection: RemotingConnection, command: Command) -> Command:
        return response(command, 0)

    async with serving({ECHO: echo, BROKEN: broken, SLOW: slow}) as server, peer_of(server) as peer:
        for code in (ECHO, BROKEN, SLOW, 9999):
            await peer.send(ask(code, oneway=True))
        await peer.send(ask(opaque=5))
        assert (await peer.take()).opaque == 5
        await eventually(lambda: server.dispatcher.in_flight == 0, "the slow one ends")


async def test_a_request_error_is_answered_with_its_code_and_any_other_with_system_error() -> None:
    def refuse(connection: RemotingConnection, command: Command) -> Command:
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, "topic[T] not exist")

    async def fail(connection: RemotingConnection, command: Command) -> Command:
        raise KeyError("x")

    async with serving({ECHO: refuse, BROKEN: fail}) as server, peer_of(server) as peer:
        await peer.send(ask() + ask(BROKEN, 2))
        first, second = await peer.take(), await peer.take()
    assert (first.code, first.remark) == (17, "topic[T] not exist")
    assert (second.code, second.remark) == (1, "KeyError: 'x'")


async def test_an_answer_that_cannot_be_written_becomes_system_error() -> None:
    def unwritable(connection: RemotingConnection, command: Command) -> Command:
        return response(command, 2**40)

    async with serving({ECHO: unwritable}) as server, peer_of(server) as peer:
        await peer.send(ask(opaque=3))
        answer = await peer.take()
    assert (answer.opaque, answer.code) == (3, 1)


async def test_a_binary_header_is_understood() -> None:
    async with serving({ECHO: echo}, fast={b'{"code":310': fast_ok}) as server, peer_of(server) as peer:
        await peer.send(encode(Command(ECHO, 9, ext={"k": "v"}, body=b"x", serialize=SerializeType.ROCKETMQ)))
        answer = await peer.take()
    assert (answer.opaque, answer.ext, answer.body) == (9, {"k": "v"}, b"x")


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", 0) + bytes(8),
        struct.pack(">II", 3, 0),
        struct.pack(">II", 16, 2**24 - 1) + bytes(12),
        struct.pack(">II", 8, 4) + b"nope",
        struct.pack(">II", 0xFFFF_FFFF, 0),
        struct.pack(">II", 8, 0x0700_0004) + b"{}  ",
    ],
    ids=["empty", "too short", "header beyond frame", "no JSON", "negative", "unknown type"],
)
async def test_bytes_that_are_no_frame_close_the_connection_without_an_answer(data: bytes) -> None:
    async with serving({ECHO: echo}) as server:
        async with peer_of(server) as peer:
            await peer.send(data)
            assert await peer.rest() == b""
        async with peer_of(server) as peer:
            await peer.send(ask(opaque=4))
            assert (await peer.take()).opaque == 4


async def test_requests_before_the_broken_bytes_are_still_answered() -> None:
    async with serving({ECHO: echo}) as server, peer_of(server) as peer:
        await peer.send(ask(opaque=8) + struct.pack(">II", 1, 1))
        rest = await peer.rest()
    assert decode(rest[4:]).opaque == 8


async def test_a_frame_at_the_size_limit_is_taken_and_one_byte_more_is_not() -> None:
    overhead = len(ask(body=b"")) + 0
    settings = ServerSettings(max_frame_bytes=overhead + 1000)
    async with serving({ECHO: echo}, settings=settings) as server:
        async with peer_of(server) as peer:
            await peer.send(ask(body=bytes(1000)))
            assert len((await peer.take()).body) == 1000
        async with peer_of(server) as peer:
            await peer.send(ask(body=bytes(1001))[:8])
            assert await peer.rest() == b""


def fast_ok(connection: RemotingConnection, header: bytes, body: bytes) -> bytes | None:
    return encode(Command(0, 42, FLAG_RESPONSE, body=b"fast:" + body))


async def test_a_fast_handler_takes_the_frames_that_start_with_its_key() -> None:
    def fast_pull(connection: RemotingConnection, header: bytes, body: bytes) -> bytes | None:
        return encode(Command(0, 43, FLAG_RESPONSE, body=b"pull:" + body))

    fast = {b'{"code":310': fast_ok, b'{"code":11,': fast_pull}
    async with serving({3101: echo, 111: echo}, fast=fast) as server, peer_of(server) as peer:
        await peer.send(ask(310, body=b"a") + ask(11, body=b"b") + ask(3101, 7) + ask(111, 8))
        answers = [await peer.take() for _ in range(4)]
    assert [(answer.opaque, answer.body) for answer in answers] == [
        (42, b"fast:a"),
        (43, b"pull:b"),
        (7, b""),
        (8, b""),
    ]


async def test_a_fast_handler_that_falls_back_hands_the_same_frame_to_the_ordinary_path() -> None:
    def shy(connection: RemotingConnection, header: bytes, body: bytes) -> bytes | None:
        raise FastPathMiss("not for me")

    async with serving({FAST: echo}, fast={b'{"code":310': shy}) as server, peer_of(server) as peer:
        await peer.send(ask(FAST, 6, body=b"x"))
        answer = await peer.take()
    assert (answer.opaque, answer.body) == (6, b"x")


async def test_errors_of_a_fast_handler_are_answered_like_those_of_any_other() -> None:
    def refuse(connection: RemotingConnection, header: bytes, body: bytes) -> bytes | None:
        if body:
            raise RequestError(ResponseCode.NO_PERMISSION, "read-only")
        raise ValueError("odd")

    async with serving({}, fast={b'{"code":310': refuse}) as server, peer_of(server) as peer:
        await peer.send(ask(FAST, 1, body=b"x") + ask(FAST, 2) + ask(FAST, 3, oneway=True) + ask(FAST, 4))
        answers = [await peer.take() for _ in range(3)]
    assert [(answer.opaque, answer.code) for answer in answers] == [(1, 16), (2, 1), (4, 1)]


async def test_a_deferred_request_is_answered_once_and_only_while_its_connection_lives() -> None:
    held: list[tuple[RemotingConnection, Command]] = []

    def later(connection: RemotingConnection, command: Command) -> None:
        connection.defer(command.opaque)
        held.append((connection, command))

    async with serving({LATER: later}) as server:
        async with peer_of(server) as peer:
            await peer.send(ask(LATER, 1) + ask(LATER, 2) + ask(LATER, 3))
            await eventually(lambda: len(held) == 3, "three requests held")
            connection = held[0][0]
            assert (connection.in_flight, server.dispatcher.in_flight) == (3, 3)
            assert connection.respond_encoded(1, encode(response(held[0][1], 0)))
            assert not connection.respond_encoded(1, b"a second answer")
            connection.respond(response(held[1][1], 0))
            assert [(await peer.take()).opaque, (await peer.take()).opaque] == [1, 2]
            assert server.dispatcher.in_flight == 1
        await eventually(lambda: connection.closed, "the server notices")
        assert server.dispatcher.in_flight == 0
        assert not connection.respond_encoded(3, b"too late")


@pytest.mark.parametrize("kind", ["deferred", "task"])
async def test_more_requests_under_way_than_the_bound_are_answered_busy(kind: str) -> None:
    release = asyncio.Event()

    def later(connection: RemotingConnection, command: Command) -> None:
        connection.defer(command.opaque)

    async def slow(connection: RemotingConnection, command: Command) -> Command:
        await release.wait()
        return response(command, 0)

    handler = later if kind == "deferred" else slow
    settings = ServerSettings(max_in_flight=3, max_in_flight_per_connection=2)
    async with (
        serving({LATER: handler}, settings=settings) as server,
        peer_of(server) as one,
        peer_of(server) as two,
    ):
        await one.send(b"".join(ask(LATER, n) for n in range(3)))
        answer = await one.take()
        assert (answer.opaque, answer.code, answer.remark) == (2, 2, OVERLOAD)
        await two.send(ask(LATER, 10) + ask(LATER, 11))
        answer = await two.take()
        assert (answer.opaque, answer.code) == (11, 2)
        release.set()


async def test_an_orderly_stop_answers_what_was_taken_and_sends_newer_peers_away() -> None:
    release = asyncio.Event()

    async def slow(connection: RemotingConnection, command: Command) -> Command:
        await release.wait()
        return response(command, 0, "late but there")

    async with serving({SLOW: slow, ECHO: echo}) as server, peer_of(server) as peer:
        await peer.send(ask(SLOW, 1))
        await eventually(lambda: server.dispatcher.in_flight == 1, "the request is taken")
        stopping = asyncio.ensure_future(server.stop(10))
        await eventually(lambda: server.dispatcher.stopping, "stopping")
        await peer.send(ask(ECHO, 2, version=V5_3_1 + 1) + ask(ECHO, 3, version=V5_3_1))
        away, served = await peer.take(), await peer.take()
        assert (away.opaque, away.code, away.remark) == (2, 1500, "please go away")
        assert (served.opaque, served.code) == (3, 0)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(server.host, server.port)
        release.set()
        assert (await peer.take()).remark == "late but there"
        assert await peer.rest() == b""
        await stopping


async def test_a_stop_ends_after_its_grace_even_when_a_handler_never_does() -> None:
    cancelled = asyncio.Event()

    async def stuck(connection: RemotingConnection, command: Command) -> Command:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    async with serving({SLOW: stuck}) as server, peer_of(server) as peer:
        await peer.send(ask(SLOW))
        await eventually(lambda: server.dispatcher.in_flight == 1, "taken")
        await server.stop(0.05)
        assert cancelled.is_set()
        assert await peer.rest() == b""


async def test_a_silent_connection_is_closed_after_the_idle_timeout_and_a_busy_one_is_not() -> None:
    idle: list[str] = []
    settings = ServerSettings(idle_timeout_ms=1500)
    async with (
        serving({ECHO: echo}, settings=settings, on_idle=lambda c: idle.append(c.remote)) as server,
        peer_of(server) as quiet,
        peer_of(server) as mute,
        peer_of(server) as busy,
    ):
        await quiet.send(ask())
        await quiet.take()
        talking = True

        async def talk() -> None:
            while talking:
                await busy.send(ask())
                await busy.take()
                await asyncio.sleep(0.02)

        talker = asyncio.ensure_future(talk())
        assert await quiet.rest() == b""
        assert await mute.rest() == b""
        assert len(idle) == 1
        talking = False
        await talker
        await busy.send(ask(opaque=3))
        assert (await busy.take()).opaque == 3


async def test_listeners_are_told_of_every_connection_that_comes_and_goes() -> None:
    seen: list[tuple[str, str]] = []
    async with serving(
        {ECHO: echo},
        on_connect=lambda c: seen.append(("in", c.remote)),
        on_close=lambda c: seen.append(("out", c.remote)),
    ) as server:
        async with peer_of(server) as peer:
            await peer.send(ask())
            await peer.take()
            host, port = peer.writer.get_extra_info("sockname")
            (connection,) = server.connections
            assert connection.local == f"{server.host}:{server.port}"
            assert connection.remote_host == bytes(map(int, host.split("."))) + port.to_bytes(4, "big")
        await eventually(lambda: len(seen) == 2, "both events")
    assert seen == [("in", f"{host}:{port}"), ("out", f"{host}:{port}")]


async def test_connections_beyond_the_bound_are_refused() -> None:
    settings = ServerSettings(max_connections=1)
    async with serving({ECHO: echo}, settings=settings) as server, peer_of(server) as first:
        await first.send(ask())
        await first.take()
        async with peer_of(server) as second:
            assert await second.rest() == b""
        await first.send(ask(opaque=2))
        assert (await first.take()).opaque == 2
