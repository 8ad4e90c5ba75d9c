"""Tests groups whose controllers are away: the master writes by the promises of its replicas, and no other
broker is master meanwhile.

Besides the assertions of a test, the world checks that at most one master writes, and the promises of
`group_world`."""

from __future__ import annotations

from collections.abc import Iterable

from epochmq_broker.membership.controlled.write_lease import WriteRight
from epochmq_controller.replica_groups.requests import ElectMasterRequest
from tests.simulation.clockwork import Host
from tests.simulation.group_scenarios import SYNCED_MS, ends_well, master, others, settled
from tests.simulation.group_world import GroupWorld
from tests.simulation.replicas import GroupBroker
from tests.simulation.scenario import during, epoch, has_master_but, leading, members, start, until

AWAY_MS = 15_000
PAUSE_MAX_MS = 500
"""The longest time without an acknowledged message while nothing but the controllers is away."""


def cut(world: GroupWorld, one: Host, others_: Iterable[Host], for_ms: float) -> None:
    """A machine and others do not reach each other for a while."""
    for other in others_:
        world._cut(one, other, for_ms)
        world._cut(other, one, for_ms)


def right(broker: GroupBroker) -> WriteRight:
    """What permits a broker to write."""
    return broker.lease.right(broker.clock())


def acknowledges_all_the_time(world: GroupWorld, for_ms: float) -> None:
    """Runs the world; the group acknowledges messages without a long pause."""
    end = world.now + for_ms
    while world.now < end:
        known = len(world.acknowledged["a"])
        until(world, lambda known=known: len(world.acknowledged["a"]) > known, PAUSE_MAX_MS)  # type: ignore[misc]


def test_a_group_goes_on_while_all_controllers_are_away() -> None:
    """The master keeps its place, and asks for nothing but promises."""
    world = settled()
    first, of_epoch = master(world), epoch(world)
    world.do_stop_controllers(AWAY_MS)
    until(world, lambda: right(first) is WriteRight.PROMISES, 1_000)
    acknowledges_all_the_time(world, AWAY_MS - 1_000)
    assert right(first) is WriteRight.PROMISES
    until(world, lambda: right(first) is WriteRight.LEASE, 3_000)
    assert (master(world), epoch(world)) == (first, of_epoch)
    assert first.lease.lapses == 0
    ends_well(world)


def test_a_group_goes_on_while_all_controllers_are_down() -> None:
    """They lose what they had in memory."""
    world = settled()
    first = master(world)
    for controller in world.controllers.values():
        controller.die()
    acknowledges_all_the_time(world, AWAY_MS)
    for controller in world.controllers.values():
        world._start(controller, controller.life)
    until(world, lambda: right(first) is WriteRight.LEASE, 5_000)
    assert master(world) is first
    ends_well(world)


def test_a_master_that_dies_meanwhile_is_replaced_when_the_controllers_return() -> None:
    """Before that no broker becomes master."""
    world = settled()
    first = master(world)
    world.do_stop_controllers(AWAY_MS)
    world.run(world.now + 2_000)
    first.die()
    during(world, AWAY_MS - 2_100, lambda: not any(one.writable for one in others(world)))
    took_ms = until(world, lambda: has_master_but(world, first), 5_000)
    assert took_ms < 2_500
    start(world, first)
    ends_well(world)


def test_a_master_whose_replica_dies_meanwhile_waits_for_the_controllers() -> None:
    """Only they can remove the replica from the SyncStateSet."""
    world = settled()
    first = master(world)
    dead = others(world)[0]
    world.do_stop_controllers(AWAY_MS)
    world.run(world.now + 2_000)
    dead.die()
    until(world, lambda: not first.writable, 500)
    during(world, 5_000, lambda: not first.writable)
    until(world, lambda: first.writable and len(members(world)) == 2, AWAY_MS)
    assert master(world) is first
    start(world, dead)
    ends_well(world)


def test_a_master_that_reaches_its_replicas_only_is_replaced() -> None:
    """It stops as soon as the replicas hear of its successor, which takes over when it has stopped."""
    world = settled()
    first = master(world)
    cut(world, first, world.controllers.values(), AWAY_MS)
    until(world, lambda: right(first) is WriteRight.PROMISES, 1_000)
    until(world, lambda: epoch(world) > 1, 6_000)
    until(world, lambda: not first.writable, 400)
    until(world, lambda: has_master_but(world, first), 1_500)
    ends_well(world)


def test_a_fenced_master_s_successor_does_not_wait() -> None:
    """The former master says that it has stopped."""
    world = settled()
    first, of_epoch = master(world), epoch(world)
    first.fence()
    until(world, lambda: epoch(world) > of_epoch, 1_000)
    second = master(world)
    assert second is not first
    took_ms = until(world, lambda: second.writable, 1_000)
    assert took_ms < 150
    ends_well(world)


def test_a_replica_that_promised_and_restarted_waits() -> None:
    """Its new process does not know what the former one has promised."""
    world, second = with_a_silent_master()
    second.die()
    start(world, second)
    until(world, lambda: second.writable, 3_000)
    ends_well(world)


def test_a_promise_is_kept_while_the_former_master_is_silent() -> None:
    """For as long as the former master may count on it."""
    world, second = with_a_silent_master()
    until(world, lambda: second.writable, 1_000)
    ends_well(world)


def test_a_promise_is_kept_although_the_clock_leaps() -> None:
    """A leap does not count as time."""
    world, second = with_a_silent_master()
    world.do_leap(second.name, 1_000)
    until(world, lambda: second.writable, 1_000)
    ends_well(world)


def with_a_silent_master() -> tuple[GroupWorld, GroupBroker]:
    """A world in which the master writes by promises; its successor has just been elected, and nobody
    reaches the former master any more."""
    world = settled()
    first, of_epoch = master(world), epoch(world)
    cut(world, first, world.controllers.values(), AWAY_MS)
    until(world, lambda: epoch(world) > of_epoch, 6_000)
    assert right(first) is WriteRight.PROMISES
    cut(world, first, others(world), AWAY_MS)
    second = master(world)
    assert second is not first
    cut(world, first, [second], AWAY_MS)
    return world, second


def test_a_proposed_member_must_promise_too() -> None:
    """The controllers have accepted the proposal and the master does not know it. The new member is
    elected; the master and the other replica reach each other only."""
    world = settled()
    first = master(world)
    stays, joins = others(world)
    joins.die()
    until(world, lambda: joins.broker_id not in members(world), SYNCED_MS)
    start(world, joins)
    until(world, lambda: joins.broker_id in (proposed(first) or ()), SYNCED_MS)
    for controller in world.controllers.values():
        world._cut(controller, first, AWAY_MS)
    until(world, lambda: joins.broker_id in members(world), 2_000)
    cut(world, joins, [first, stays], AWAY_MS)
    cut(world, stays, world.controllers.values(), AWAY_MS)
    until(world, lambda: right(first) is not WriteRight.LEASE, 2_000)
    elect(world, joins)
    until(world, lambda: joins.writable, 5_000)
    assert not first.writable
    ends_well(world)


def test_in_a_set_that_is_too_small_promises_do_not_count() -> None:
    """A replica that has left the set may be elected, and has promised nothing."""
    world = settled(min_in_sync=3)
    first = master(world)
    stays, left = others(world)
    left.die()
    until(world, lambda: left.broker_id not in accepted(first), SYNCED_MS)
    for one in (first, stays):
        cut(world, one, [left, *world.controllers.values()], AWAY_MS)
    start(world, left)
    until(world, lambda: left.writable, 8_000)
    assert not first.writable
    ends_well(world)


def accepted(broker: GroupBroker) -> frozenset[int]:
    """The set of a master that the controllers have accepted, as it knows."""
    assert broker.sync_state is not None
    return broker.sync_state.members


def proposed(broker: GroupBroker) -> frozenset[int] | None:
    """The set that a master has proposed."""
    return broker.sync_state.proposed if broker.sync_state is not None else None


def elect(world: GroupWorld, broker: GroupBroker) -> None:
    """A person orders the election of a broker."""
    leader = leading(world)
    request = ElectMasterRequest("a", broker.broker_id or 0, designate=True)
    world.call(broker, leader, leader.asked, lambda _: None, request)
