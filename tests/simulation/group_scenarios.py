"""Steps of the scenarios of simulated groups."""

from __future__ import annotations

from typing import Any

from tests.simulation.clockwork import Network
from tests.simulation.fault_plan import Plan
from tests.simulation.group_world import GroupWorld
from tests.simulation.replicas import GroupBroker
from tests.simulation.scenario import master as master_of
from tests.simulation.scenario import members, replicas, until

REPLACED_MS = 5_000
SYNCED_MS = 8_000


def settled(**options: Any) -> GroupWorld:
    """Starts one group of three brokers: one is master and writes, all are in sync."""
    given = {"groups": 1, "lease_ms": 600, "beat_ms": 200, "beat_timeout_ms": 1500, "beside_java": False}
    plan = Plan(1, Network(delay_max_ms=2), drift=0.0, options=given | {"min_in_sync": 1} | options)
    world = GroupWorld(plan)
    until(world, lambda: len(members(world)) == 3 and master(world).writable, 15_000)
    until(world, lambda: len(world.acknowledged["a"]) > 3, 2_000)
    return world


def master(world: GroupWorld) -> GroupBroker:
    """The group's master by the tables."""
    found = master_of(world)
    assert isinstance(found, GroupBroker)
    return found


def is_led(world: GroupWorld) -> bool:
    """Whether the group has a master, which may write."""
    found = world.master_of("a")
    return found is not None and found.writable


def others(world: GroupWorld) -> list[GroupBroker]:
    """The brokers that are not master."""
    return [broker for broker in replicas(world) if isinstance(broker, GroupBroker)]


def ends_well(world: GroupWorld) -> None:
    """All are in sync, logs are equal, nothing acknowledged is missing, consumers have everything."""
    world.sending = True
    world.end_faults()
    until(world, lambda: len(members(world)) == 3 and is_led(world), SYNCED_MS)
    acked = len(world.acknowledged["a"])
    until(world, lambda: len(world.acknowledged["a"]) > acked, 3_000)
    world.sending = False
    world.run(world.now + 3_000)
    world.check_group("a")
