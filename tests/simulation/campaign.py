"""Runs many seeds in several processes, and reports a failing one in readable form."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tests.simulation import (
    acting_world,
    block_world,
    changing_block_world,
    client_world,
    controller_world,
    group_world,
    store_world,
)
from tests.simulation.clockwork import ViolationError, World
from tests.simulation.fault_plan import Plan
from tests.simulation.shrink import shrink

PROCESSES = int(os.environ.get("EPOCHMQ_SIMULATION_PROCESSES", "2"))
CHUNK = 8
FAILURES_MAX = 3
STORY_LINES = 120


@dataclass(frozen=True)
class Kind:
    """A kind of world: the plan of a seed, and the world that runs it."""

    plan: Callable[[int], Plan]
    world: Callable[..., World]

    def live(self, plan: Plan, *, verbose: bool = False) -> World:
        """Runs a plan. ViolationError if it breaks a promise."""
        world = self.world(plan, verbose=verbose)
        world.live()
        return world


KINDS = {
    "raft": Kind(client_world.plan, client_world.ClientWorld),
    "departures": Kind(client_world.plan_with_disconnects, client_world.ClientWorld),
    "blocks": Kind(block_world.plan, block_world.BlockWorld),
    "changing_blocks": Kind(changing_block_world.plan, changing_block_world.ChangingBlockWorld),
    "store": Kind(store_world.plan, store_world.StoreWorld),
    "controllers": Kind(controller_world.plan, controller_world.ControllerWorld),
    "groups": Kind(group_world.plan, group_world.GroupWorld),
    "acting": Kind(acting_world.plan, acting_world.ActingWorld),
}


@dataclass
class Tally:
    """The results of a campaign."""

    seeds: int = 0
    steps: int = 0
    counts: dict[str, int] | None = None
    failed: list[int] | None = None
    seconds: float = 0.0


def run_seed(kind: str, seed: int) -> tuple[int, dict[str, int], str | None]:
    """Runs one seed. Returns (steps, counts, the broken promise or None)."""
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
    gc.disable()  # a world takes a tenth of a second; its cycles are freed after the chunk
    results = [(seed, *run_seed(kind, seed)) for seed in seeds]
    gc.collect()
    return results


def sweep(kind: str, seeds: Iterable[int], processes: int = PROCESSES) -> Tally:
    """Runs all seeds, or stops after a few failures."""
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
    """Checks that all seeds keep all promises. AssertionError reports the first one that does not."""
    tally = sweep(kind, seeds)
    if tally.failed:
        raise AssertionError(report(kind, min(tally.failed)))
    return tally


def report(kind: str, seed: int, seconds: float = 20.0) -> str:
    """Reports a failing seed: the smallest plan that still breaks a promise, and its transcript."""
    found = KINDS[kind]
    shrunk = shrink(found, found.plan(seed), seconds)
    lines = [
        f"seed {seed} of {kind} breaks a promise; run it again with",
        f"    python -m tests.simulation {kind} {seed}",
        f"shrunk from {shrunk.events_before} to {len(shrunk.plan.events)} events in {shrunk.runs} runs:",
        *shrunk.plan.lines(),
        "transcript (time in ms):",
        *shrunk.history[-STORY_LINES:],
        f"at {shrunk.at_ms:.0f} ms: {shrunk.text}",
    ]
    return "\n".join(lines)
