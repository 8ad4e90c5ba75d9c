"""Tests power losses as short scenarios, with SYNC_FLUSH and with ASYNC_FLUSH. Besides the assertions of a
test, the world checks the promises of `group_world` and `disk_faults` all the time.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.group_scenarios import REPLACED_MS, SYNCED_MS, ends_well, master, others, settled
from tests.simulation.group_world import GroupWorld
from tests.simulation.replicas import GroupBroker, Role
from tests.simulation.scenario import has_master_but, members, start, until

FLUSH_TYPES = pytest.mark.parametrize("sync_flush", [False, True], ids=["ASYNC_FLUSH", "SYNC_FLUSH"])
REPORTS = pytest.mark.parametrize("reports_confirmed", [False, True], ids=["earlier release", "reports"])
"""Whether brokers report to the controllers what every member has. If they do, the controllers also see by
themselves which logs are too short. Otherwise only the doubt of a broker keeps it from its election."""
NEVER_MS = 60_000


def with_unflushed_tail(**options: Any) -> tuple[GroupWorld, GroupBroker, list[GroupBroker], int]:
    """Returns (world, master, replicas, the master's flushed offset). Both replicas have received and flushed
    the whole log."""
    world = settled(min_in_sync=2, **options)
    first = master(world)
    second, third = others(world)
    stop_flushing(world, first)
    flushed = first.disk.flushed
    until(world, lambda: first.log.end > flushed + 200, 3_000)
    world.sending = False
    until(world, lambda: second.disk.flushed == third.disk.flushed == first.log.end, 2_000)
    assert first.disk.flushed == flushed
    return world, first, [second, third], flushed


def stop_flushing(world: GroupWorld, broker: GroupBroker) -> None:
    """No flush of the broker that starts from now on ends before its next start."""
    broker.disk.stuck = True
    world.run(world.now + 100)


def site_loses_power(world: GroupWorld, first: GroupBroker, rest: list[GroupBroker]) -> None:
    """The whole site loses power: the master keeps what it had flushed, the replicas keep everything. No
    broker starts yet."""
    world.cut_power(first, NEVER_MS, share=0.0)
    for one in rest:
        world.cut_power(one, NEVER_MS, share=1.0)
    world.shorten("a", [first, *rest])


@FLUSH_TYPES
def test_a_master_that_lost_its_unflushed_tail_does_not_resume_its_epoch(sync_flush: bool) -> None:
    """If it returned first and wrote under its old epoch, its replicas would have other bytes in the same
    place."""
    world, first, rest, flushed = with_unflushed_tail(sync_flush=sync_flush)
    epoch = first.epoch
    site_loses_power(world, first, rest)
    assert first.log.end < rest[0].log.end
    start(world, first)
    world.sending = True
    world.run(world.now + 300)
    for one in rest:
        start(world, one)
    ends_well(world)
    assert master(world).epoch > epoch
    assert flushed < master(world).log.end


@FLUSH_TYPES
def test_what_any_member_has_flushed_survives_the_site(sync_flush: bool) -> None:
    """Only the master has lost bytes, and it returns first."""
    world, first, rest, _ = with_unflushed_tail(sync_flush=sync_flush)
    acked = dict(world.acknowledged["a"])
    site_loses_power(world, first, rest)
    start(world, first)
    world.run(world.now + 3_000)
    for one in rest:
        start(world, one)
    ends_well(world)
    assert acked.items() <= world.acknowledged["a"].items()


@FLUSH_TYPES
def test_a_replica_that_lost_its_tail_is_not_elected_for_having_it(sync_flush: bool) -> None:
    """Only a replica loses power; then the master dies before the replica has caught up."""
    world = settled(min_in_sync=2, sync_flush=sync_flush)
    first, (second, third) = master(world), others(world)
    stop_flushing(world, second)
    had = second.disk.flushed
    until(world, lambda: second.log.end > had + 200, 3_000)
    world.cut_power(second, NEVER_MS, share=0.0)
    world.shorten("a", [second])
    assert second.broker_id in members(world)
    first.die()
    start(world, second)
    until(world, lambda: has_master_but(world, first), REPLACED_MS)
    assert master(world) is third
    start(world, first)
    ends_well(world)


def test_an_acknowledgement_under_sync_flush_is_on_every_member_s_disk() -> None:
    """Replicas acknowledge what they have flushed, not what they have received."""
    world = settled(min_in_sync=2, sync_flush=True)
    second = others(world)[0]
    stop_flushing(world, second)
    acked = len(world.acknowledged["a"])
    world.run(world.now + 1_000)
    assert len(world.acknowledged["a"]) == acked
    second.die()
    start(world, second)
    ends_well(world)


@FLUSH_TYPES
def test_an_epoch_that_has_lost_all_its_bytes_wins_no_election(sync_flush: bool) -> None:
    """The epoch is on disk before its first byte; the end of the log before it is not. After the power loss
    the broker's last epoch is newer than that of every byte that it has."""
    world = settled(min_in_sync=2, sync_flush=sync_flush)
    first, (second, third) = master(world), others(world)
    stop_flushing(world, second)
    had = second.disk.flushed
    until(world, lambda: second.log.end > had + 200, 3_000)
    world.sending = False
    until(world, lambda: first.disk.flushed == third.disk.flushed == second.log.end, 2_000)
    assert second.broker_id is not None
    world.do_designate("a", second.broker_id)
    until(world, lambda: has_master_but(world, first) and master(world) is second, REPLACED_MS)
    until(world, lambda: second.log.end == second.epochs.entries[-1].start_offset, 1_000)
    until(world, lambda: sync_flush or len(members(world)) == 3, SYNCED_MS)
    assert second.disk.flushed == had
    site_loses_power(world, second, [first, third])
    assert second.log.end < second.epochs.entries[-1].start_offset
    for one in (second, first, third):
        start(world, one)
    ends_well(world)


def loses_a_replica(world: GroupWorld) -> tuple[GroupBroker, GroupBroker, GroupBroker]:
    """Returns (master, the replica that would be elected next, the other one). Master and first replica are
    stopped while all three have everything on disk, and before the controllers have noticed."""
    first = master(world)
    second, third = sorted(others(world), key=lambda one: one.broker_id or 0)
    world.sending = False
    until(world, lambda: all(b.disk.flushed == first.log.end for b in (first, second, third)), 3_000)
    world.run(world.now + 1_000)
    assert second.confirmed_kept == first.log.end
    first.die()
    second.die()
    return first, second, third


@REPORTS
def test_a_log_that_ends_before_the_confirmed_offset_is_not_elected(reports_confirmed: bool) -> None:
    """A bit changes while a broker is down, and recovery truncates the log there. The machine did not lose
    power: only the confirmed offset shows that bytes are missing."""
    world = settled(min_in_sync=2, sync_flush=True, reports_confirmed=reports_confirmed)
    first, second, third = loses_a_replica(world)
    third.die()
    second.log.data[second.log.end - 1] ^= 1
    second.disk.damaged = True
    start(world, second)
    assert second.log.end < third.log.end
    world.run(world.now + 3_000)
    assert world.master_of("a") is not second
    start(world, first)
    start(world, third)
    ends_well(world)


@REPORTS
def test_a_broker_whose_flush_failed_is_not_elected(reports_confirmed: bool) -> None:
    """The kernel drops the pages of a failed flush; the process restarts in the same boot."""
    world = settled(min_in_sync=2, sync_flush=False, reports_confirmed=reports_confirmed)
    first, (second, third) = master(world), others(world)
    stop_flushing(world, second)
    had = second.disk.flushed
    until(world, lambda: second.log.end > had + 200, 3_000)
    world.sending = False
    second.disk.fail()
    for one in (first, second, third):
        one.die()
    second.disk.forget_failed_pages(second.log, world.random, share=0.0)
    world.shorten("a", [second])
    second.confirmed_kept = min(second.confirmed_kept, second.log.end)  # an older checkpoint tells nothing
    start(world, second)
    world.run(world.now + 3_000)
    assert world.master_of("a") is not second
    start(world, first)
    start(world, third)
    ends_well(world)


def test_a_failed_flush_drops_no_page_that_was_flushed_before() -> None:
    """Not even on a disk that lies about flushes: it has those pages in its own memory until its power
    fails. (A check of the model of the disk.)"""
    world = settled(min_in_sync=2, sync_flush=False)
    first = master(world)
    first.disk.lies = True
    durable = first.disk.durable
    until(world, lambda: first.disk.flushed > durable + 200, 3_000)
    stop_flushing(world, first)
    flushed = first.disk.flushed
    until(world, lambda: first.log.end > flushed + 200, 3_000)
    world.sending = False
    first.disk.fail()
    first.die()
    first.disk.forget_failed_pages(first.log, world.random, share=0.0)
    assert first.log.end == flushed
    assert not first.disk.damaged
    first.disk.lose_power(first.log, world.random, share=0.0)
    assert first.log.end < flushed
    assert first.disk.damaged


@REPORTS
def test_brokers_in_doubt_wait_for_the_missing_member(reports_confirmed: bool) -> None:
    """With ASYNC_FLUSH the whole site loses power. The master returns first, with the shortest log, and again
    after a kill -9. It waits for the others, and the broker with the newest log is elected."""
    world, first, rest, _ = with_unflushed_tail(sync_flush=False, reports_confirmed=reports_confirmed)
    acked = dict(world.acknowledged["a"])
    site_loses_power(world, first, rest)
    first.confirmed_kept = min(first.confirmed_kept, first.log.end)  # an older checkpoint tells nothing
    start(world, first)
    world.run(world.now + 3_000)
    first.die()
    start(world, first)
    world.run(world.now + 3_000)
    assert not first.writable
    for one in rest:
        start(world, one)
    ends_well(world)
    assert acked.items() <= world.acknowledged["a"].items()


def test_doubt_lasts_until_the_replica_has_caught_up() -> None:
    """A replica that lost the end of its log follows its master, and has not caught up when the others
    die."""
    world = settled(min_in_sync=2, sync_flush=False, slow_copies=True)
    first, (second, third) = master(world), others(world)
    stop_flushing(world, second)
    had = second.disk.flushed
    until(world, lambda: second.log.end > had + 400, 5_000)
    world.sending = False
    until(world, lambda: second.confirmed == third.log.end == first.log.end, 3_000)
    world.cut_power(second, NEVER_MS, share=0.0)
    world.shorten("a", [second])
    assert second.broker_id in members(world)
    start(world, second)
    until(
        world, lambda: second.client_connection is not None and second.client_connection.confirm >= 0, 3_000
    )
    assert second.log.end < first.log.end
    first.die()
    third.die()
    world.run(world.now + 6_000)
    assert not second.writable
    start(world, first)
    start(world, third)
    ends_well(world)


@REPORTS
@pytest.mark.parametrize("min_in_sync", [1, 2])
def test_a_new_master_that_loses_power_before_a_replica_joins_it_waits_for_the_former_members(
    reports_confirmed: bool,
    min_in_sync: int,
) -> None:
    """The election reduces the SyncStateSet to the new master, which had not flushed what the former members
    have."""
    world = settled(min_in_sync=min_in_sync, sync_flush=False, reports_confirmed=reports_confirmed)
    first, (second, third) = master(world), others(world)
    stop_flushing(world, second)
    had = second.disk.flushed
    until(world, lambda: second.log.end > had + 200, 3_000)
    world.sending = False
    until(world, lambda: first.disk.flushed == third.disk.flushed == second.log.end, 2_000)
    acked = dict(world.acknowledged["a"])
    assert second.broker_id is not None
    world.do_designate("a", second.broker_id)
    until(world, lambda: members(world) == {second.broker_id} and second.role is Role.MASTER, REPLACED_MS)
    first.die()
    third.die()
    world.run(world.now + 10)  # the controllers notice it before the new master loses power
    world.cut_power(second, NEVER_MS, share=0.0)
    world.shorten("a", [second])
    second.confirmed_kept = min(second.confirmed_kept, second.log.end)  # an older checkpoint tells nothing
    assert members(world) == {second.broker_id}
    start(world, second)
    world.run(world.now + 3_000)
    assert not second.writable
    start(world, first)
    start(world, third)
    ends_well(world)
    assert acked.items() <= world.acknowledged["a"].items()
