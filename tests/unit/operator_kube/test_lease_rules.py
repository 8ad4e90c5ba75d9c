"""Who of several operators may write, and when the next one may."""

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


def test_a_write_of_the_former_leader_is_over_before_the_next_one_may_begin() -> None:
    assert RENEW_DEADLINE_S + REQUEST_TIMEOUT_S < DURATION_S


def test_a_standby_takes_over_within_half_a_minute_of_the_leaders_last_word() -> None:
    assert DURATION_S + LOOK_EVERY_S + REQUEST_TIMEOUT_S < 30


def test_the_leader_has_several_tries_to_renew() -> None:
    assert RENEW_EVERY_S * 3 < RENEW_DEADLINE_S


def test_nobodys_lease_and_ones_own_are_free_at_once() -> None:
    assert may_take(observe(None, {}, 0.0), "a", 0.0)
    assert may_take(observe(None, spec_when_held({}, "a", 0.0), 0.0), "a", 0.0)


def test_anothers_lease_is_free_when_it_was_seen_unchanged_for_as_long_as_it_lasts() -> None:
    spec = spec_when_held({}, "b", 1000.0)
    seen = observe(None, spec, 100.0)
    assert not may_take(observe(seen, spec, 100.0 + DURATION_S), "a", 100.0 + DURATION_S)
    assert may_take(observe(seen, spec, 100.1 + DURATION_S), "a", 100.1 + DURATION_S)


def test_a_renewal_makes_the_standby_wait_anew_whatever_the_clocks_say() -> None:
    seen = observe(None, spec_when_held({}, "b", 1000.0), 100.0)
    again = observe(
        seen, spec_when_held(spec_when_held({}, "b", 1000.0), "b", 3.0), 110.0
    )  # the holder's clock was set back
    assert not may_take(again, "a", 101.0 + DURATION_S)


def test_a_lease_that_was_given_back_is_free_at_once() -> None:
    spec = spec_when_released(spec_when_held({}, "b", 1000.0))
    assert may_take(observe(None, spec, 5.0), "a", 5.0)
    assert "holderIdentity" not in spec  # the API server takes no empty name


def test_turns_are_counted_when_the_holder_changes() -> None:
    first = spec_when_held({}, "a", 1.0)
    assert first["leaseTransitions"] == 1
    assert spec_when_held(first, "a", 2.0)["leaseTransitions"] == 1
    assert spec_when_held(first, "a", 2.0)["acquireTime"] == first["acquireTime"]
    assert spec_when_held(first, "b", 2.0)["leaseTransitions"] == 2


def test_a_lease_with_anything_in_it_is_read_without_harm() -> None:
    odd = {"holderIdentity": "b", "leaseDurationSeconds": "long", "leaseTransitions": None}
    assert not may_take(observe(None, odd, 0.0), "a", DURATION_S - 1)
    assert spec_when_held(odd, "a", 0.0)["leaseTransitions"] == 1


def test_who_never_renewed_or_long_ago_does_not_write() -> None:
    assert not may_write(None, 0.0)
    assert may_write(10.0, 10.0 + RENEW_DEADLINE_S - 0.1)
    assert not may_write(10.0, 10.0 + RENEW_DEADLINE_S)
