"""Failures of RocketMQ's controllers, each as a scenario for ours. The numbers are issues of apache/rocketmq.
Beside the assertions of a test, the world checks all promises of `controller_world` all the time: one writing
master, all acknowledged writes in an elected master, and epochs that never decrease."""

from __future__ import annotations

import pytest

from epochmq_dledger.core.types import Proposal
from epochmq_dledger.peer_addresses import parse_peers
from tests.simulation.scenario import (
    during,
    ends_well,
    epoch,
    has_master_but,
    leading,
    master,
    members,
    replicas,
    settled,
    start,
    until,
)

REPLACED_MS = 4_000
"""A master that vanished is replaced within this time."""


def test_an_expansion_is_committed_and_its_response_lost() -> None:
    """5663: the old set continued to acknowledge alone, and the new member was elected without the data."""
    world = settled()
    first, (second, third) = master(world), replicas(world)
    third.die()
    until(world, lambda: len(members(world)) == 2, 5_000)
    start(world, third)
    until(world, lambda: first.altering and third.broker_id in first.maybe - first.members, 5_000)
    for controller in world.controllers.values():
        world._cut(controller, first, 60_000)
    until(world, lambda: third.broker_id in members(world), 2_000)
    assert third.broker_id not in first.members
    world._cut(third, first, 60_000)
    has = len(third.log)
    during(world, 500, lambda: len(world.acked["a"]) <= has)
    first.die()
    second.die()
    until(world, lambda: world.master_of("a") is third, REPLACED_MS)
    ends_well(world)


def test_a_removal_is_committed_and_its_response_lost() -> None:
    """5663, the other way: a master that does not know whether a member is out still waits for it."""
    world = settled()
    first, (_, third) = master(world), replicas(world)
    third.die()
    until(world, lambda: first.altering, 5_000)
    for controller in world.controllers.values():
        world._cut(controller, first, 60_000)
    before = len(world.acked["a"])
    during(world, 500, lambda: len(world.acked["a"]) == before)
    ends_well(world)


def test_a_master_and_a_replica_are_cut_off_together() -> None:
    """6662: the isolated master continued to confirm what one replica had, beside the new master."""
    world = settled()
    first, (second, third) = master(world), replicas(world)
    for cut_off in (first, second):
        for other in (*world.controllers.values(), third):
            world._cut(cut_off, other, 20_000)
            world._cut(other, cut_off, 20_000)
    until(world, lambda: has_master_but(world, first), REPLACED_MS)
    assert master(world) is third
    during(world, 5_000, lambda: not first.writable)
    ends_well(world)


def test_a_master_is_stopped_and_goes_on() -> None:
    """Seen on 5.3.3: after SIGSTOP of the master no client could send for 24 s. Also 6508 and 6706: a paused
    master must not serve before the controllers have confirmed its role again."""
    world = settled()
    first = master(world)
    world.do_pause(first.name, 10_000)
    until(world, lambda: has_master_but(world, first), REPLACED_MS)
    until(world, lambda: not first.paused, 11_000)
    during(world, 2_000, lambda: not first.writable)
    ends_well(world)


def test_a_switchover_is_short() -> None:
    """Seen on 5.3.3: 9.9 s and 14.3 s from electMaster's answer to the first acknowledged send, because the
    set had shrunk to one."""
    world = settled()
    first, (second, _) = master(world), replicas(world)
    assert second.broker_id is not None
    world.do_designate("a", second.broker_id)
    until(world, lambda: master(world) is second, 1_500)
    acked = len(world.acked["a"])
    until(world, lambda: len(world.acked["a"]) > acked, 1_000)
    assert not first.writable
    until(world, lambda: len(members(world)) == 3, 3_000)
    ends_well(world)


@pytest.mark.parametrize("how", ["with its connections closed", "in silence"])
@pytest.mark.parametrize(
    "state",
    [
        "all controllers run",
        "a follower is down",
        "the leader dies with it",
        "the leader died before",
        "the leader dies while it waits for the lease",
        "all controllers have just started",
        "leadership is handed over",
    ],
)
def test_a_dead_master_is_replaced_in_every_state_of_the_controllers(state: str, how: str) -> None:
    """5712, 5009, 9717, 10416, 10875: after a controller switch the detection was dead, the scan never ran,
    or the dead master was hidden."""
    world = settled()
    first, leader = master(world), leading(world)
    followers = [one for one in world.controllers.values() if one is not leader]
    if state == "a follower is down":
        world.stop_peer(followers[0], 20_000)
    elif state == "the leader died before":
        world.stop_peer(leader, 20_000)
        until(
            world,
            lambda: any(c.state_machine is not None and c.state_machine.leads for c in followers),
            3_000,
        )
    elif state == "all controllers have just started":
        for controller in world.controllers.values():
            world.stop_peer(controller, 50)
    elif state == "leadership is handed over":
        world.do_transfer("leader", followers[1].name)
    if how == "in silence":
        world.do_isolate(first.name, "both", 60_000)
    first.die()
    if state == "the leader dies with it":
        world.stop_peer(leader, 20_000)
    elif state == "the leader dies while it waits for the lease":
        world.run(world.now + 300)
        world.stop_peer(leader, 20_000)
    until(world, lambda: has_master_but(world, first), 2 * REPLACED_MS)
    ends_well(world)


def test_an_election_without_a_candidate_is_retried() -> None:
    """6382: a failed election was never retried. Here no broker asks for one, either."""
    world = settled()
    other = replicas(world)[0]
    for broker in world.brokers.values():
        broker.elect_me = lambda: None
        broker.die()
    until(world, lambda: world.tables.groups["a"].master_id is None, 5_000)
    world.run(world.now + 5_000)
    start(world, other)
    until(world, lambda: other.writable and world.master_of("a") is other, 5_000)


def test_a_replica_s_death_causes_no_election() -> None:
    """8380: the death of a follower led to an election."""
    world = settled()
    first, (second, third) = master(world), replicas(world)
    elections, before = world.elections, epoch(world)
    second.die()
    world.do_isolate(third.name, "both", 5_000)
    during(world, 5_000, lambda: first.writable)
    assert (world.elections, epoch(world)) == (elections, before)
    ends_well(world)


def test_the_same_master_gets_a_new_epoch() -> None:
    """6344, 9689: an epoch bump of the same master rolled offsets back, and it could not find the epoch it
    was sending. A master that fences itself while no other replica lives is elected again."""
    world = settled()
    first, before = master(world), epoch(world)
    for broker in replicas(world):
        broker.die()
    until(world, lambda: members(world) == {first.broker_id}, 5_000)
    log = list(first.log)
    first.fence()
    until(world, lambda: epoch(world) == before + 1 and first.writable, 3_000)
    assert master(world) is first
    assert first.log[: len(log)] == log
    ends_well(world)


def test_elections_over_an_empty_log() -> None:
    """9942: fail-overs with an empty log left epochs that did not fit together."""
    world = settled()
    world.frozen = True
    epochs = [epoch(world)]
    for _ in range(4):
        old = master(world)
        old.die()
        until(world, lambda old=old: has_master_but(world, old), REPLACED_MS)  # type: ignore[misc]
        epochs.append(epoch(world))
        start(world, old)
        world.frozen = False
        until(world, lambda: len(members(world)) == 3, 5_000)
        world.frozen = True
    assert epochs == sorted(set(epochs))
    world.frozen = False
    ends_well(world)


def test_a_master_that_only_the_leading_controller_cannot_hear_is_replaced_once() -> None:
    """4800: an asymmetric partition to the controllers' leader. It alone grants leases, so that the master
    has to be replaced; but once, and without two that write."""
    world = settled()
    first, elections = master(world), world.elections
    world._cut(first, leading(world), 15_000)
    until(world, lambda: has_master_but(world, first), 2 * REPLACED_MS)
    world.run(world.now + 8_000)
    assert world.elections == elections + 1
    ends_well(world)


def test_a_master_that_does_not_hear_the_leading_controller_writes_no_more() -> None:
    """4800, the other way: heartbeats reach the controller, but its grants do not arrive. The controllers
    must elect no other broker; as soon as grants arrive again, the same master continues."""
    world = settled()
    first, elections = master(world), world.elections
    world._cut(leading(world), first, 5_000)
    until(world, lambda: not first.writable, 1_000)
    until(world, lambda: first.writable, 6_000)
    assert world.elections == elections
    ends_well(world)


def test_a_replica_keeps_its_identity_at_another_address() -> None:
    """5745, 4808, 5989: the address was the identity."""
    world = settled()
    moved, known = replicas(world)[0], len(world.tables.groups["a"].replicas)
    broker_id = moved.broker_id
    assert broker_id is not None
    moved.die()
    moved.address = f"{moved.name}/elsewhere"
    start(world, moved)
    group = world.tables.groups["a"]
    until(world, lambda: group.replicas[broker_id].address == moved.address, 5_000)
    until(world, lambda: len(moved.log) >= len(world.acked["a"]) > 0, 5_000)
    until(world, lambda: len(members(world)) == 3, 5_000)
    assert moved.broker_id == broker_id
    assert len(group.replicas) == known
    others = [broker for broker in world.brokers.values() if broker is not moved]
    for broker in others:
        broker.die()
    until(world, lambda: master(world) is moved and moved.writable, 2 * REPLACED_MS)
    ends_well(world)


def test_all_brokers_register_again() -> None:
    """4857, 6873: a broker could not register a second time. Here the answers to their requests get lost,
    too, so that they ask again for what they have been given."""
    world = settled()
    ids = {broker.name: broker.broker_id for broker in world.brokers.values()}
    for broker in world.brokers.values():
        broker.die()
    world.network = world.network._replace(drop=0.5)
    for broker in world.brokers.values():
        start(world, broker)
    world.run(world.now + 6_000)
    ends_well(world)
    assert ids == {broker.name: broker.broker_id for broker in world.brokers.values()}


def test_new_leaders_know_who_is_alive() -> None:
    """10812: heartbeats went to one controller only, and the next leader took the living for dead."""
    world = settled()
    elections, first = world.elections, master(world)
    for _ in range(3):
        leader = leading(world)
        target = next(one for one in world.controllers if one != leader.name)
        world.do_transfer("leader", target)
        until(world, lambda: leading_name(world) == target, 3_000)  # noqa: B023
        during(world, 2_000, lambda: world.elections == elections)
    assert master(world) is first
    ends_well(world)


def leading_name(world: object) -> str | None:
    """The leading controller's name, None while there is none."""
    try:
        return leading(world).name  # type: ignore[arg-type]
    except AssertionError:
        return None


def test_an_entry_that_is_no_event_is_ignored() -> None:
    """7219: one exception killed the periodic work for ever."""
    world = settled()
    first, leader = master(world), leading(world)
    leader.submit(Proposal(1 << 60, (b"\x00\x01{not json", b"\x7f\xff", b"\x00")))
    garbage, peers = leader.log.end_index + 3, world.controllers.values()
    until(world, lambda: all(peer.applied >= garbage for peer in peers), 3_000)
    first.die()
    until(world, lambda: has_master_but(world, first), REPLACED_MS)
    ends_well(world)


def test_an_unreachable_controller_blocks_no_heartbeats() -> None:
    """5929: heartbeats to a controller that does not answer held up those to the others."""
    world = settled()
    first, leader = master(world), leading(world)
    follower = next(one for one in world.controllers.values() if one is not leader)
    world.do_isolate(follower.name, "both", 20_000)
    during(world, 10_000, lambda: first.writable)
    ends_well(world)


def test_hosts_with_dashes_are_peers() -> None:
    """1443: a dash in a peer's host broke DLedger peers."""
    assert parse_peers("n0-my-host-1:40911;n1-10.0.0.1:40912") == {
        "n0": "my-host-1:40911",
        "n1": "10.0.0.1:40912",
    }
