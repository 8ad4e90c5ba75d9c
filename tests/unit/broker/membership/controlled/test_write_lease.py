"""Tests that a master writes only under a lease, if the controllers grant leases."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from epochmq_broker.membership.controlled.write_lease import WriteLease


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


def test_a_lease_that_ran_out_is_counted_once() -> None:
    lease = master()
    lease.note_lapse(500.0)
    lease.record_grant(3, 1000.0, 600)
    lease.note_lapse(1599.9)
    assert lease.lapses == 0, "a mastership begins without a lease; this one holds"
    lease.note_lapse(1600.0)
    lease.note_lapse(1700.0)
    assert lease.lapses == 1
    assert not lease.is_open(1700.0)
    lease.record_grant(3, 1650.0, 600)
    assert lease.is_open(1700.0)
    lease.note_lapse(9000.0)
    assert lease.lapses == 2


def test_a_lease_that_was_given_up_is_not_counted() -> None:
    lease = master()
    lease.record_grant(3, 1000.0, 600)
    lease.fence()
    lease.note_lapse(9000.0)
    lease.end()
    lease.note_lapse(9000.0)
    assert lease.lapses == 0


def test_it_tells_when_it_needs_renewal() -> None:
    lease = master()
    lease.record_grant(3, 1000.0, 600)
    assert not lease.needs_renewal(1200.0)
    assert not lease.needs_renewal(1310.0)
    assert lease.needs_renewal(1361.0)
    lease.leader_grants = False
    assert not lease.needs_renewal(9000.0)


def test_a_held_lease_is_renewed_when_half_of_it_has_passed() -> None:
    lease = master()
    lease.record_grant(3, 1000.0, 600)
    assert lease.next_request_ms(1000.0) == 1300.0
    assert lease.next_request_ms(1200.0) == 1360.0, "late, unless another controller renews it before"
    lease.record_grant(3, 1300.0, 600)
    assert lease.next_request_ms(1200.0) == 1500.0


def test_a_late_renewal_is_repeated_until_the_lease_has_ended() -> None:
    lease = master()
    lease.record_grant(3, 1000.0, 300)
    requests = [1000.0]
    while requests[-1] < 1300.0:
        requests.append(lease.next_request_ms(requests[-1]))
    assert requests == [1000.0, 1150.0, 1190.0, 1230.0, 1270.0, 1310.0]
    assert lease.next_request_ms(1310.0) == 1410.0


def test_a_master_that_never_got_a_lease_requests_one_often() -> None:
    assert master().next_request_ms(1000.0) == 1040.0


@given(st.floats(0, 1000), st.sampled_from([0, 60, 300, 3000]), st.floats(0, 5000))
def test_requests_for_a_lease_keep_a_distance_and_come_before_its_end(
    granted_ms: float, duration_ms: int, requested_ms: float
) -> None:
    lease = master()
    lease.record_grant(3, granted_ms, duration_ms)
    pause_ms = lease.next_request_ms(requested_ms) - requested_ms
    assert 39.99 < pause_ms <= max(40.0, duration_ms / 2) + 0.01
    if requested_ms + 40 < lease.until_ms:
        assert requested_ms + pause_ms < lease.until_ms


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
