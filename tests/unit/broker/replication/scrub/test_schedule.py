"""The scrub passes over the old files, unit by unit, no faster and no more often than the settings say."""

from __future__ import annotations

import pytest

from epochmq_broker.replication.scrub.schedule import (
    UNIT_BYTES_MAX,
    UNIT_BYTES_MIN,
    PassEnd,
    ReadBudget,
    ScrubSchedule,
    ScrubUnit,
    scrub_limit,
)

HOUR_S = 3600.0
RATE = 1 << 20


def step(schedule: ScrubSchedule, now_s: float, *, first: int = 0, limit: int, rate: int = RATE) -> object:
    return schedule.next_step(now_s, first=first, limit=limit, rate=rate, interval_s=HOUR_S)


def test_the_first_pass_begins_after_the_delay_and_covers_everything_below_the_limit() -> None:
    schedule = ScrubSchedule(60.0)
    assert step(schedule, 0.0, limit=5 << 19) == 60.0
    at = 0
    while isinstance(unit := step(schedule, 60.0, limit=5 << 19), ScrubUnit):
        assert unit == ScrubUnit(at, min(at + RATE, 5 << 19))
        at = unit.until + 10  # units end at record boundaries
        schedule.unit_done(at)
    assert unit is PassEnd.ENDED
    assert at >= 5 << 19
    assert schedule.last_pass_ended_s == 60.0


def test_passes_begin_an_hour_apart() -> None:
    schedule = ScrubSchedule(0.0)
    assert isinstance(step(schedule, 0.0, limit=1000), ScrubUnit)
    schedule.unit_done(1000)
    assert step(schedule, 10.0, limit=1000) is PassEnd.ENDED
    assert step(schedule, 10.0, limit=1000) == HOUR_S - 10.0
    assert step(schedule, HOUR_S, limit=1000) == ScrubUnit(0, 1000)


def test_a_pass_longer_than_an_hour_is_followed_by_the_next_at_once() -> None:
    schedule = ScrubSchedule(0.0)
    step(schedule, 0.0, limit=1000)
    schedule.unit_done(1000)
    assert step(schedule, 2 * HOUR_S, limit=1000) is PassEnd.ENDED
    assert step(schedule, 2 * HOUR_S, limit=1000) == ScrubUnit(0, 1000)


def test_a_pass_skips_files_that_have_expired_and_ends_at_a_lower_limit() -> None:
    schedule = ScrubSchedule(0.0)
    step(schedule, 0.0, limit=10_000_000)
    schedule.unit_done(500)
    assert step(schedule, 1.0, first=4096, limit=10_000_000) == ScrubUnit(4096, 4096 + RATE)
    assert step(schedule, 1.0, first=4096, limit=4096) is PassEnd.ENDED


@pytest.mark.parametrize(("rate", "size"), [(1, UNIT_BYTES_MIN), (1 << 40, UNIT_BYTES_MAX), (RATE, RATE)])
def test_a_unit_is_what_is_read_in_a_second(rate: int, size: int) -> None:
    assert step(ScrubSchedule(0.0), 0.0, limit=1 << 40, rate=rate) == ScrubUnit(0, size)


def test_all_reads_together_stay_below_the_rate() -> None:
    budget = ReadBudget()
    assert budget.pause_s(100.0, 500, 1000) == 0.5
    assert budget.pause_s(100.0, 500, 1000) == 1.0, "a second reader waits for the first"
    assert budget.pause_s(200.0, 500, 1000) == 0.5, "an idle time is not saved up"


@pytest.mark.parametrize(
    ("starts", "durable", "limit"),
    [
        ([], 0, 0),
        ([0], 60, 60),
        ([0, 100, 200], 300, 300),
        ([0, 100, 200], 400, 300),
        ([0, 100, 200], 199, 199),
        ([100, 200], 50, 100),
    ],
)
def test_the_log_is_read_up_to_the_durable_offset(starts: list[int], durable: int, limit: int) -> None:
    assert scrub_limit(starts, 100, durable) == limit


def test_a_pass_ends_where_no_whole_record_is_left_before_the_limit() -> None:
    schedule = ScrubSchedule(0.0)
    assert step(schedule, 0.0, limit=1000) == ScrubUnit(0, 1000)
    schedule.unit_done(900)  # the next record ends behind the limit
    assert step(schedule, 1.0, limit=1000) == ScrubUnit(900, 1000)
    schedule.unit_done(900)
    assert step(schedule, 1.0, limit=1000) is PassEnd.ENDED
    assert step(schedule, 3601.0, limit=1000) == ScrubUnit(0, 1000)
