"""Tests failures of RocketMQ's replication (RIP-44) as short scenarios: production's decisions, logs byte by
byte. The numbers are issues of apache/rocketmq.

Besides the assertions of a test, the world checks the promises of `group_world` all the time: no confirmed
byte is missing or different, no truncated message comes back, queue offsets are dense."""

from __future__ import annotations

import pytest

from epochmq_broker.replication.ha.epochs import HADivergedError, common_prefix_end
from epochmq_controller.replica_groups.short_sets import PATIENCE_MS
from epochmq_protocol.epoch_entries import EpochEntry
from tests.simulation.clockwork import Network, ViolationError
from tests.simulation.fault_plan import Plan
from tests.simulation.group_scenarios import (
    REPLACED_MS,
    SYNCED_MS,
    ends_well,
    is_led,
    master,
    others,
    settled,
)
from tests.simulation.group_world import GroupWorld
from tests.simulation.records import HEADER, make_record, read_record
from tests.simulation.replicas import GroupBroker, Role
from tests.simulation.scenario import during, has_master_but, members, start, until

NEVER_MS = 600_000
COMPARISONS = pytest.mark.parametrize("compares_logs", [False, True], ids=["epochs", "epochs and content"])
"""Whether masters answer with the checksums of their logs. Without them only the epochs show where two logs
differ."""


def cut_off(world: GroupWorld, one: GroupBroker, for_ms: float) -> None:
    """The two-way end of all its links."""
    world.do_isolate(one.name, "both", for_ms)


def diverged(world: GroupWorld, one: GroupBroker) -> int:
    """The master writes bytes that no replica has, and is replaced. Returns the offset where they start."""
    for other in others(world):
        world._cut(one, other, 3_000)
        world._cut(other, one, 3_000)
    begins = one.log.end
    until(world, lambda: one.log.end > begins + 50, 2_000)
    end: int = max(other.log.end for other in world.brokers.values() if other is not one)
    one.die()
    return end


@COMPARISONS
def test_a_master_s_unconfirmed_tail_is_truncated(compares_logs: bool) -> None:
    """RIP-44: the log of a former master is truncated where it differs from the new one's."""
    world = settled(compares_logs=compares_logs)
    first = master(world)
    begins = diverged(world, first)
    assert first.log.end > begins
    until(world, lambda: has_master_but(world, first), REPLACED_MS)
    start(world, first)
    ends_well(world)
    assert world.event_counts["truncations"] >= 1


def test_three_replicas_diverge() -> None:
    """Each broker was master alone for a moment: three logs with three ends become one history."""
    world = settled()
    seen = set()
    for _ in range(3):
        one = master(world)
        seen.add(one.name)
        diverged(world, one)
        until(world, lambda one=one: has_master_but(world, one), REPLACED_MS)  # type: ignore[misc]
        start(world, one)
        world.cuts.clear()
        until(world, lambda: len(members(world)) >= 2, SYNCED_MS)
    assert len(seen) >= 2
    ends_well(world)
    assert world.event_counts["truncations"] >= 2


def test_a_replica_is_several_epochs_behind() -> None:
    """It was down while others were master and wrote: it gets all epochs, also those in between."""
    world = settled()
    late = others(world)[0]
    late.die()
    until(world, lambda: late.broker_id not in members(world), SYNCED_MS)
    for _ in range(3):
        one = master(world)
        one.die()
        if len([b for b in world.brokers.values() if b.up]) > 0 and len(members(world)) > 1:
            until(world, lambda one=one: has_master_but(world, one), REPLACED_MS)  # type: ignore[misc]
        start(world, one)
        until(world, lambda: len(members(world)) == 2, SYNCED_MS)
        world.run(world.now + 1_000)
    start(world, late)
    ends_well(world)
    assert late.epochs.entries == master(world).epochs.entries
    assert len(late.epochs.entries) >= 3


def test_a_master_without_a_newer_epoch_s_data() -> None:
    """9942: an epoch in which nothing was confirmed. Its master returns with what it wrote alone, and must
    not find its own epoch to agree on."""
    world = settled()
    world.sending = False
    world.run(world.now + 500)
    first = master(world)
    first.die()
    until(world, lambda: has_master_but(world, first), REPLACED_MS)
    second = master(world)
    until(world, lambda: len(members(world)) == 2, SYNCED_MS)
    for other in world.brokers.values():
        world._cut(second, other, 3_000)
        world._cut(other, second, 3_000)
    world.sending = True
    begins = second.log.end
    until(world, lambda: second.log.end > begins, 2_000)
    assert second.epochs.entries[-1].start_offset == begins
    second.die()
    until(world, lambda: has_master_but(world, second), REPLACED_MS)
    third = master(world)
    assert third.epochs.entries[-1].start_offset == begins
    assert second.epochs.entries[-1].epoch not in [entry.epoch for entry in third.epochs.entries]
    start(world, second)
    start(world, first)
    ends_well(world)
    assert world.event_counts["truncations"] >= 1


def test_the_first_master_writes_alone_into_an_empty_group() -> None:
    """9942: failovers with an empty log. No other broker has the only bytes of the first epoch."""
    given = {"groups": 1, "lease_ms": 600, "beat_ms": 200, "beat_timeout_ms": 1500, "beside_java": False}
    world = GroupWorld(Plan(1, Network(delay_max_ms=2), drift=0.0, options=given | {"min_in_sync": 1}))
    world.sending = False
    until(world, lambda: world.tables.get("a") is not None and len(members(world)) == 3, 15_000)
    for _ in range(3):
        old = master(world)
        old.die()
        until(world, lambda old=old: has_master_but(world, old), REPLACED_MS)  # type: ignore[misc]
        start(world, old)
        until(world, lambda: len(members(world)) == 3, SYNCED_MS)
    assert all(broker.log.end == 0 for broker in world.brokers.values())
    alone = master(world)
    for other in others(world):
        world._cut(alone, other, 2_000)
        world._cut(other, alone, 2_000)
    world.sending = True
    until(world, lambda: alone.log.end > 0, 2_000)
    alone.die()
    until(world, lambda: has_master_but(world, alone), REPLACED_MS)
    start(world, alone)
    ends_well(world)


def test_a_replica_is_ahead_of_its_new_master() -> None:
    """Of two replicas the one with the shorter log becomes master. The other one truncates its surplus, which
    was not confirmed."""
    world = settled()
    first, (behind, ahead) = master(world), others(world)
    world._cut(first, behind, 3_000)
    had = behind.log.end
    until(world, lambda: ahead.log.end > had, 2_000)
    world._cut(ahead, first, 3_000)
    first.die()
    assert behind.broker_id is not None
    world.do_designate("a", behind.broker_id)
    until(world, lambda: has_master_but(world, first), REPLACED_MS)
    start(world, first)
    ends_well(world)


def test_logs_that_diverge_inside_an_epoch() -> None:
    """The former master has more of the last common epoch than the new one: it truncates at the smaller
    end."""
    world = settled()
    first = master(world)
    diverged(world, first)
    own = list(first.epochs.entries)
    until(world, lambda: has_master_but(world, first), REPLACED_MS)
    second = master(world)
    theirs = second.epochs.entries
    assert own[-1] == theirs[-2]
    assert common_prefix_end(own, 0, first.log.end, theirs, second.log.end) == theirs[-1].start_offset
    start(world, first)
    ends_well(world)


def test_logs_without_a_common_epoch_are_left_alone() -> None:
    """Nothing is truncated if the epochs prove nothing: the error names both histories."""
    ours, theirs = [EpochEntry(3, 100), EpochEntry(5, 300)], [EpochEntry(4, 100), EpochEntry(6, 250)]
    with pytest.raises(HADivergedError, match=r"3 from 100, 5 from 300.*4 from 100, 6 from 250"):
        common_prefix_end(ours, 100, 400, theirs, 500)


def test_a_master_restarts_and_nobody_else_has_been_elected() -> None:
    """6609, 6703: after kill -9 the confirmed offset lay beyond the last whole record, and queues were built
    past it."""
    world = settled()
    first = master(world)
    for other in others(world):
        other.die()
    until(world, lambda: members(world) == {first.broker_id}, SYNCED_MS)
    first.confirmed_kept = first.log.end + 1000
    first.die()
    first.confirmed_kept = first.log.end + 1000
    first.log.data += b"\x00\x10half a record"
    start(world, first)
    assert first.shown is not None
    assert first.shown <= first.log.end
    until(world, lambda: first.writable, REPLACED_MS)
    ends_well(world)


def test_a_new_master_gives_no_queue_offset_twice() -> None:
    """7689: the new master gave queue offsets of messages that it had received but not confirmed."""
    world = settled()
    first, elect = master(world), others(world)[0]
    world._cut(elect, first, 3_000)
    had = elect.log.end
    until(world, lambda: elect.log.end > had, 2_000)
    assert elect.confirmed < elect.log.end
    first.die()
    assert elect.broker_id is not None
    world.do_designate("a", elect.broker_id)
    until(world, lambda: has_master_but(world, first), REPLACED_MS)
    start(world, first)
    ends_well(world)


def test_a_replica_without_a_report_confirms_nothing_and_holds_the_confirmed_offset() -> None:
    """6728, 6662: the zero of a new connection distorted the confirmed offset, and a master with one replica
    confirmed without the other member."""
    world = settled()
    first, (second, _) = master(world), others(world)
    world._cut(second, first, 1_200)
    world.run(world.now + 300)
    confirmed = first.confirm_offset
    during(world, 700, lambda: first.confirm_offset - confirmed < 200)
    ends_well(world)


def test_a_demoted_master_serves_nobody() -> None:
    """Seen on 5.3.3: after a switchover a replica followed the demoted master, which continued to serve
    it."""
    world = settled()
    first, (second, third) = master(world), others(world)
    assert second.broker_id is not None
    world.do_designate("a", second.broker_id)
    until(world, lambda: has_master_but(world, first) and first.role is Role.REPLICA, REPLACED_MS)
    assert not first.connections
    until(world, lambda: third.master_address == second.address, 2_000)
    ends_well(world)


def test_a_switchover_keeps_every_replica_in_the_set() -> None:
    """6342, and seen on 5.3.3: the set shrank to the new master, and for many seconds no send that required
    two replicas was acknowledged."""
    world = settled(min_in_sync=2)
    second = others(world)[0]
    assert second.broker_id is not None
    world.do_designate("a", second.broker_id)
    until(world, lambda: master(world) is second and second.writable, REPLACED_MS)
    acked = len(world.acknowledged["a"])
    assert until(world, lambda: len(world.acknowledged["a"]) > acked, 3_000) < 1_500
    ends_well(world)


def test_a_lost_response_to_an_expansion() -> None:
    """5663: the master acknowledges by the union of the known and the proposed set."""
    world = settled()
    first, (second, third) = master(world), others(world)
    third.die()
    until(world, lambda: len(members(world)) == 2, SYNCED_MS)
    start(world, third)
    sync = first.sync_state
    assert sync is not None
    until(world, lambda: third.broker_id in (sync.proposed or ()), SYNCED_MS)
    for controller in world.controllers.values():
        world._cut(controller, first, 60_000)
    until(world, lambda: len(members(world)) == 3, 2_000)
    assert third.broker_id not in sync.members
    world._cut(third, first, 60_000)
    world._cut(first, third, 60_000)
    first.die()
    second.die()
    until(world, lambda: master(world) is third and third.writable, 2 * REPLACED_MS)
    ends_well(world)


def alone(world: GroupWorld) -> tuple[GroupBroker, list[GroupBroker]]:
    """Both replicas end, and the set shrinks to the master, which acknowledges nothing then. Returns the
    master and the others."""
    first, rest = master(world), others(world)
    for one in rest:
        one.die()
    until(world, lambda: members(world) == {first.broker_id}, 2 * SYNCED_MS)
    before = len(world.acknowledged["a"])
    during(world, 1_000, lambda: len(world.acknowledged["a"]) == before)
    return first, rest


def test_a_replica_that_left_a_set_too_small_to_acknowledge_is_elected() -> None:
    """The last member ends for good. The others have every acknowledged message, because none came later."""
    world = settled(min_in_sync=2)
    first, rest = alone(world)
    assert world.tables.groups["a"].eligible_members, "one of them left when the set became too small"
    first.die()
    for one in rest:
        start(world, one)
    until(world, lambda: has_master_but(world, first), REPLACED_MS)
    before = len(world.acknowledged["a"])
    until(world, lambda: len(world.acknowledged["a"]) > before, SYNCED_MS)
    assert not world.tables.groups["a"].eligible_members
    start(world, first)
    ends_well(world)


def test_a_master_that_reaches_the_controllers_and_no_replica_gives_way() -> None:
    world = settled(min_in_sync=2)
    first, rest = master(world), others(world)
    for one in rest:
        world._cut(first, one, NEVER_MS)
        world._cut(one, first, NEVER_MS)
    until(world, lambda: has_master_but(world, first), 2 * SYNCED_MS + 2 * PATIENCE_MS)
    before = len(world.acknowledged["a"])
    until(world, lambda: len(world.acknowledged["a"]) > before, SYNCED_MS)
    assert first.broker_id not in members(world)
    ends_well(world)


def test_a_set_that_is_large_enough_leaves_no_other_replica_eligible() -> None:
    world = settled(min_in_sync=2)
    first, (second, third) = alone(world)
    start(world, second)
    until(world, lambda: members(world) == {first.broker_id, second.broker_id}, SYNCED_MS)
    before = len(world.acknowledged["a"])
    until(world, lambda: len(world.acknowledged["a"]) > before, SYNCED_MS)
    first.die()
    second.die()
    start(world, third)
    during(world, REPLACED_MS, lambda: world.master_of("a") is None or not is_led(world))
    start(world, first)
    start(world, second)
    ends_well(world)


def test_the_last_member_is_elected_again_when_it_comes_back_first() -> None:
    world = settled(min_in_sync=2)
    first, rest = alone(world)
    first.die()
    world.run(world.now + 1_000)
    start(world, first)
    until(world, lambda: is_led(world), REPLACED_MS)
    for one in rest:
        start(world, one)
    ends_well(world)


def test_a_replica_that_reports_too_much_is_disconnected() -> None:
    """1155, 3015: a garbage offset satisfied synchronous replication."""
    world = settled()
    first = master(world)
    link = first.connections[0]
    link._heard(link.position + 1_000)
    assert link not in first.connections
    ends_well(world)


def test_the_world_detects_a_difference_below_the_confirmed_offset() -> None:
    """Tests the checks themselves: a difference below the confirmed offset is found."""
    world = settled()
    second = others(world)[0]
    first = read_record(second.log.data, 0)
    assert first is not None
    second.log.data[: first.end] = make_record(first.queue, first.offset, 99, first.end - HEADER.size)
    with pytest.raises(ViolationError, match="differs"):
        world.check_confirmed(second, second.confirm_offset)
