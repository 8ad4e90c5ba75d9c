"""Tests the promises by which a master writes while the controllers are away."""

from __future__ import annotations

import math

import pytest

from epochmq_broker.membership.controlled.state_machine_types import RoleNotification, TakeRole
from epochmq_broker.membership.controlled.write_lease import WriteLease, WriteRight
from epochmq_broker.membership.controlled.write_promises import (
    HELD_MS,
    POLL_MS,
    PROMISE_MS,
    STRIDE_MS,
    MasterPromises,
    Promised,
    PromiseRequest,
    ReplicaPromises,
)
from epochmq_broker.replication.ha.sync_state import SyncState
from epochmq_protocol.write_promise import STATEMENT_MS
from tests.unit.broker.membership.controlled.state_machine_harness import (
    StateMachineHarness,
    kept_promises,
    view,
)

EPOCH = 3
TO = Promised("process of the master", EPOCH)


def sync_state(members: set[int], *, least: int = 1) -> SyncState:
    """The state of master 1 with these members."""
    return SyncState(
        self_id=1,
        epoch_start=0,
        members=frozenset(members),
        set_epoch=1,
        confirm_offset=0,
        end=0,
        not_caught_up_max_ms=1000,
        since_ms=0,
        recorded_least=least,
    )


def master() -> tuple[MasterPromises, WriteLease]:
    """A master without a lease; its controllers elect successors from the set."""
    lease = WriteLease()
    lease.begin(EPOCH)
    lease.record_grant(EPOCH, 0.0, 300, from_set=True)
    return MasterPromises("process of the master"), lease


def ask(
    promises: MasterPromises,
    lease: WriteLease,
    now_ms: float,
    number: int = 0,
    *,
    replica: int = 2,
    epoch: int = EPOCH,
    known: int = 0,
) -> int:
    """The stamp that a replica gets for its promise."""
    request = PromiseRequest(replica, epoch, number, max(known, epoch))
    return promises.answer(lease, request, now_ms).number


# The master -------------------------------------------------------------------------------------------------


def test_a_promise_counts_from_the_sending_of_its_stamp() -> None:
    promises, lease = master()
    number = ask(promises, lease, 1000.0)
    assert promises.until_ms(sync_state({1, 2})) == -math.inf
    ask(promises, lease, 1200.0, number)
    assert promises.until_ms(sync_state({1, 2})) == 1000.0 + PROMISE_MS


def test_every_member_must_promise_and_the_earliest_end_counts() -> None:
    promises, lease = master()
    two, three = ask(promises, lease, 1000.0), ask(promises, lease, 1040.0, replica=3)
    ask(promises, lease, 1050.0, two)
    assert promises.until_ms(sync_state({1, 2, 3})) == -math.inf
    assert promises.missing(sync_state({1, 2, 3}), 1050.0) == {3}
    ask(promises, lease, 1060.0, three, replica=3)
    assert promises.until_ms(sync_state({1, 2, 3})) == 1000.0 + PROMISE_MS


def test_a_proposed_member_must_promise() -> None:
    promises, lease = master()
    ask(promises, lease, 1010.0, ask(promises, lease, 1000.0))
    sync = sync_state({1, 2})
    sync.proposal_sent(frozenset({1, 2, 3}))
    assert promises.until_ms(sync) == -math.inf


@pytest.mark.parametrize(("members", "least"), [({1}, 1), ({1, 2}, 3)])
def test_promises_do_not_count_in_a_set_outside_of_which_replicas_may_be_elected(
    members: set[int], least: int
) -> None:
    promises, lease = master()
    ask(promises, lease, 1010.0, ask(promises, lease, 1000.0))
    assert promises.until_ms(sync_state(members, least=least)) == -math.inf


def test_a_number_of_another_replica_or_epoch_is_no_promise() -> None:
    promises, lease = master()
    number = ask(promises, lease, 1000.0)
    ask(promises, lease, 1010.0, number, replica=3)
    assert promises.until_ms(sync_state({1, 3})) == -math.inf
    lease.begin(EPOCH + 1)
    ask(promises, lease, 1020.0, number, epoch=EPOCH + 1)
    assert promises.until_ms(sync_state({1, 2})) == -math.inf


@pytest.mark.parametrize("end", ["fenced", "another epoch", "no master any more"])
def test_a_master_that_writes_no_more_says_so_and_forgets_the_promise(end: str) -> None:
    promises, lease = master()
    number = ask(promises, lease, 1000.0)
    if end == "fenced":
        lease.fence()
    elif end == "another epoch":
        lease.begin(EPOCH + 1)
    else:
        lease.end()
    answer = promises.answer(lease, PromiseRequest(2, EPOCH, number, EPOCH), 1010.0)
    assert (answer.number, answer.has_stopped) == (0, True)
    assert promises.until_ms(sync_state({1, 2})) == -math.inf


def test_a_master_that_has_not_taken_its_role_has_not_stopped() -> None:
    promises, lease = master()
    answer = promises.answer(lease, PromiseRequest(2, EPOCH + 1, 0, EPOCH + 1), 1010.0)
    assert (answer.number, answer.has_stopped) == (0, False)


def test_a_replica_that_knows_a_later_epoch_ends_the_right() -> None:
    """While the lease lasts the master has not stopped."""
    promises, lease = master()
    ask(promises, lease, 110.0, ask(promises, lease, 100.0))
    lease.record_promises(promises.until_ms(sync_state({1, 2})))
    elected = PromiseRequest(2, EPOCH, 0, EPOCH + 1)
    assert not promises.answer(lease, elected, 299.0).has_stopped
    assert promises.answer(lease, elected, 301.0).has_stopped
    assert not lease.is_open(301.0)
    lease.record_promises(900.0)
    assert not lease.is_open(301.0)


# The right --------------------------------------------------------------------------------------------------


def test_a_lease_or_promises_permit_to_write() -> None:
    _, lease = master()
    lease.record_promises(500.0)
    assert lease.right(299.0) is WriteRight.LEASE
    assert lease.right(301.0) is WriteRight.PROMISES
    assert lease.right(501.0) is WriteRight.NONE
    lease.note_lapse(400.0)
    assert lease.lapses == 0
    lease.note_lapse(501.0)
    assert lease.lapses == 1


def test_promises_need_a_statement_of_the_controllers_under_this_epoch() -> None:
    lease = WriteLease()
    lease.begin(EPOCH)
    lease.record_promises(500.0)
    assert not lease.is_open(1.0)
    lease.record_grant(EPOCH, 0.0, 300)  # a controller that may elect others, or of an earlier release
    lease.record_promises(500.0)
    assert not lease.is_open(301.0)
    lease.record_grant(EPOCH, 10.0, 300, from_set=True)
    lease.record_promises(500.0)
    assert lease.is_open(400.0)
    lease.begin(EPOCH + 1)
    lease.record_promises(500.0)
    assert not lease.is_open(400.0)


@pytest.mark.parametrize("by", ["a newer lease without it", "a leader with another master"])
def test_a_statement_can_be_taken_back(by: str) -> None:
    _, lease = master()
    lease.record_promises(500.0)
    if by == "a newer lease without it":
        lease.record_grant(EPOCH, 10.0, 300)
    else:
        lease.withdraw_statement(EPOCH)
    lease.record_promises(500.0)
    assert not lease.is_open(400.0)


def test_a_statement_ends() -> None:
    _, lease = master()
    lease.record_promises(STATEMENT_MS + 100.0)
    assert lease.is_open(STATEMENT_MS - 1.0)
    assert not lease.is_open(STATEMENT_MS)
    lease.check_invariants(STATEMENT_MS)


def test_a_fenced_master_does_not_write_by_promises() -> None:
    _, lease = master()
    lease.fence()
    lease.record_promises(500.0)
    assert not lease.is_open(400.0)


# The replica ------------------------------------------------------------------------------------------------


def wait_for_end(promises: ReplicaPromises, now_ms: int) -> int:
    """How long the promises last for a driver that reads the clock at every poll."""
    began_ms = now_ms
    while promises.left_ms(now_ms) > 0:
        now_ms += POLL_MS // 2
    return now_ms - began_ms


def test_a_process_waits_after_its_start() -> None:
    assert HELD_MS <= wait_for_end(ReplicaPromises(1000), 1000) <= HELD_MS + POLL_MS


def test_a_promise_lasts_from_the_receipt_of_its_stamp() -> None:
    promises = kept_promises(1000)
    promises.received(TO, 7, 1000)
    assert promises.left_ms(1000) == 0  # a stamp alone binds nobody
    assert promises.promise(EPOCH, 1050) == 7
    assert HELD_MS - 50 <= wait_for_end(promises, 1050) <= HELD_MS


def test_there_is_no_promise_without_a_stamp_of_this_epoch() -> None:
    promises = kept_promises(1000)
    assert promises.promise(EPOCH, 1000) == 0
    promises.received(TO, 7, 1000)
    assert promises.promise(EPOCH + 1, 1000) == 0
    assert promises.left_ms(1000) == 0


def test_a_leap_of_the_clock_counts_as_one_stride() -> None:
    promises = kept_promises(1000)
    promises.received(TO, 7, 1000)
    promises.promise(EPOCH, 1000)
    assert promises.left_ms(9000) == HELD_MS - STRIDE_MS


def test_only_the_master_that_has_stopped_is_released() -> None:
    promises = kept_promises(1000)
    promises.received(TO, 7, 1000)
    promises.promise(EPOCH, 1000)
    promises.released(Promised("another process", EPOCH))
    promises.released(Promised(TO.process, EPOCH - 1))
    assert promises.left_ms(1000) > 0
    promises.released(TO)
    assert promises.left_ms(1000) == 0


def test_a_replica_hears_a_master_that_has_just_said_that_it_may_write() -> None:
    promises = kept_promises(1000)
    assert promises.heard_epoch(1000) is None
    promises.received(TO, 7, 1000, may_write=True)
    assert promises.heard_epoch(1000 + PROMISE_MS) == EPOCH
    assert promises.heard_epoch(1001 + PROMISE_MS) is None, "also after a pause of this process"
    promises.received(TO, 8, 2000, may_write=True)
    promises.received(TO, 9, 2010)
    assert promises.heard_epoch(2010) is None, "it waits for another replica, or for the controllers"


def test_a_replica_becomes_master_when_its_promise_has_ended() -> None:
    stage = StateMachineHarness()
    machine = stage.state_machine
    stage.identify(1)
    stage.feed(RoleNotification(view(2, 4)))
    stage.take()
    follows = machine.follows
    assert follows is not None
    machine.promises.received(Promised("m", follows.epoch), 1, stage.now_ms)
    assert machine.promises.promise(follows.epoch, stage.now_ms) == 1
    assert machine.identity is not None
    effects = stage.feed(RoleNotification(view(machine.identity.id, follows.epoch + 1)))
    assert not any(isinstance(one, TakeRole) for one in effects)
    assert machine.follows is None
    assert machine.elected_epoch == follows.epoch + 1
    assert not any(isinstance(one, TakeRole) for one in stage.pass_ms(int(HELD_MS) - 5))
    assert any(isinstance(one, TakeRole) for one in stage.pass_ms(POLL_MS))
