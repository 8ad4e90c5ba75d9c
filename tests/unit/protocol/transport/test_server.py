"""A server responds to requests in any chunks of bytes, and rejects what exceeds its bounds or its format."""

from __future__ import annotations

import asyncio
import struct
from types import SimpleNamespace

import pytest

from epochmq_protocol.codes import V5_3_1, ResponseCode
from epochmq_protocol.errors import FastPathMiss, RequestError
from epochmq_protocol.frame import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    LENIENT_HEADER_BYTES_MAX,
    Command,
    SerializeType,
    decode,
    encode,
    response,
)
from epochmq_protocol.transport import RemotingConnection, ServerSettings
from epochmq_protocol.transport import idle as idle_sweep
from epochmq_protocol.transport.peer_warnings import LINES_A_SECOND, PEER_WARNINGS
from tests.unit.protocol.transport.peers import (
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


async def test_a_response_has_the_opaque_of_its_request_and_the_response_flag() -> None:
    async with serving({ECHO: echo}) as server, peer_of(server) as peer:
        await peer.send(ask(opaque=77, body=b"hello"))
        received = await peer.receive()
    assert (received.opaque, received.flag, received.code, received.body) == (77, FLAG_RESPONSE, 0, b"hello")


async def test_requests_sent_byte_by_byte_and_all_at_once_get_the_same_responses() -> None:
    frames = b"".join(ask(opaque=n, body=bytes(n)) for n in range(5))
    async with serving({ECHO: echo}) as server:
        async with peer_of(server) as peer:
            await peer.send(frames)
            at_once = [await peer.receive() for _ in range(5)]
        async with peer_of(server) as peer:
            for n in range(len(frames)):
                await peer.send(frames[n : n + 1])
                await asyncio.sleep(0)
            in_pieces = [await peer.receive() for _ in range(5)]
    assert at_once == in_pieces
    assert [received.opaque for received in at_once] == [0, 1, 2, 3, 4]


async def test_a_body_of_many_reads_arrives_whole() -> None:
    body = bytes(range(256)) * 20_000
    async with serving({ECHO: echo}) as server, peer_of(server) as peer:
        await peer.send(ask(body=body) + ask(opaque=2, body=b"next"))
        assert (await peer.receive()).body == body
        assert (await peer.receive()).body == b"next"


async def test_an_unknown_code_gets_not_supported_with_javas_remark() -> None:
    async with serving({ECHO: echo}) as server, peer_of(server) as peer:
        await peer.send(ask(9999))
        received = await peer.receive()
    assert (received.code, received.remark) == (3, " request type 9999 not supported")


async def test_the_default_handler_handles_codes_without_a_handler() -> None:
    async with serving({}, default=echo) as server, peer_of(server) as peer:
        await peer.send(ask(9999))
        assert (await peer.receive()).code == 0


async def test_a_oneway_request_gets_no_response_not_even_an_error() -> None:
    def broken(connection: RemotingConnection, command: Command) -> Command:
        raise ValueError("no")

    async def slow(connection: RemotingConnection, command: Command) -> Command:
        return response(command, 0)

    async with serving({ECHO: echo, BROKEN: broken, SLOW: slow}) as server, peer_of(server) as peer:
        for code in (ECHO, BROKEN, SLOW, 9999):
            await peer.send(ask(code, oneway=True))
        await peer.send(ask(opaque=5))
        assert (await peer.receive()).opaque == 5
        await eventually(lambda: server.dispatcher.in_flight == 0, "the slow one ends")


async def test_a_request_error_gives_its_code_and_any_other_exception_system_error() -> None:
    def reject(connection: RemotingConnection, command: Command) -> Command:
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, "topic[T] not exist")

    async def fail(connection: RemotingConnection, command: Command) -> Command:
        raise KeyError("x")

    async with serving({ECHO: reject, BROKEN: fail}) as server, peer_of(server) as peer:
        await peer.send(ask() + ask(BROKEN, 2))
        first, second = await peer.receive(), await peer.receive()
    assert (first.code, first.remark) == (17, "topic[T] not exist")
    assert (second.code, second.remark) == (1, "KeyError: 'x'")


async def test_a_response_that_cannot_be_encoded_becomes_system_error() -> None:
    def unwritable(connection: RemotingConnection, command: Command) -> Command:
        return response(command, 2**40)

    async with serving({ECHO: unwritable}) as server, peer_of(server) as peer:
        await peer.send(ask(opaque=3))
        received = await peer.receive()
    assert (received.opaque, received.code) == (3, 1)


async def test_a_binary_header_is_decoded() -> None:
    async with serving({ECHO: echo}, fast={b'{"code":310': fast_ok}) as server, peer_of(server) as peer:
        await peer.send(encode(Command(ECHO, 9, ext={"k": "v"}, body=b"x", serialize=SerializeType.ROCKETMQ)))
        received = await peer.receive()
    assert (received.opaque, received.ext, received.body) == (9, {"k": "v"}, b"x")


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
async def test_malformed_bytes_close_the_connection_without_a_response(data: bytes) -> None:
    async with serving({ECHO: echo}) as server:
        async with peer_of(server) as peer:
            await peer.send(data)
            assert await peer.receive_all() == b""
        async with peer_of(server) as peer:
            await peer.send(ask(opaque=4))
            assert (await peer.receive()).opaque == 4


async def test_many_malformed_connections_write_few_log_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = 1000.0
    monkeypatch.setattr(PEER_WARNINGS, "clock", lambda: second)

    async def attack(count: int) -> list[str]:
        caplog.clear()
        for _ in range(count):
            async with peer_of(server) as peer:
                await peer.send(b"\xff" * 8)
                assert await peer.receive_all() == b""
        return [line for line in caplog.messages if "closed the connection" in line]

    async with serving({ECHO: echo}) as server:
        assert len(await attack(50)) == LINES_A_SECOND
        second += 1
        (line,) = await attack(1)
        assert "(30 warnings about peers were left out before)" in line


async def test_requests_before_malformed_bytes_still_get_a_response() -> None:
    async with serving({ECHO: echo}) as server, peer_of(server) as peer:
        await peer.send(ask(opaque=8) + struct.pack(">II", 1, 1))
        rest = await peer.receive_all()
    assert decode(rest[4:]).opaque == 8


def long_header(size: int, *, binary: bool = False, flag: int = 0) -> bytes:
    """A request whose header has this size."""
    kind = SerializeType.ROCKETMQ if binary else SerializeType.JSON
    spare = size - len(ask_with(b"", kind, flag)) + 8
    return ask_with(b"x" * spare, kind, flag)


def ask_with(text: bytes, kind: SerializeType, flag: int) -> bytes:
    return encode(Command(ECHO, 7, flag, ext={"a": text.decode()}, serialize=kind))


@pytest.mark.parametrize("binary", [False, True])
async def test_a_header_beyond_the_limit_gets_an_error_and_the_connection_stays(binary: bool) -> None:
    settings = ServerSettings(max_header_bytes=1000)
    async with serving({ECHO: echo}, settings=settings) as server, peer_of(server) as peer:
        await peer.send(long_header(1000, binary=binary))
        assert (await peer.receive()).code == 0
        await peer.send(long_header(1001, binary=binary) + long_header(1001, binary=binary, flag=FLAG_ONEWAY))
        found = await peer.receive()
        assert (found.code, found.opaque) == (ResponseCode.SYSTEM_ERROR, 7)
        assert found.remark == "header of 1001 bytes: expected at most 1000"
        await peer.send(ask(opaque=8))
        assert (await peer.receive()).opaque == 8


async def test_a_long_header_that_is_not_standard_json_gets_an_error() -> None:
    header = b'{code:12,x:"' + b"x" * LENIENT_HEADER_BYTES_MAX + b'","opaque":9}'
    async with serving({ECHO: echo}) as server, peer_of(server) as peer:
        await peer.send(struct.pack(">II", 4 + len(header), len(header)) + header)
        found = await peer.receive()
        assert (found.code, found.opaque) == (ResponseCode.SYSTEM_ERROR, 9)
        assert "not standard" in (found.remark or "")


async def test_an_oversized_header_without_an_opaque_closes_the_connection() -> None:
    header = b"{" + b" " * LENIENT_HEADER_BYTES_MAX + b"code:12}"
    async with serving({ECHO: echo}) as server, peer_of(server) as peer:
        await peer.send(struct.pack(">II", 4 + len(header), len(header)) + header)
        assert await peer.receive_all() == b""


async def test_a_frame_at_the_size_limit_is_accepted_and_one_byte_more_is_not() -> None:
    overhead = len(ask(body=b"")) + 0
    settings = ServerSettings(max_frame_bytes=overhead + 1000)
    async with serving({ECHO: echo}, settings=settings) as server:
        async with peer_of(server) as peer:
            await peer.send(ask(body=bytes(1000)))
            assert len((await peer.receive()).body) == 1000
        async with peer_of(server) as peer:
            await peer.send(ask(body=bytes(1001))[:8])
            assert await peer.receive_all() == b""


def fast_ok(connection: RemotingConnection, header: bytes, body: bytes) -> bytes | None:
    return encode(Command(0, 42, FLAG_RESPONSE, body=b"fast:" + body))


async def test_a_fast_handler_gets_the_frames_that_start_with_its_key() -> None:
    def fast_pull(connection: RemotingConnection, header: bytes, body: bytes) -> bytes | None:
        return encode(Command(0, 43, FLAG_RESPONSE, body=b"pull:" + body))

    fast = {b'{"code":310': fast_ok, b'{"code":11,': fast_pull}
    async with serving({3101: echo, 111: echo}, fast=fast) as server, peer_of(server) as peer:
        await peer.send(ask(310, body=b"a") + ask(11, body=b"b") + ask(3101, 7) + ask(111, 8))
        responses = [await peer.receive() for _ in range(4)]
    assert [(received.opaque, received.body) for received in responses] == [
        (42, b"fast:a"),
        (43, b"pull:b"),
        (7, b""),
        (8, b""),
    ]


async def test_after_a_fast_path_miss_the_ordinary_path_handles_the_same_frame() -> None:
    def shy(connection: RemotingConnection, header: bytes, body: bytes) -> bytes | None:
        raise FastPathMiss("not for me")

    async with serving({FAST: echo}, fast={b'{"code":310': shy}) as server, peer_of(server) as peer:
        await peer.send(ask(FAST, 6, body=b"x"))
        received = await peer.receive()
    assert (received.opaque, received.body) == (6, b"x")


async def test_errors_of_a_fast_handler_give_the_same_responses_as_those_of_any_other() -> None:
    def reject(connection: RemotingConnection, header: bytes, body: bytes) -> bytes | None:
        if body:
            raise RequestError(ResponseCode.NO_PERMISSION, "read-only")
        raise ValueError("odd")

    async with serving({}, fast={b'{"code":310': reject}) as server, peer_of(server) as peer:
        await peer.send(ask(FAST, 1, body=b"x") + ask(FAST, 2) + ask(FAST, 3, oneway=True) + ask(FAST, 4))
        responses = [await peer.receive() for _ in range(3)]
    assert [(received.opaque, received.code) for received in responses] == [(1, 16), (2, 1), (4, 1)]


async def test_a_deferred_request_gets_one_response_and_only_while_its_connection_is_open() -> None:
    deferred: list[tuple[RemotingConnection, Command]] = []

    def later(connection: RemotingConnection, command: Command) -> None:
        connection.defer(command.opaque)
        deferred.append((connection, command))

    async with serving({LATER: later}) as server:
        async with peer_of(server) as peer:
            await peer.send(ask(LATER, 1) + ask(LATER, 2) + ask(LATER, 3))
            await eventually(lambda: len(deferred) == 3, "three deferred requests")
            connection = deferred[0][0]
            assert (connection.in_flight, server.dispatcher.in_flight) == (3, 3)
            assert connection.respond_encoded(1, encode(response(deferred[0][1], 0)))
            assert not connection.respond_encoded(1, b"a second response")
            connection.respond(response(deferred[1][1], 0))
            assert [(await peer.receive()).opaque, (await peer.receive()).opaque] == [1, 2]
            assert server.dispatcher.in_flight == 1
        await eventually(lambda: connection.closed, "the server notices")
        assert server.dispatcher.in_flight == 0
        assert not connection.respond_encoded(3, b"too late")


@pytest.mark.parametrize("kind", ["deferred", "task"])
async def test_more_requests_in_flight_than_the_bound_get_system_busy(kind: str) -> None:
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
        received = await one.receive()
        assert (received.opaque, received.code, received.remark) == (2, 2, OVERLOAD)
        await two.send(ask(LATER, 10) + ask(LATER, 11))
        received = await two.receive()
        assert (received.opaque, received.code) == (11, 2)
        release.set()


async def test_an_orderly_stop_responds_to_requests_in_flight_and_sends_newer_peers_go_away() -> None:
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
        away, served = await peer.receive(), await peer.receive()
        assert (away.opaque, away.code, away.remark) == (2, 1500, "please go away")
        assert (served.opaque, served.code) == (3, 0)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(server.host, server.port)
        release.set()
        assert (await peer.receive()).remark == "late but there"
        assert await peer.receive_all() == b""
        await stopping


async def test_a_stop_ends_after_its_grace_period_even_if_a_handler_never_ends() -> None:
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
        assert await peer.receive_all() == b""


async def test_an_idle_connection_is_closed_after_the_timeout() -> None:
    idle: list[str] = []
    settings = ServerSettings(idle_timeout_ms=1500)
    async with (
        serving({ECHO: echo}, settings=settings, on_idle=lambda c: idle.append(c.remote)) as server,
        peer_of(server) as quiet,
        peer_of(server) as mute,
    ):
        await quiet.send(ask())
        await quiet.receive()
        assert await quiet.receive_all() == b""
        assert await mute.receive_all() == b""
        assert len(idle) == 1


class LaterLoop:
    """The running loop, with a clock that is ahead by `ahead_s`. It runs nothing later."""

    ahead_s = 0.0

    def time(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead_s

    def call_later(self, _delay_s: float, _callback: object) -> None:
        pass


async def test_a_busy_connection_is_not_closed_when_idle_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    idle: list[str] = []
    settings = ServerSettings(idle_timeout_ms=3_600_000)
    async with (
        serving({ECHO: echo}, settings=settings, on_idle=lambda c: idle.append(c.remote)) as server,
        peer_of(server) as quiet,
        peer_of(server) as busy,
    ):
        server._sweep.stop()
        for one in (quiet, busy):
            await one.send(ask())
            await one.receive()
        later = LaterLoop()
        monkeypatch.setattr(idle_sweep, "asyncio", SimpleNamespace(get_running_loop=lambda: later))
        server._sweep._sweep()
        for later.ahead_s in (1799.0, 3590.0, 3700.0):
            await busy.send(ask())
            await busy.receive()
            server._sweep._sweep()
            assert len(idle) == (later.ahead_s > 3600)
        monkeypatch.undo()
        assert await quiet.receive_all() == b""
        await busy.send(ask(opaque=3))
        assert (await busy.receive()).opaque == 3


async def test_listeners_are_called_for_every_new_and_every_lost_connection() -> None:
    seen: list[tuple[str, str]] = []
    async with serving(
        {ECHO: echo},
        on_connect=lambda c: seen.append(("in", c.remote)),
        on_close=lambda c: seen.append(("out", c.remote)),
    ) as server:
        async with peer_of(server) as peer:
            await peer.send(ask())
            await peer.receive()
            host, port = peer.writer.get_extra_info("sockname")
            (connection,) = server.connections
            assert connection.local == f"{server.host}:{server.port}"
            assert connection.remote_host == bytes(map(int, host.split("."))) + port.to_bytes(4, "big")
        await eventually(lambda: len(seen) == 2, "both events")
    assert seen == [("in", f"{host}:{port}"), ("out", f"{host}:{port}")]


async def test_connections_beyond_the_bound_are_rejected() -> None:
    settings = ServerSettings(max_connections=1)
    async with serving({ECHO: echo}, settings=settings) as server, peer_of(server) as first:
        await first.send(ask())
        await first.receive()
        async with peer_of(server) as second:
            assert await second.receive_all() == b""
        await first.send(ask(opaque=2))
        assert (await first.receive()).opaque == 2
