"""Splits the work of one request over turns of the event loop, so that other requests, heartbeats and
renewals of leases do not wait for the whole of it.

A handler returns `in_turns(work(Turns()))`. The work is a coroutine that awaits nothing but `Turns`. Its
first turn runs at once, so a small request gets its response like any other; a larger one continues later.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, Final, Generic, Protocol, TypeVar

T = TypeVar("T")

TURN_S: Final = 0.001
"""How long one request works before others have their turn, in seconds. A step of its work comes on top."""
STEPS_MIN: Final = 16
"""Steps of a turn, however long they last. So it does not depend on the speed of the machine whether a small
request gets its response at once."""


STEP_OF_A_GENERATOR: Final = 4
"""As how many a step of a generator counts, which takes 0.1 to 0.4 ms."""


@coroutine
def _pause() -> Generator[None, None, None]:
    yield


class Turns:
    """The turns of one request."""

    def __init__(self, clock_s: Callable[[], float] = time.perf_counter) -> None:
        self._clock_s = clock_s
        self._until_s = clock_s() + TURN_S
        self._steps = 0

    @property
    def is_long(self) -> bool:
        """Whether the turn has lasted long enough."""
        return self._clock_s() >= self._until_s

    async def pause(self, steps: int = 1) -> None:
        """Between two short steps: ends the turn if it has lasted long enough. `steps`: as how many the last
        one counts."""
        self._steps += steps
        if self._steps > STEPS_MIN and self.is_long:
            await self.end()

    async def end(self) -> None:
        """Between two long steps: ends the turn, so that everything else runs that waits."""
        await _pause()
        self._steps = 0
        self._until_s = self._clock_s() + TURN_S

    async def run(self, steps: Generator[None, None, T]) -> T:
        """Does these steps, in as many turns as they need. Returns their result."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            await self.pause(STEP_OF_A_GENERATOR)


class WorkInTurns(Generic[T]):
    """Work that has begun and needs further turns. Await it, or run its turns one by one."""

    def __init__(self, work: Coroutine[Any, None, T]) -> None:
        self._work = work

    def run_turn(self) -> None:
        """Runs the next turn. StopIteration with the result: that was the last one. Raises what the work
        raises."""
        self._work.send(None)

    async def run(self, turn: Callable[[], None]) -> T:
        """Runs all turns, each by `turn`, which calls `run_turn`."""
        try:
            while True:
                await asyncio.sleep(0)
                try:
                    turn()
                except StopIteration as end:
                    result: T = end.value
                    return result
        finally:
            self._work.close()

    def __await__(self) -> Generator[Any, None, T]:
        return self.run(self.run_turn).__await__()

    def close(self) -> None:
        """Ends the work half way."""
        self._work.close()


class OrderedConnection(Protocol):
    """A connection that can keep further requests until a request is done."""

    def hold(self) -> None: ...
    def release(self) -> None: ...


class OrderedWorkInTurns(WorkInTurns[T]):
    """Work whose connection keeps the requests that follow, until the work is done."""

    def __init__(self, work: Coroutine[Any, None, T], connection: OrderedConnection) -> None:
        super().__init__(work)
        self._connection: OrderedConnection | None = connection
        connection.hold()

    async def run(self, turn: Callable[[], None]) -> T:
        """Runs all turns, then releases the connection."""
        try:
            return await super().run(turn)
        finally:
            self._release()

    def close(self) -> None:
        """Ends the work half way, and releases the connection."""
        super().close()
        self._release()

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()


def in_ordered_turns(work: Coroutine[Any, None, T], connection: OrderedConnection) -> T | WorkInTurns[T]:
    """`in_turns` for a request that is done before those that follow it on its connection."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    return OrderedWorkInTurns(work, connection)


def in_turns(work: Coroutine[Any, None, T]) -> T | WorkInTurns[T]:
    """Runs the first turn of a request's work. Returns the result, or the rest of the work."""
    started = WorkInTurns(work)
    try:
        started.run_turn()
    except StopIteration as end:
        result: T = end.value
        return result
    return started
