"""Tests which of several operators may write, and when the next one may."""

from __future__ import annotations

from epochmq_operator.kube.api import REQUEST_TIMEOUT_S
from epochmq_operator.kube.lease_rules import (
    DURATION_S,
    LOOK_EVERY_S,
    RENEW_DEADLINE_S,
    RENEW_EVERY_S,
    may_take,
    may_write,
    observe,
    spec_when_held,
    spec_when_released,
)


def test_writes_of_the_former_holder_end_before_the_next_one_starts() -> None:
    assert RENEW_DEADLINE_S + REQUEST_TIMEOUT_S < DURATION_S


def test_a_standby_takes_over_within_half_a_minute_of_the_last_renewal() -> None:
    assert DURATION_S + LOOK_EVERY_S + REQUEST_TIMEOUT_S < 30


def test_the_holder_can_retry_renewals() -> None:
    assert RENEW_EVERY_S * 3 < RENEW_DEADLINE_S


def test_a_lease_without_holder_or_ones_own_may_be_taken_at_once() -> None:
    assert may_take(observe(None, {}, 0.0), "a", 0.0)
    assert may_take(observe(None, spec_when_held({}, "a", 0.0), 0.0), "a", 0.0)


def test_a_lease_may_be_taken_when_unchanged_for_its_duration() -> None:
    spec = spec_when_held({}, "b", 1000.0)
    seen = observe(None, spec, 100.0)
    assert not may_take(observe(seen, spec, 100.0 + DURATION_S), "a", 100.0 + DURATION_S)
    assert may_take(observe(seen, spec, 100.1 + DURATION_S), "a", 100.1 + DURATION_S)


def test_a_renewal_restarts_the_wait_of_a_standby_despite_other_clocks() -> None:
    seen = observe(None, spec_when_held({}, "b", 1000.0), 100.0)
    again = observe(
        seen, spec_when_held(spec_when_held({}, "b", 1000.0), "b", 3.0), 110.0
    )  # the holder's clock was set back
    assert not may_take(again, "a", 101.0 + DURATION_S)


def test_a_released_lease_may_be_taken_at_once() -> None:
    spec = spec_when_released(spec_when_held({}, "b", 1000.0))
    assert may_take(observe(None, spec, 5.0), "a", 5.0)
    assert "holderIdentity" not in spec  # the API server rejects an empty name


def test_transitions_are_counted_when_the_holder_changes() -> None:
    first = spec_when_held({}, "a", 1.0)
    assert first["leaseTransitions"] == 1
    assert spec_when_held(first, "a", 2.0)["leaseTransitions"] == 1
    assert spec_when_held(first, "a", 2.0)["acquireTime"] == first["acquireTime"]
    assert spec_when_held(first, "b", 2.0)["leaseTransitions"] == 2


def test_a_lease_of_any_content_can_be_read() -> None:
    odd = {"holderIdentity": "b", "leaseDurationSeconds": "long", "leaseTransitions": None}
    assert not may_take(observe(None, odd, 0.0), "a", DURATION_S - 1)
    assert spec_when_held(odd, "a", 0.0)["leaseTransitions"] == 1


def test_an_operator_without_a_recent_renewal_must_not_write() -> None:
    assert not may_write(None, 0.0)
    assert may_write(10.0, 10.0 + RENEW_DEADLINE_S - 0.1)
    assert not may_write(10.0, 10.0 + RENEW_DEADLINE_S)
