"""Helpers for scenarios: a calm world with a working group, in which only the scripted faults happen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulation.clockwork import Network, World
from tests.simulation.controller_world import AnyBroker, ControllerWorld
from tests.simulation.controllers import ControllerHost
from tests.simulation.fault_plan import Plan

STEP_MS = 5.0


def settled(**options: Any) -> ControllerWorld:
    """Three controllers and one group of three brokers: one is master and writes, all are in sync."""
    beats = {"groups": 1, "lease_ms": 600, "beat_ms": 200, "beat_timeout_ms": 1500, "beside_java": False}
    plan = Plan(1, Network(delay_max_ms=2), drift=0.0, options=beats | options)
    world = ControllerWorld(plan)
    until(world, lambda: len(members(world)) == 3 and master(world).writable, 10_000)
    until(world, lambda: len(world.acked["a"]) > 3, 2_000)
    return world


def until(world: World, holds: Callable[[], bool], within_ms: float) -> float:
    """Runs the world until a condition holds. Returns the time it took. Fails after `within_ms`."""
    began = world.now
    while not holds():
        if world.now - began > within_ms:
            world.fail(f"not within {within_ms:.0f} ms: {holds.__code__.co_names}")
        world.run(world.now + STEP_MS)
    return world.now - began


def during(world: World, for_ms: float, holds: Callable[[], bool]) -> None:
    """Runs the world for a while, and checks that a condition always holds."""
    end = world.now + for_ms
    while world.now < end:
        assert holds(), f"no longer at {world.now:.0f} ms"
        world.run(world.now + STEP_MS)


def master(world: ControllerWorld) -> AnyBroker:
    """The group's master."""
    found = world.master_of("a")
    assert found is not None, world.shown("a")
    return found


def has_master_but(world: ControllerWorld, old: AnyBroker) -> bool:
    """Whether another broker is master and may write."""
    found = world.master_of("a")
    return found is not None and found is not old and found.writable


def members(world: ControllerWorld) -> frozenset[int]:
    """The SyncStateSet."""
    group = world.tables.get("a")
    return group.sync_state_set if group is not None else frozenset()


def epoch(world: ControllerWorld) -> int:
    """The master epoch."""
    return world.tables.groups["a"].master_epoch


def replicas(world: ControllerWorld) -> list[AnyBroker]:
    """The brokers that are not master."""
    return [broker for broker in world.brokers.values() if broker is not master(world)]


def leading(world: ControllerWorld) -> ControllerHost:
    """The controller that leads, and has applied the entries of earlier leaders."""
    found = next(
        (c for c in world.controllers.values() if c.state_machine is not None and c.state_machine.leads), None
    )
    assert found is not None, "no controller leads"
    return found


def start(world: ControllerWorld, broker: AnyBroker) -> None:
    """Starts a dead broker."""
    world._start(broker, broker.life)


def ends_well(world: ControllerWorld) -> None:
    """Ends the faults, and checks that all replicas are in sync, that the master has all acknowledged writes,
    and that it writes."""
    world.frozen = False
    world.end_faults()
    world.run(world.now + 7_000)
    world.check_working()
    acked = len(world.acked["a"])
    until(world, lambda: len(world.acked["a"]) > acked, 2_000)
    assert master(world).log[: len(world.acked["a"])] == world.acked["a"]
