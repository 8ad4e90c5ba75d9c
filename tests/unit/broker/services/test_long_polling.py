"""A held pull runs again once: on a matching arrival, when its time is up, or when its queue has grown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from epochmq_broker.services.long_polling import QUEUES_CHECKED_PER_TICK, HeldPull, PullHoldService

FAR = 1e9


class Queue:
    """A consume queue, as far as long polling uses it."""

    def __init__(self) -> None:
        self.max_offset = 0


class Peer:
    """A connection, as far as long polling uses it."""

    def __init__(self) -> None:
        self.closed = False


class Bench:
    """A hold service that records the pulls that it runs."""

    def __init__(self, held_max: int = 10, tick_s: float = FAR, check_s: float = FAR) -> None:
        self.queue = Queue()
        self.peer = Peer()
        self.ran: list[str] = []
        self.woken = asyncio.Event()
        self.hold = PullHoldService(self._rerun, held_max=held_max, tick_s=tick_s, check_s=check_s)
        self.hold.start()

    def _rerun(self, pull: HeldPull) -> None:
        self.ran.append(pull.request)
        self.woken.set()
        if pull.request == "broken":
            raise RuntimeError("broken")

    def add(self, name: str, tags: frozenset[int] | None = None, deadline: float = FAR) -> None:
        """Holds a pull at the end of the queue."""
        self.hold.hold(HeldPull(self.queue, self.queue.max_offset, tags, deadline, self.peer, name))

    def arrive(self, tags_code: int = 0) -> None:
        """Adds a message to the queue."""
        self.queue.max_offset += 1
        self.hold.message_arrived(self.queue, self.queue.max_offset - 1, tags_code)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    made.hold.stop()


async def soon() -> None:
    """Lets callbacks of the next iteration of the event loop run."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_an_arrival_runs_the_pulls_of_its_queue_once_after_the_current_iteration(bench: Bench) -> None:
    bench.add("a")
    bench.add("b")
    bench.arrive()
    bench.arrive()
    assert bench.ran == []
    await soon()
    assert bench.ran == ["a", "b"]
    assert bench.hold.held == 0
    bench.arrive()
    await soon()
    assert bench.ran == ["a", "b"]


async def test_an_arrival_with_other_tags_leaves_a_filtered_pull_waiting(bench: Bench) -> None:
    bench.add("filtered", tags=frozenset([7]))
    bench.add("all")
    bench.arrive(tags_code=8)
    await soon()
    assert bench.ran == ["all"]
    bench.arrive(tags_code=7)
    await soon()
    assert bench.ran == ["all", "filtered"]


async def test_many_different_tags_at_once_run_every_pull(bench: Bench) -> None:
    bench.add("filtered", tags=frozenset([-1]))
    for code in range(100):
        bench.arrive(tags_code=code)
    await soon()
    assert bench.ran == ["filtered"]


async def test_a_pull_ahead_of_its_queue_is_not_woken_by_messages_before_its_offset(bench: Bench) -> None:
    bench.hold.hold(HeldPull(bench.queue, 5, None, FAR, bench.peer, "ahead"))
    bench.arrive()
    await soon()
    assert bench.ran == []


async def test_one_failing_pull_does_not_keep_the_others_waiting(bench: Bench) -> None:
    bench.add("broken")
    bench.add("sound")
    bench.arrive()
    await soon()
    assert bench.ran == ["broken", "sound"]


async def test_a_pull_of_a_closed_connection_is_dropped(bench: Bench) -> None:
    bench.add("gone")
    bench.peer.closed = True
    bench.arrive()
    await soon()
    assert bench.ran == []
    assert bench.hold.held == 0


async def test_a_pull_is_run_when_its_time_is_up() -> None:
    bench = Bench(tick_s=0.001)
    bench.add("late", deadline=asyncio.get_running_loop().time() + 0.01)
    async with asyncio.timeout(60):
        await bench.woken.wait()
    assert bench.ran == ["late"]
    bench.hold.stop()


async def test_the_periodic_check_finds_a_missed_arrival() -> None:
    bench = Bench(tick_s=0.001, check_s=0.002)
    bench.add("missed", tags=frozenset([1]))
    bench.queue.max_offset += 1
    async with asyncio.timeout(60):
        await bench.woken.wait()
    assert bench.ran == ["missed"]
    bench.hold.stop()


async def test_stop_runs_the_held_pulls_and_holds_no_more(bench: Bench) -> None:
    bench.add("last")
    bench.hold.stop()
    assert bench.ran == ["last"]
    assert bench.hold.is_full


async def test_at_most_held_max_pulls_are_held() -> None:
    bench = Bench(held_max=1)
    bench.add("first")
    assert bench.hold.is_full
    bench.hold.stop()


async def test_release_runs_the_matching_pulls_only(bench: Bench) -> None:
    bench.add("a")
    bench.add("b")
    bench.hold.release(lambda pull: pull.request == "b")
    assert bench.ran == ["b"]
    assert bench.hold.held == 1


async def test_a_tick_costs_as_much_as_the_due_pulls_not_the_held_ones() -> None:
    bench = Bench(held_max=100_000, tick_s=0.01, check_s=FAR)
    looked: list[Peer] = []

    class Watched(Peer):
        @property
        def closed(self) -> bool:
            looked.append(self)
            return False

        @closed.setter
        def closed(self, value: bool) -> None:
            pass

    peer = Watched()
    for number in range(20_000):
        bench.hold.hold(HeldPull(Queue(), 0, None, FAR, peer, f"far {number}"))
    bench.add("due", deadline=asyncio.get_running_loop().time() + 0.1)
    ticks = 0
    tick = bench.hold._tick

    def counted() -> None:
        nonlocal ticks
        ticks += 1
        tick()

    bench.hold._tick = counted  # type: ignore[method-assign]
    looked.clear()
    await asyncio.wait_for(bench.woken.wait(), 60)
    assert bench.ran == ["due"]
    assert len(looked) <= (ticks + 1) * QUEUES_CHECKED_PER_TICK
    assert bench.hold.held == 20_000
    bench.hold.stop()
    assert (bench.hold.held, bench.hold._buckets) == (0, {})


async def test_pulls_end_in_the_order_of_their_time_and_not_before() -> None:
    bench = Bench(held_max=1000, tick_s=0.01)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    ended: dict[str, float] = {}
    bench.hold._rerun = lambda pull: ended.setdefault(pull.request, loop.time())  # type: ignore[assignment]
    deadlines = {f"{number}": begun + 0.005 * (number * 37 % 40) for number in range(40)}
    for name, deadline in deadlines.items():
        bench.add(name, deadline=deadline)
    async with asyncio.timeout(60):
        while len(ended) < 40:  # noqa: ASYNC110  # no event tells
            await asyncio.sleep(0.001)
    assert all(ended[name] >= deadline for name, deadline in deadlines.items())
    assert bench.hold._buckets == {}


async def test_arrivals_with_other_tags_end_a_pull_at_the_next_check() -> None:
    bench = Bench(tick_s=0.001, check_s=0.005)
    bench.add("other", tags=frozenset([7]))
    bench.hold._to_check.extend([Queue()] * 100_000)  # its turn does not come
    bench.arrive(8)
    await asyncio.wait_for(bench.woken.wait(), 60)
    assert bench.ran == ["other"]
    bench.hold.stop()
