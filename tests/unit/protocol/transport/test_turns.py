"""The work of a request is split over turns of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator

import pytest

from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.frame import Command, response
from epochmq_protocol.transport import RemotingConnection, ServerSettings
from epochmq_protocol.transport.turns import (
    STEP_OF_A_GENERATOR,
    STEPS_MIN,
    TURN_S,
    Turns,
    WorkInTurns,
    in_ordered_turns,
    in_turns,
)
from tests.unit.protocol.transport.peers import ECHO, LATER, ask, echo, peer_of, serving


class Clock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def count_to(most: int, clock: Clock, log: list[int], step_s: float = TURN_S / 2) -> int:
    """Work of `most` steps, of which each takes so long."""
    turns = Turns(clock)
    for number in range(most):
        await turns.pause()
        log.append(number)
        clock.now_s += step_s
    return most


def test_work_of_one_turn_has_its_result_at_once() -> None:
    log: list[int] = []
    assert in_turns(count_to(2, Clock(), log)) == 2
    assert log == [0, 1]


def test_few_steps_are_one_turn_however_long_they_last() -> None:
    log: list[int] = []
    assert in_turns(count_to(STEPS_MIN, Clock(), log, 60)) == STEPS_MIN
    assert log == list(range(STEPS_MIN))


async def test_longer_work_lets_others_run_after_each_turn() -> None:
    clock, log = Clock(), list[int]()
    work = in_turns(count_to(50, clock, log, TURN_S / 20))
    assert isinstance(work, WorkInTurns)
    assert log == list(range(20))
    asyncio.get_running_loop().call_soon(log.append, -1)
    assert await work == 50
    assert log[20] == -1
    assert log[21:] == list(range(20, 50))


async def test_the_steps_of_a_generator_are_split_and_its_result_is_returned() -> None:
    clock, log = Clock(), list[int]()

    def steps() -> Generator[None, None, str]:
        for number in range(50):
            log.append(number)
            clock.now_s += TURN_S
            yield
        return "done"

    async def work() -> str:
        return await Turns(clock).run(steps())

    rest = in_turns(work())
    assert isinstance(rest, WorkInTurns)
    assert log == list(range(STEPS_MIN // STEP_OF_A_GENERATOR + 1))
    assert await rest == "done"
    assert log == list(range(50))


@pytest.mark.parametrize("at", [1, 3])
async def test_an_error_of_any_turn_is_raised(at: int) -> None:
    async def work() -> None:
        turns = Turns()
        for number in range(5):
            if number == at:
                raise ValueError(str(number))
            await turns.end()

    async def all_turns() -> None:
        rest = in_turns(work())
        assert isinstance(rest, WorkInTurns)
        await rest

    with pytest.raises(ValueError, match=str(at)):
        await all_turns()


async def test_a_cancelled_request_ends_its_work() -> None:
    ended: list[str] = []

    async def work() -> None:
        turns = Turns()
        try:
            while True:
                await turns.end()
        finally:
            ended.append("ended")

    rest = in_turns(work())
    assert isinstance(rest, WorkInTurns)
    task = asyncio.ensure_future(rest)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["ended"]


async def test_work_in_order_keeps_the_requests_that_follow_it() -> None:
    """Two reads: one with the long request, and one that comes while it goes on."""
    handled: list[int] = []
    may_end = asyncio.Event()

    async def work(connection: RemotingConnection, command: Command) -> Command:
        turns = Turns()
        while not may_end.is_set():
            await turns.end()
        handled.append(command.opaque)
        return response(command, 0)

    def long(connection: RemotingConnection, command: Command) -> Command | Awaitable[Command]:
        return in_ordered_turns(work(connection, command), connection)

    def short(connection: RemotingConnection, command: Command) -> Command:
        handled.append(command.opaque)
        return response(command, 0)

    async with serving({LATER: long, ECHO: short}) as server, peer_of(server) as peer:
        await peer.send(ask(opaque=1) + ask(LATER, opaque=2) + ask(opaque=3) + ask(opaque=4)[:9])
        assert (await peer.receive()).opaque == 1
        await peer.send(ask(opaque=4)[9:] + ask(LATER, opaque=5) + ask(opaque=6))
        async with peer_of(server) as other:
            await other.send(ask(opaque=7))
            assert (await other.receive()).opaque == 7, "other connections go on"
        assert handled == [1, 7]
        may_end.set()
        assert sorted([(await peer.receive()).opaque for _ in range(5)]) == [2, 3, 4, 5, 6]
        assert handled == [1, 7, 2, 3, 4, 5, 6]


async def test_work_in_order_that_is_rejected_holds_nothing() -> None:
    async def endless(turns: Turns) -> Command:
        while True:
            await turns.end()

    def long(connection: RemotingConnection, command: Command) -> Awaitable[Command]:
        work = in_ordered_turns(endless(Turns()), connection)
        assert isinstance(work, WorkInTurns)
        return work

    settings = ServerSettings(max_in_flight=0)
    async with serving({LATER: long, ECHO: echo}, settings=settings) as server, peer_of(server) as peer:
        await peer.send(ask(LATER, opaque=1) + ask(opaque=2))
        assert (await peer.receive()).code == ResponseCode.SYSTEM_BUSY
        assert (await peer.receive()).opaque == 2
