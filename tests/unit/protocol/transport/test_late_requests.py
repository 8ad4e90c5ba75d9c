"""Requests that have waited in the kernel because the event loop was busy or blocked."""

from __future__ import annotations

import asyncio
import time

import pytest

from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.frame import Command, encode, response
from epochmq_protocol.transport import RemotingConnection, RemotingServer
from epochmq_protocol.transport.late_requests import TICK_S, LateRequestMonitor, newest_wait_ms
from tests.support.net import loopback
from tests.unit.protocol.transport.peers import DEADLINE_S, ECHO, FAST, ask, echo, peer_of

HOST = loopback(92)
LIMIT_MS = 100
NEVER_MS = 3_600_000
"""Longer than any stall of a busy machine."""


class Policy:
    """Rejects ECHO after LIMIT_MS, and FAST requests after `fast_limit_ms`."""

    def __init__(self, *, shortest_wait_ms: int = LIMIT_MS, fast_limit_ms: int = 2 * LIMIT_MS) -> None:
        self.shortest_wait_ms = shortest_wait_ms
        self.fast_limit_ms = fast_limit_ms
        self.asked: list[tuple[int, int, int]] = []

    def rejection(self, code: int, waited_ms: int, ready: int) -> str | None:
        self.asked.append((code, waited_ms, ready))
        limit_ms = {ECHO: LIMIT_MS, FAST: self.fast_limit_ms}.get(code)
        return "too late" if limit_ms is not None and waited_ms >= limit_ms else None


def serve_fast(connection: RemotingConnection, header: bytes, body: bytes) -> bytes:
    return encode(response(Command(FAST, 1, 0), 0, body=b"fast"))


def server_of(policy: Policy) -> RemotingServer:
    return RemotingServer({ECHO: echo, FAST: echo}, fast={b'{"code":310': serve_fast}, late=policy)


def block_until_waited(server: RemotingServer, wait_ms: int) -> None:
    """Blocks the event loop until the bytes at the server's only socket have waited so long."""
    (connection,) = server.connections
    sock = connection._transport.get_extra_info("socket")
    deadline = time.monotonic() + DEADLINE_S
    while newest_wait_ms(sock) < wait_ms:
        assert time.monotonic() < deadline


async def answers_after(
    policy: Policy, wait_ms: int, *requests: bytes
) -> list[tuple[int, str | None, bytes]]:
    """The responses to requests that wait so long."""
    server = server_of(policy)
    await server.start(HOST, 0)
    try:
        async with peer_of(server) as peer:
            await peer.send(ask(ECHO, 99))
            assert (await peer.receive()).code == 0
            await peer.send(b"".join(requests))
            block_until_waited(server, wait_ms)
            found = [await peer.receive() for request in requests if b'"flag":2' not in request]
            await peer.send(ask(ECHO, 98))
            assert (await peer.receive()).code == 0, "the next request has not waited"
            return [(answer.code, answer.remark, answer.body) for answer in found]
    finally:
        await server.stop()


async def test_a_request_that_waited_too_long_is_rejected() -> None:
    policy = Policy()
    assert await answers_after(policy, LIMIT_MS + 20, ask()) == [(ResponseCode.SYSTEM_BUSY, "too late", b"")]
    (asked,) = policy.asked
    assert asked[0] == ECHO
    assert asked[1] >= LIMIT_MS + 20


async def test_each_code_has_its_own_limit() -> None:
    (first, second) = await answers_after(
        Policy(fast_limit_ms=NEVER_MS), LIMIT_MS + 20, ask(ECHO, 1), ask(FAST, 2, body=b"x")
    )
    assert first[0] == ResponseCode.SYSTEM_BUSY
    assert (second[0], second[2]) == (0, b"x"), "served by the ordinary path"


async def test_a_fast_request_is_rejected_too() -> None:
    ((code, remark, _),) = await answers_after(Policy(), 2 * LIMIT_MS + 20, ask(FAST))
    assert (code, remark) == (ResponseCode.SYSTEM_BUSY, "too late")


async def test_a_short_wait_is_not_even_asked_about() -> None:
    policy = Policy(shortest_wait_ms=NEVER_MS)
    ((code, *_),) = await answers_after(policy, LIMIT_MS + 20, ask(ECHO))
    assert code == 0
    assert policy.asked == []


async def test_a_one_way_request_gets_no_response() -> None:
    assert await answers_after(Policy(), LIMIT_MS + 20, ask(ECHO, oneway=True)) == []


async def test_a_stopping_server_serves_no_fast_requests_after_a_late_one() -> None:
    server = server_of(Policy())
    server.dispatcher.stop()
    server.dispatcher.check_requests(lambda _code: None)
    server.dispatcher.check_requests(None)
    assert server.dispatcher.fast == {}


async def test_fast_handlers_that_are_replaced_serve_after_a_late_request_too() -> None:
    """A broker that starts isolated gets its fast handlers when it goes online."""
    dispatcher = server_of(Policy()).dispatcher
    dispatcher.use_fast_handlers({})
    dispatcher.check_requests(lambda _code: None)
    dispatcher.use_fast_handlers({b'{"code":310': serve_fast})
    assert dispatcher.fast == {}, "late requests are checked"
    dispatcher.check_requests(None)
    assert dispatcher.fast != {}
    dispatcher.use_fast_handlers({})
    dispatcher.check_requests(None)
    assert dispatcher.fast == {}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_nothing_is_suspect_while_the_loop_keeps_up() -> None:
    clock = Clock()
    monitor = LateRequestMonitor(lambda: 200, clock)
    for _ in range(100):
        clock.now += TICK_S
        monitor.tick()
        assert not monitor.is_suspect(clock.now, full=False)


def test_a_blocked_loop_is_suspect_before_and_after_its_late_tick() -> None:
    clock = Clock()
    monitor = LateRequestMonitor(lambda: 200, clock)
    clock.now += 0.3
    assert monitor.is_suspect(clock.now, full=False)
    monitor.tick()
    assert monitor.is_suspect(clock.now, full=False)
    clock.now += TICK_S
    monitor.tick()
    clock.now += TICK_S
    monitor.tick()
    assert not monitor.is_suspect(clock.now, full=False)


def test_turns_that_stay_full_become_suspect() -> None:
    clock = Clock()
    monitor = LateRequestMonitor(lambda: 250, clock)
    suspect = []
    for _ in range(6):
        suspect.append(monitor.is_suspect(clock.now, full=True))
        clock.now += 0.0625
        monitor.tick()
    assert suspect == [False, False, False, False, True, True]
    assert monitor.is_suspect(clock.now, full=False), "this turn serves the rest"
    assert not monitor.is_suspect(clock.now, full=False)


@pytest.mark.parametrize("shortest_ms", [0, 50])
def test_a_changed_limit_applies_from_the_next_tick(shortest_ms: int) -> None:
    clock, limit = Clock(), [200]
    monitor = LateRequestMonitor(lambda: limit[0], clock)
    limit[0] = shortest_ms
    monitor.tick()
    clock.now += 0.1
    assert monitor.is_suspect(clock.now, full=False) is (shortest_ms > 0)
    assert monitor.is_late(60) is (shortest_ms > 0)


async def test_the_monitor_watches_the_loop_while_it_is_started() -> None:
    monitor = LateRequestMonitor(lambda: 10_000)
    before = monitor._ticked
    monitor.start()
    async with asyncio.timeout(DEADLINE_S):
        while monitor._ticked <= before + TICK_S:  # noqa: ASYNC110 - the tick has no event to wait for
            await asyncio.sleep(TICK_S / 10)
    monitor.stop()
