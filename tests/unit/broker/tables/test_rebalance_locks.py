"""Queue locks of orderly consumers are leases that one client holds at a time."""

from __future__ import annotations

from epochmq_broker.tables.rebalance_locks import LEASE_MS, RebalanceLocks
from epochmq_protocol.bodies import MessageQueue

Q0, Q1 = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)


def test_a_queue_is_granted_to_one_client_until_its_lease_runs_out() -> None:
    locks = RebalanceLocks()
    assert locks.lock("g", [Q0, Q1], "one", 0) == {Q0, Q1}
    assert locks.lock("g", [Q0], "two", LEASE_MS) == set()
    assert locks.lock("g", [Q0], "two", LEASE_MS + 1) == {Q0}
    assert locks.lock("g", [Q0], "one", LEASE_MS + 2) == set()


def test_a_renewal_restarts_the_lease() -> None:
    locks = RebalanceLocks()
    locks.lock("g", [Q0], "one", 0)
    locks.lock("g", [Q0], "one", LEASE_MS - 1)
    assert locks.lock("g", [Q0], "two", LEASE_MS + 10) == set()


def test_groups_do_not_see_each_others_locks() -> None:
    locks = RebalanceLocks()
    locks.lock("g", [Q0], "one", 0)
    assert locks.lock("h", [Q0], "two", 0) == {Q0}


def test_only_the_owner_can_unlock() -> None:
    locks = RebalanceLocks()
    locks.lock("g", [Q0], "one", 0)
    locks.unlock("g", [Q0], "two")
    assert locks.lock("g", [Q0], "two", 1) == set()
    locks.unlock("g", [Q0, Q1], "one")
    assert locks.lock("g", [Q0], "two", 2) == {Q0}
    locks.unlock("nobody", [Q0], "one")


def test_a_group_that_holds_any_lock_is_an_orderly_consumer() -> None:
    locks = RebalanceLocks()
    assert locks.all_expired("g", 0)
    locks.lock("g", [Q0], "one", 0)
    assert not locks.all_expired("g", LEASE_MS)
    assert locks.all_expired("g", LEASE_MS + 1)


def test_expired_locks_are_swept_and_held_ones_stay() -> None:
    locks = RebalanceLocks()
    locks.lock("g", [Q0], "one", 0)
    locks.lock("g", [Q1], "one", LEASE_MS)
    locks.lock("h", [Q0], "one", 0)
    locks.sweep(LEASE_MS + 5)
    assert locks.lock("g", [Q1], "two", LEASE_MS + 6) == set()
    assert locks.all_expired("h", 0)
