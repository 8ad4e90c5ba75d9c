"""Runs many seeds on several processes, and makes of a failing one a report that a person can read."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tests.simulation import client_world, controller_world, group_world, store_world
from tests.simulation.clockwork import ViolationError, World
from tests.simulation.shrink import shrink
from tests.simulation.troubles import Plan

PROCESSES = int(os.environ.get("EPOCHMQ_SIMULATION_PROCESSES", "2"))
CHUNK = 8
FAILURES_MAX = 3
STORY_LINES = 120


@dataclass(frozen=True)
class Kind:
    """A kind of world: what a seed plans, and the world that lives the plan."""

    plan: Callable[[int], Plan]
    world: Callable[..., World]

    def live(self, plan: Plan, *, verbose: bool = False) -> World:
        """Lives a plan. ViolationError when a promise was broken."""
        world = self.world(plan, verbose=verbose)
        world.live()
        return world


KINDS = {
    "raft": Kind(client_world.plan, client_world.ClientWorld),
    "departures": Kind(client_world.plan_with_disconnects, client_world.ClientWorld),
    "store": Kind(store_world.plan, store_world.StoreWorld),
    "controllers": Kind(controller_world.plan, controller_world.ControllerWorld),
    "groups": Kind(group_world.plan, group_world.GroupWorld),
}


@dataclass
class Tally:
    """What a campaign has seen."""

    seeds: int = 0
    steps: int = 0
    counts: dict[str, int] | None = None
    failed: list[int] | None = None
    seconds: float = 0.0


def run_seed(kind: str, seed: int) -> tuple[int, dict[str, int], str | None]:
    """One seed: (steps, what the world counted, the promise it broke or None)."""
    found = KINDS[kind]
    world = found.world(found.plan(seed))
    try:
        world.live()
    except ViolationError as violation:
        return world.steps, world.counts(), violation.text
    except Exception as error:
        return world.steps, world.counts(), f"{type(error).__name__}: {error}"
    return world.steps, world.counts(), None


def _chunk(task: tuple[str, list[int]]) -> list[tuple[int, int, dict[str, int], str | None]]:
    kind, seeds = task
    gc.disable()  # a world lives for a tenth of a second; its cycles go when the chunk is done
    results = [(seed, *run_seed(kind, seed)) for seed in seeds]
    gc.collect()
    return results


def sweep(kind: str, seeds: Iterable[int], processes: int = PROCESSES) -> Tally:
    """Runs all seeds, or until a few have failed."""
    numbers = list(seeds)
    tasks = [(kind, numbers[at : at + CHUNK]) for at in range(0, len(numbers), CHUNK)]
    tally = Tally(counts={}, failed=[])
    assert tally.counts is not None
    assert tally.failed is not None
    started = time.monotonic()
    for chunk in _results(tasks, processes):
        for seed, steps, counts, text in chunk:
            tally.seeds += 1
            tally.steps += steps
            for name, count in counts.items():
                tally.counts[name] = tally.counts.get(name, 0) + count
            if text is not None:
                tally.failed.append(seed)
        if len(tally.failed) >= FAILURES_MAX:
            break
    tally.seconds = time.monotonic() - started
    return tally


def _results(
    tasks: list[tuple[str, list[int]]], processes: int
) -> Iterator[list[tuple[int, int, dict[str, int], str | None]]]:
    if processes < 2:
        yield from map(_chunk, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(_chunk, tasks)


def hold(kind: str, seeds: Iterable[int]) -> Tally:
    """All seeds keep all promises, or an AssertionError tells the story of one that does not."""
    tally = sweep(kind, seeds)
    if tally.failed:
        raise AssertionError(report(kind, min(tally.failed)))
    return tally


def report(kind: str, seed: int, seconds: float = 20.0) -> str:
    """A failing seed as a person can read it: the least trouble that still breaks the promise, and what then
    happens."""
    found = KINDS[kind]
    shrunk = shrink(found, found.plan(seed), seconds)
    lines = [
        f"seed {seed} of {kind} breaks a promise; run it again with",
        f"    python -m tests.simulation {kind} {seed}",
        f"shrunk from {shrunk.events_before} to {len(shrunk.plan.events)} events in {shrunk.runs} runs:",
        *shrunk.plan.lines(),
        "what then happens (time in ms):",
        *shrunk.story[-STORY_LINES:],
        f"at {shrunk.at_ms:.0f} ms: {shrunk.text}",
    ]
    return "\n".join(lines)
