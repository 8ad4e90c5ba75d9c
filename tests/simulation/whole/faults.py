"""What happens to the members of a group: a plan drawn from the seed, and its execution."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from tests.simulation.whole import disk_faults, liveness, outages
from tests.simulation.whole.group import Group
from tests.simulation.whole.outages import Outage

FAULTS_MIN, FAULTS_MAX = 2, 7


@dataclass(frozen=True)
class Fault:
    """A fault of some seconds. `target` is the number of a host among those that it may hit."""

    kind: str
    after_s: float
    lasts_s: float
    target: int


@dataclass(frozen=True)
class Plan:
    """What is drawn for one run."""

    sync_flush: bool
    faults: tuple[Fault, ...]
    outages: tuple[Outage, ...] = ()
    expects_liveness: bool = False

    @property
    def flush(self) -> str:
        """The brokers' flushDiskType."""
        return "SYNC_FLUSH" if self.sync_flush else "ASYNC_FLUSH"

    def lines(self) -> list[str]:
        """The plan, for a report."""
        return (
            [f"flush: {self.flush}"]
            + [
                f"after {one.after_s:.2f} s: {one.kind} ({one.target}) for {one.lasts_s:.2f} s"
                for one in self.faults
            ]
            + [f"before fault {one.before}, lasting: {one.kind} ({one.target})" for one in self.outages]
        )


def draw(
    seed: int, *, disks: bool = False, live: bool = False, controllers: bool = True, replicas: bool = True
) -> Plan:
    """The plan of a seed, with or without faults of disks, for a group that has controllers and replicas, or
    none. `live`: with outages, during which the group is expected to be live."""
    dice = random.Random(seed * 31 + 7)
    sync_flush = dice.random() < 0.5
    kinds = [kind for kind in ORDINARY if sync_flush or kind not in SYNC_FLUSH_ONLY]
    kinds = [kind for kind in kinds if replicas or sync_flush or kind not in POWER_LOSSES]
    kinds = [kind for kind in kinds if controllers or "controller" not in kind]
    disk_kinds = list(DISK_FAULTS) if controllers else ["a disk is replaced"]
    kinds += disk_kinds if disks else []
    faults: list[Fault] = []
    spent = False
    for _ in range(dice.randint(FAULTS_MIN, FAULTS_MAX)):
        kind = dice.choice(kinds)
        if kind in DISK_FAULTS or (kind in POWER_LOSSES and not sync_flush):
            # The messages survive the loss of one disk or, with ASYNC_FLUSH, the power of one machine.
            kind, spent = ("kill a broker" if spent else kind), True
        after_s = dice.choice((0.05, 0.3, 1.0, 3.0)) * (0.5 + dice.random())
        lasts_s = dice.choice((0.1, 0.5, 2.0, 6.0)) * (0.5 + dice.random())
        faults.append(Fault(kind, after_s, lasts_s, dice.randrange(60)))
    if disks and not spent:
        at = dice.randrange(len(faults))
        faults[at] = replace(faults[at], kind=dice.choice(disk_kinds))
    lasting = outages.draw(seed, len(faults), controllers=controllers) if live and replicas else ()
    return Plan(sync_flush, tuple(faults), lasting, live)


def draw_acting(seed: int) -> Plan:
    """The plan of a seed for a master with slaves that act for it. No fault takes what the master has flushed
    or written, so that it always has every acknowledged message."""
    dice = random.Random(seed * 37 + 5)
    kinds = [kind for kind in ORDINARY if "controller" not in kind and kind not in POWER_LOSSES]
    kinds += ACTING_FAULTS
    faults = tuple(
        Fault(
            dice.choice(kinds),
            dice.choice((0.05, 0.3, 1.0, 3.0)) * (0.5 + dice.random()),
            dice.choice((0.1, 0.5, 2.0, 6.0, 12.0)) * (0.5 + dice.random()),
            dice.randrange(60),
        )
        for _ in range(dice.randint(FAULTS_MIN, FAULTS_MAX))
    )
    sync_flush = dice.random() < 0.5
    return Plan(sync_flush, faults, outages.draw(seed, len(faults), controllers=False, acting=True), True)


async def execute(plan: Plan, group: Group, check_live: Callable[[], Awaitable[None]] | None = None) -> None:
    """Lets the faults happen, ends those that do not last, and expects the group to be live. Then ends the
    others. `check_live` does it in another way than `liveness.check_live`."""
    with contextlib.ExitStack() as stack:
        await _happen(plan, group, stack)
        await _end_faults(group)
        if plan.expects_liveness:
            await (liveness.check_live(group) if check_live is None else check_live())
    for name in (*group.members, *group.clients):
        group.ensure_running(name)
    group.site.trace.tell(f"{group.site.loop.time():.3f} --- everything is sound")


async def _happen(plan: Plan, group: Group, stack: contextlib.ExitStack) -> None:
    """Lets the faults happen. The outages last until the end of the stack."""
    undoing: list[asyncio.Task[None]] = []
    for number, fault in enumerate(plan.faults):
        _begin_outages(plan, number, group, stack)
        await asyncio.sleep(fault.after_s)
        group.site.trace.tell(
            f"{group.site.loop.time():.3f} --- {fault.kind} ({fault.target}), {fault.lasts_s:.2f} s"
        )
        undoing.append(asyncio.create_task(FAULTS[fault.kind](group, fault)))  # type: ignore[arg-type]
    await asyncio.gather(*undoing)
    _begin_outages(plan, len(plan.faults), group, stack)


def _begin_outages(plan: Plan, before: int, group: Group, stack: contextlib.ExitStack) -> None:
    for outage in plan.outages:
        if outage.before == before:
            stack.enter_context(outages.lasting(group, outage))


async def _end_faults(group: Group) -> None:
    site = group.site
    site.network.heal()
    for name, host in site.hosts.items():
        host.disk_delay = 1.0
        if not host.has_power:
            site.power_on(name)
    for name in (*group.members, *group.clients):
        process = site.processes.get(name)
        if process is not None and process.paused:
            site.resume(name)
        group.ensure_running(name)


def _of(names: list[str], fault: Fault) -> str:
    return names[fault.target % len(names)]


def _master(group: Group, fault: Fault) -> str:
    return _of(group.masters() or group.brokers, fault)


async def _down(group: Group, names: list[str], lasts_s: float) -> None:
    with group.kept_down(names):
        for name in names:
            if name in group.site.processes:
                group.site.kill(name)
        await asyncio.sleep(lasts_s)


async def _power(group: Group, names: list[str], lasts_s: float) -> None:
    site = group.site
    with group.kept_down(names):
        dark = [name for name in names if site.hosts[name].has_power]
        for name in dark:
            site.power_off(name)
        await asyncio.sleep(lasts_s)
        for name in dark:
            site.power_on(name)


async def _pause(group: Group, names: list[str], lasts_s: float) -> None:
    site = group.site
    paused = [site.processes[name] for name in names if name in site.processes and site.processes[name].alive]
    for process in paused:
        process.paused = True
    await asyncio.sleep(lasts_s)
    for process in paused:
        site.loop.resume(process)


async def _stop(group: Group, name: str, lasts_s: float) -> None:
    process = group.site.processes.get(name)
    if process is None or not process.alive or process.on_stop is None or group.down[name]:
        return
    with group.kept_down([name]):
        group.site.stop(name)
        await asyncio.sleep(lasts_s)
        if process.alive and process.task is not None:
            await asyncio.wait([process.task], timeout=30)
            group.site.kill(name)  # as a supervisor does in the end


async def _cut(group: Group, links: list[tuple[str, str]], lasts_s: float) -> None:
    network = group.site.network
    for one, other in links:
        network.cut(one, other, both=False)
    await asyncio.sleep(lasts_s)
    network.heal_links(links)


def _links(group: Group, name: str) -> list[tuple[str, str]]:
    others = [other for other in group.site.hosts if other != name]
    return [pair for other in others for pair in ((name, other), (other, name))]


async def _slow_link(group: Group, fault: Fault) -> None:
    name = _of(group.members, fault)
    network = group.site.network
    for pair in _links(group, name):
        network.slow_s[pair] = 0.01 * (1 + fault.target % 30)
    await asyncio.sleep(fault.lasts_s)
    for pair in _links(group, name):
        network.slow_s.pop(pair, None)


async def _slow_disk(group: Group, fault: Fault) -> None:
    host = group.site.hosts[_of(group.controllers + group.brokers, fault)]
    host.disk_delay = 10.0 * (1 + fault.target)
    await asyncio.sleep(fault.lasts_s)
    host.disk_delay = 1.0


async def _rot(group: Group, fault: Fault) -> None:
    """Replicas copy a rotten record, and one of them is elected."""
    master = _master(group, fault)
    await disk_faults.flip_bit(group, master, fault.target)
    others = [name for name in group.brokers if name != master]
    await disk_faults.replace_disks_in_turn(group, others, 0.2)
    await _down(group, [master], fault.lasts_s)


Execute = Callable[[Group, Fault], Awaitable[None]]

ORDINARY: dict[str, Execute] = {
    "kill a broker": lambda group, fault: _down(group, [_of(group.brokers, fault)], fault.lasts_s),
    "kill the master": lambda group, fault: _down(group, [_master(group, fault)], fault.lasts_s),
    "kill all brokers": lambda group, fault: _down(group, group.brokers, fault.lasts_s),
    "kill a controller": lambda group, fault: _down(group, [_of(group.controllers, fault)], fault.lasts_s),
    "kill the controllers": lambda group, fault: _down(group, group.controllers, fault.lasts_s),
    "kill the nameserver": lambda group, fault: _down(group, [group.nameserver], fault.lasts_s),
    "kill a client": lambda group, fault: _down(group, [_of(group.clients, fault)], fault.lasts_s),
    "stop a broker": lambda group, fault: _stop(group, _of(group.brokers, fault), fault.lasts_s),
    "stop the master": lambda group, fault: _stop(group, _master(group, fault), fault.lasts_s),
    "a broker loses power": lambda group, fault: _power(group, [_of(group.brokers, fault)], fault.lasts_s),
    "the master loses power": lambda group, fault: _power(group, [_master(group, fault)], fault.lasts_s),
    "a controller loses power": lambda group, fault: _power(
        group, [_of(group.controllers, fault)], fault.lasts_s
    ),
    "the site loses power": lambda group, fault: _power(group, group.members, fault.lasts_s),
    "pause a broker": lambda group, fault: _pause(group, [_of(group.brokers, fault)], fault.lasts_s),
    "pause the master": lambda group, fault: _pause(group, [_master(group, fault)], fault.lasts_s),
    "pause the controllers": lambda group, fault: _pause(group, group.controllers, fault.lasts_s),
    "cut a host off": lambda group, fault: _cut(
        group, _links(group, _of(group.members, fault)), fault.lasts_s
    ),
    "cut the master off": lambda group, fault: _cut(
        group, _links(group, _master(group, fault)), fault.lasts_s
    ),
    "cut one way": lambda group, fault: _cut(
        group, _links(group, _of(group.members, fault))[::2], fault.lasts_s
    ),
    "cut a link": lambda group, fault: _cut(
        group,
        [pair for pair in _links(group, _of(group.brokers, fault)) if _of(group.members, fault) in pair],
        fault.lasts_s,
    ),
    "slow links": _slow_link,
    "slow disk": _slow_disk,
}
DISK_FAULTS: dict[str, Execute] = {
    "a disk is replaced": lambda group, fault: disk_faults.replace_disk(
        group, _of(group.brokers, fault), fault.lasts_s
    ),
    "a volume is restored": lambda group, fault: disk_faults.restore_volume(
        group, _of(group.brokers, fault), fault.lasts_s, alone=False
    ),
    "a volume is restored, and starts first": lambda group, fault: disk_faults.restore_volume(
        group, _of(group.brokers, fault), fault.lasts_s, alone=True
    ),
    "a volume is cloned": lambda group, fault: disk_faults.clone_volume(
        group, _of(group.brokers, fault), fault.lasts_s
    ),
    "files are lost": lambda group, fault: disk_faults.lose_files(
        group, _of(group.brokers, fault), fault.lasts_s, fault.target
    ),
    "a bit changes": lambda group, fault: disk_faults.flip_bit(
        group, _of(group.brokers, fault), fault.target
    ),
    "a bit changes, and disks are replaced": _rot,
}
ACTING_FAULTS: dict[str, Execute] = {
    "a slave loses power": lambda group, fault: _power(group, [_of(group.brokers[1:], fault)], fault.lasts_s),
    "the disk of a slave is replaced": lambda group, fault: disk_faults.replace_disk(
        group, _of(group.brokers[1:], fault), fault.lasts_s
    ),
    "kill the master of id 0": lambda group, fault: _down(group, group.brokers[:1], fault.lasts_s),
    "kill the other group": lambda group, fault: _down(group, group.others, fault.lasts_s),
}
FAULTS: dict[str, Execute] = {**ORDINARY, **DISK_FAULTS, **ACTING_FAULTS}
POWER_LOSSES = frozenset(("a broker loses power", "the master loses power", "the site loses power"))
SYNC_FLUSH_ONLY = frozenset(("the site loses power",))
"""With ASYNC_FLUSH nothing is promised when all machines lose power."""
