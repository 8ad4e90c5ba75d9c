"""The kinds of runs: what a site consists of, and what is checked at its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tests.simulation.mutation import Mutation
from tests.simulation.whole import disk_faults, faults, members, patches, sequences
from tests.simulation.whole.acting import ActingGroup
from tests.simulation.whole.group import Group
from tests.simulation.whole.hosts import Site
from tests.simulation.whole.isolation import Outcome
from tests.simulation.whole.loop import PROCESS
from tests.simulation.whole.trace import TraceHandler

RUN_MAX_S = 600.0
real_clock = time.perf_counter

Scenario = Callable[[Site], Awaitable[dict[str, int]]]


async def controlled_group(site: Site) -> dict[str, int]:
    """Three brokers under three controllers, clients, and drawn faults."""
    return await _faulty_group(site, faults.draw(site.seed, live=True))


async def group_on_bad_disks(site: Site) -> dict[str, int]:
    """The same, and at most one of the disks fails, lies, or becomes another one."""
    return await _faulty_group(site, faults.draw(site.seed, disks=True))


async def dledger_group(site: Site) -> dict[str, int]:
    """Three brokers with a DLedger log; at most one disk is replaced."""
    plan = faults.draw(site.seed, disks=site.seed % 3 == 0, live=True, controllers=False)
    return await _faulty_group(site, plan, controllers=0, dledger=True)


async def one_broker(site: Site) -> dict[str, int]:
    """One broker without replicas."""
    plan = faults.draw(site.seed, live=True, controllers=False, replicas=False)
    return await _faulty_group(site, plan, brokers=1, controllers=0)


async def acting_group(site: Site) -> dict[str, int]:
    """A master without controllers and two slaves that act for it, beside another group."""
    plan = faults.draw_acting(site.seed)
    site.trace.story += plan.lines()
    group = ActingGroup(site, settings={"flushDiskType": plan.flush})
    await group.begin()
    await asyncio.sleep(1.0)
    await faults.execute(plan, group, group.check_live)
    await group.wait_roles()
    await check_sound(group)
    return group.counts()


async def sequence(site: Site) -> dict[str, int]:
    """One of the sequences of faults that need an order."""
    group = await sequences.run(site)
    await check_sound(group)
    return group.counts()


async def _faulty_group(
    site: Site, plan: faults.Plan, *, brokers: int = 3, controllers: int = 3, dledger: bool = False
) -> dict[str, int]:
    site.trace.story += plan.lines()
    group = Group(
        site,
        brokers=brokers,
        controllers=controllers,
        settings={"flushDiskType": plan.flush},
        dledger=dledger,
    )
    await group.begin()
    await asyncio.sleep(1.0)
    await faults.execute(plan, group)
    await check_sound(group)
    return group.counts()


async def check_sound(group: Group) -> None:
    """Checks a group after all faults: it accepts messages, has lost none, delivers all, and its replicas are
    equal."""
    helper = group.site.host("person")
    group.site.start("person", lambda: disk_faults.person(group), on=helper.name)
    await group.wait_accepting()
    for name in [name for name in group.clients if not name.startswith("consumer")]:
        group.down[name] += 1
        group.site.kill(name)
    await group.wait_consumed(group.book)
    await group.wait_equal()
    await group.wait_history()


SCENARIOS: dict[str, Scenario] = {
    "acting": acting_group,
    "controlled": controlled_group,
    "disks": group_on_bad_disks,
    "dledger": dledger_group,
    "one": one_broker,
    "sequences": sequence,
}


def simulate(scenario: str, mutations: Sequence[Mutation] = ()) -> Callable[[int, Path], Outcome]:
    """The simulation of one scenario, for `isolation.run_seeds`. `mutations`: mistakes in production's code,
    which last as long as the run."""

    def run(seed: int, directory: Path) -> Outcome:
        with contextlib.ExitStack() as made:
            for mutation in mutations:
                made.enter_context(mutation.made())
            return _run(SCENARIOS[scenario], seed, directory)

    return run


def _run(scenario: Scenario, seed: int, directory: Path) -> Outcome:
    began_s = real_clock()
    site = Site(seed, directory)
    members.record_services()
    patches.install(site)
    _log_into(site)
    outcome = Outcome(seed)
    try:
        outcome.counts = site.run(watched(site, scenario(site)), within_s=RUN_MAX_S)
    except AssertionError:
        outcome.failure = traceback.format_exc(limit=-4)
    if site.failures and not outcome.failure:
        outcome.failure = "an unexpected error: " + site.failures[0]
    outcome.digest, outcome.events = site.trace.digest, site.trace.events
    outcome.iterations, outcome.virtual_s = site.loop.iterations, site.loop.time() - 1000
    outcome.story = site.trace.story
    outcome.real_s = real_clock() - began_s
    return outcome


async def watched(site: Site, scenario: Awaitable[dict[str, int]]) -> dict[str, int]:
    """Runs a scenario; the first broken promise ends it."""
    running = asyncio.ensure_future(scenario)
    while not running.done():
        await asyncio.wait([running], timeout=0.1)
        if site.broken:
            running.cancel()
            raise AssertionError(site.broken[0])
    return running.result()


def _log_into(site: Site) -> None:
    def describe() -> str:
        process = PROCESS.get()
        return f"{site.loop.time():.3f} {'simulator' if process is None else process.name}"

    root = logging.getLogger()
    root.handlers = [TraceHandler(site.trace, describe)]
    root.setLevel(logging.INFO)
