"""Tests cron schedules."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from epochmq_operator.resources import cron


def seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


@pytest.mark.parametrize(
    ("schedule", "after", "expected"),
    [
        ("* * * * *", "2026-11-22T10:00:30", "2026-11-22T10:01"),
        ("0 3 * * *", "2026-11-22T03:00", "2026-11-23T03:00"),
        ("*/20 8-10/2 * * *", "2026-11-22T08:41", "2026-11-22T10:00"),
        ("30 4 1,15 * *", "2026-11-22T00:00", "2026-12-01T04:30"),
        ("0 0 * * 0", "2026-11-22T10:00", "2026-11-29T00:00"),
        ("0 0 * * 7", "2026-11-22T10:00", "2026-11-29T00:00"),
        ("0 0 13 * 5", "2026-11-22T10:00", "2026-11-27T00:00"),
        ("0 0 29 2 *", "2026-11-22T10:00", "2028-02-29T00:00"),
        ("59 23 31 12 *", "2026-12-31T23:59", "2027-12-31T23:59"),
        ("5/25 * * * *", "2026-11-22T10:06", "2026-11-22T10:30"),
    ],
)
def test_a_schedule_has_the_expected_next_time(schedule: str, after: str, expected: str) -> None:
    assert cron.parse_schedule(schedule).next_after(seconds(after)) == seconds(expected)


@pytest.mark.parametrize(
    ("schedule", "wrong"),
    [
        ("0 3 * *", "4 fields"),
        ("@daily", "1 fields"),
        ("60 * * * *", "minute: '60'"),
        ("* 24 * * *", "hour: '24'"),
        ("* * 0 * *", "day: '0'"),
        ("* * * JAN *", "month: 'JAN'"),
        ("* * * * 8", "day of the week: '8'"),
        ("5-1 * * * *", "minute: '5-1'"),
        ("*/0 * * * *", "step"),
        ("0 0 31 2 *", "never occurs"),
        ("1,,2 * * * *", "minute: ''"),
    ],
)
def test_an_invalid_schedule_is_rejected(schedule: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        cron.parse_schedule(schedule)


def test_missed_times_count_once_as_the_last_one() -> None:
    daily = cron.parse_schedule("0 3 * * *")
    begin, end = seconds("2020-01-01T00:00"), seconds("2026-11-22T02:59")
    assert daily.last_between(begin, end) == seconds("2026-11-21T03:00")
    assert daily.last_between(end, end + 30) is None
    assert cron.parse_schedule("0 0 29 2 *").last_between(begin, end) == seconds("2024-02-29T00:00")
