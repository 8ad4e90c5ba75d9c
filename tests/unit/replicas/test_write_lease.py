"""Tests that a master writes only under a lease, if the controllers grant leases."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from epochmq_broker.replicas.write_lease import WriteLease


def master(epoch: int = 3) -> WriteLease:
    lease = WriteLease()
    lease.begin(epoch)
    return lease


def test_a_broker_without_a_role_may_not_write() -> None:
    """(#6508, #6706)"""
    lease = WriteLease(leader_grants=False)
    assert not lease.is_open(0)


def test_a_mastership_begins_without_the_right_to_write() -> None:
    lease = master()
    assert not lease.is_open(0)
    lease.leader_grants = True
    assert not lease.is_open(0)


def test_a_lease_counts_from_its_request() -> None:
    lease = master()
    lease.record_grant(3, 1000.0, 600)
    assert lease.is_open(1599.9)
    assert not lease.is_open(1600.0)


def test_a_late_response_grants_no_lease() -> None:
    """A process that was stopped reads old responses when it resumes."""
    lease = master()
    lease.record_grant(3, 1000.0, 600)
    assert not lease.is_open(9000.0)


def test_a_lease_of_another_epoch_is_none() -> None:
    lease = master(4)
    lease.record_grant(3, 1000.0, 600)
    assert not lease.is_open(1001.0)
    lease.record_grant(4, 1000.0, 600)
    lease.begin(5)
    assert not lease.is_open(1001.0)


def test_an_older_grant_does_not_shorten_a_newer_one() -> None:
    lease = master()
    lease.record_grant(3, 2000.0, 600)
    lease.record_grant(3, 1000.0, 600)
    assert lease.is_open(2500.0)


def test_under_a_rocketmq_controller_a_master_writes_without_a_lease() -> None:
    lease = master()
    lease.leader_grants = False
    assert lease.is_open(10**12)
    lease.end()
    assert not lease.is_open(10**12)


def test_a_fenced_master_writes_no_more_under_its_epoch() -> None:
    lease = master()
    lease.record_grant(3, 1000.0, 600)
    lease.fence()
    lease.record_grant(3, 1100.0, 600)
    lease.leader_grants = False
    assert not lease.is_open(1101.0)
    lease.leader_grants = True
    lease.begin(4)
    lease.record_grant(4, 1200.0, 600)
    assert lease.is_open(1201.0)


def test_it_tells_when_it_needs_renewal() -> None:
    lease = master()
    lease.record_grant(3, 1000.0, 600)
    assert not lease.needs_renewal(1200.0)
    assert lease.needs_renewal(1301.0)
    lease.leader_grants = False
    assert not lease.needs_renewal(9000.0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["begin", "end", "fence", "grant"]),
            st.integers(1, 4),
            st.integers(0, 50),
            st.integers(0, 100),
        ),
        max_size=40,
    )
)
def test_it_is_open_only_within_a_grant_for_its_epoch(steps: list[tuple[str, int, int, int]]) -> None:
    """For any sequence of events, an open lease was requested in this mastership and covers the present."""
    lease, now, grants, epochs = WriteLease(leader_grants=True), 0.0, [], itertools.count(1)
    for what, epoch, age, passed in steps:
        now += passed
        match what:
            case "begin":
                lease.begin(next(epochs))
                grants.clear()
            case "end":
                lease.end()
                grants.clear()
            case "fence":
                lease.fence()
                grants.clear()
            case "grant":
                lease.record_grant(epoch, now - age, 100)
                if epoch == lease.epoch and not lease.fenced:
                    grants.append(now - age + 100)
        assert lease.is_open(now) == any(now < end for end in grants)
