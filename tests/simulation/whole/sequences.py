"""Sequences of faults that single drawn faults meet too rarely.

Each of them has lost acknowledged messages, or stopped a healthy group, in an earlier release. A seed chooses
one; who is hit and when is drawn.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from itertools import product

from epochmq.client import Producer
from tests.simulation.whole.acting import OTHER, ActingGroup
from tests.simulation.whole.group import PROBE, Group
from tests.simulation.whole.hosts import Site
from tests.simulation.whole.workload import SEND_TIMEOUT_MS, Book, PromiseBrokenError, send

SLOW_DISK = 600.0
"""A sync takes some hundred milliseconds."""
HANGING_DISK = 5000.0
"""It takes some seconds."""
REPLACED_WITHIN_S = 20.0
LARGE_BYTES = 300_000
"""The body of a message that takes three seconds to replicas."""

Sequence = Callable[[Site, random.Random], Awaitable[Group]]


def flush(dice: random.Random) -> str:
    """A flushDiskType."""
    return dice.choice(("SYNC_FLUSH", "ASYNC_FLUSH"))


async def a_peer_forgets(site: Site, dice: random.Random) -> Group:
    """A peer of a DLedger group is away. Another one acknowledges messages and forgets them: its disk is
    replaced, or it loses its power before it has flushed them. It and the first one must not elect a leader
    while the third one hangs, which alone has the messages."""
    kind = flush(dice)
    group = Group(site, brokers=3, controllers=0, settings={"flushDiskType": kind}, dledger=True)
    await group.begin()
    await asyncio.sleep(0.5 + dice.random())
    leader = _master(group)
    away, forgets = dice.sample([name for name in group.brokers if name != leader], 2)
    with group.kept_down([away]):
        site.kill(away)
        if kind == "ASYNC_FLUSH":
            site.hosts[forgets].disk_delay = HANGING_DISK  # a peer flushes after 10 ms otherwise
        await asyncio.sleep(1.0 + 2 * dice.random())
        with group.kept_down([forgets]):
            if kind == "SYNC_FLUSH":
                site.kill(forgets)
                site.hosts[forgets].disk.empty()
            else:
                site.power_off(forgets)
                await asyncio.sleep(0.1)
                site.power_on(forgets)
            site.hosts[forgets].disk_delay = 1.0
            site.pause(leader)
    await asyncio.sleep(4.0 + 4 * dice.random())
    if site.processes[leader].alive:
        site.resume(leader)
    return group


async def a_replica_is_refused(site: Site, dice: random.Random) -> Group:
    """A replica outside the SyncStateSet reaches the master, but not the controllers, and another one dies:
    the master removes the dead one, although the controllers reject the other one."""
    settings = {"flushDiskType": flush(dice), "inSyncReplicas": 1, "minInSyncReplicas": 1}
    group = Group(site, brokers=3, controllers=3, settings=settings)
    await group.begin()
    await asyncio.sleep(0.5 + dice.random())
    master = _master(group)
    refused, dies = dice.sample([name for name in group.brokers if name != master], 2)
    with site.network.separated(_links([refused], group.controllers)):
        with site.network.separated(_links([refused], [master])):
            await asyncio.sleep(8.0)
        await asyncio.sleep(2.0 + 2 * dice.random())
        with group.kept_down([dies]):
            site.kill(dies)
            await _check_accepts(group, "a replica is down, and the controllers do not hear another one")
    return group


async def a_master_reaches_no_replica(site: Site, dice: random.Random) -> Group:
    """A master that reaches controllers and clients, but no replica, gives way to one that does."""
    group = Group(site, brokers=3, controllers=3, settings={"flushDiskType": flush(dice)})
    await group.begin()
    await asyncio.sleep(0.5 + dice.random())
    master = _master(group)
    replicas = [name for name in group.brokers if name != master]
    with site.network.separated(_links([master], replicas)):
        await asyncio.sleep(10.0)
        await _check_accepts(group, "the master reaches no replica, and the replicas reach each other")
    return group


async def the_other_group_loses_power(site: Site, dice: random.Random) -> Group:
    """What has left an acting master for another group is as safe there as what clients send: it survives a
    power loss of a broker that flushes before it acknowledges."""
    group = ActingGroup(site, settings={"flushDiskType": flush(dice)})
    group.other_settings = {"flushDiskType": "SYNC_FLUSH"}
    await group.begin()
    await asyncio.sleep(8.0)
    with group.kept_down([group.master]):
        site.kill(group.master)
        await group.check_acting()
        site.hosts[OTHER].disk_delay = SLOW_DISK
        await asyncio.sleep(1.0 + 4 * dice.random())
        with group.kept_down([OTHER]):
            site.power_off(OTHER)
            await asyncio.sleep(0.5)
            site.power_on(OTHER)
            site.hosts[OTHER].disk_delay = 1.0
        await asyncio.sleep(8.0)
    await group.wait_roles()
    return group


async def a_broker_loses_its_tail(site: Site, dice: random.Random) -> Group:
    """A broker that does not flush before it acknowledges loses its power, and the end of its log. Nothing is
    promised of what was lost, but consumers get what is acknowledged afterwards."""
    settings = {
        "flushDiskType": "ASYNC_FLUSH",
        "flushConsumerOffsetInterval": 500,
        "flushIntervalCommitLog": 4000,
    }
    group = Group(site, brokers=1, controllers=0, settings=settings)
    await group.begin()
    await asyncio.sleep(4.0 + 4 * dice.random())
    broker = group.brokers[0]
    with group.kept_down([broker, *group.clients]):
        site.power_off(broker)
        for name in group.clients:
            site.kill(name)
        await asyncio.sleep(0.5)
        site.power_on(broker)
        group.book = Book(begins_anywhere=True)
    await asyncio.sleep(5.0)
    return group


async def a_record_is_half_copied(site: Site, dice: random.Random) -> Group:
    """All brokers die while the replicas have a part of a large record. At their start they drop the part,
    which was never confirmed, and one of them is elected."""
    settings = {
        "flushDiskType": flush(dice),
        "mappedFileSizeCommitLog": 2 << 20,
        "maxMessageSize": 1 << 20,
        "haFlowControlEnable": True,
        "maxHaTransferByteInSecond": 100_000,
    }
    group = Group(site, brokers=3, controllers=3, settings=settings)
    await group.begin()
    await asyncio.sleep(0.5 + dice.random())
    master, body = _master(group), dice.randbytes(LARGE_BYTES)

    async def send_large() -> None:
        await send(site, Producer(group.nameservers, "large", timeout_ms=SEND_TIMEOUT_MS), body, group.book)

    site.start("large", send_large, on=site.host(PROBE).name)
    await asyncio.sleep(0.5 + 1.5 * dice.random())
    with group.kept_down([master]):
        for name in group.brokers:
            site.kill(name)
        await _check_accepts(group, "the master is down, and two replicas live")
    return group


SEQUENCES: tuple[Sequence, ...] = (
    a_peer_forgets,
    a_replica_is_refused,
    a_master_reaches_no_replica,
    the_other_group_loses_power,
    a_broker_loses_its_tail,
    a_record_is_half_copied,
)


async def run(site: Site) -> Group:
    """Runs the sequence of the site's seed."""
    sequence = SEQUENCES[site.seed % len(SEQUENCES)]
    site.trace.tell(sequence.__name__)
    return await sequence(site, random.Random(site.seed * 43 + 9))


def _master(group: Group) -> str:
    masters = group.masters()
    return masters[0] if masters else group.brokers[0]


def _links(ones: list[str], others: list[str]) -> list[tuple[str, str]]:
    return [pair for one, other in product(ones, others) for pair in ((one, other), (other, one))]


async def _check_accepts(group: Group, why: str) -> None:
    if not await group.accepts(REPLACED_WITHIN_S):
        raise PromiseBrokenError(
            f"{why}, and no message was acknowledged within {REPLACED_WITHIN_S:g} s: {group.describe()}"
        )
