"""Parses cron schedules and computes their next times.

A schedule has five fields in UTC: minute, hour, day of the month, month, day of the week. Each field is `*`,
a number or a range `a-b`, any of them with a step (`*/5`, `8-18/2`), or a comma-separated list of these.
Sunday is 0 or 7. If both days are restricted, one of them has to match. Names of months and days and
shorthands such as `@daily` are not supported."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("day of the week", 0, 7))
YEARS_MAX = 8
"""The longest time without a 29th of February is eight years."""
_PART = re.compile(r"(?:(\*)|(\d{1,2})(?:-(\d{1,2}))?)(?:/(\d{1,2}))?\Z")


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """A parsed schedule. In `days_of_week` 0 is Sunday. `either`: it is enough that the day of the month or
    the day of the week matches."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    days_of_week: frozenset[int]
    either: bool

    def matches(self, day: datetime) -> bool:
        """Whether the schedule fires on this day."""
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.days_of_week
        return day.month in self.months and (of_month or of_week if self.either else of_month and of_week)

    def next_after(self, seconds: float) -> int | None:
        """The first time after `seconds`, both in seconds since 1970. None for a schedule that never
        fires."""
        begin = datetime.fromtimestamp(int(seconds) // 60 * 60 + 60, UTC)
        day = begin.replace(hour=0, minute=0)
        for _ in range(YEARS_MAX * 366):
            if self.matches(day):
                for hour in sorted(self.hours):
                    for minute in sorted(self.minutes):
                        found = day.replace(hour=hour, minute=minute)
                        if found >= begin:
                            return int(found.timestamp())
            day += timedelta(days=1)
        return None

    def last_between(self, after: float, until: float) -> int | None:
        """The last time in the interval (`after`, `until`], in seconds since 1970; None if there is none.
        After a long interval only its last hour, day and 32 days are searched in turn, and then its
        beginning."""
        first = self.next_after(after)
        if first is None or first > until:
            return None
        found = first
        for back_s in (3600, 86400, 32 * 86400):
            near = self.next_after(max(until - back_s, after))
            if near is not None and near <= until:
                found = near
                break
        while (later := self.next_after(found)) is not None and later <= until:
            found = later
        return found


def parse_schedule(text: str) -> CronSchedule:
    """Parses a schedule. ValueError says which field is wrong and what is expected."""
    parts = text.split()
    if len(parts) != len(FIELDS):
        raise ValueError(f"{len(parts)} fields, expected minute, hour, day, month and day of the week")
    minutes, hours, days, months, week = (
        _field(part, *field) for part, field in zip(parts, FIELDS, strict=True)
    )
    either = not parts[2].startswith("*") and not parts[4].startswith("*")
    made = CronSchedule(minutes, hours, days, months, frozenset(one % 7 for one in week), either)
    if made.next_after(0) is None:
        raise ValueError("this day never occurs, expected a day that one of the months has")
    return made


def _field(text: str, name: str, low: int, high: int) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        matched = _PART.match(part)
        if matched is None:
            raise ValueError(f"{name}: {part!r}, expected *, a number or a range, perhaps with /step")
        every, first, last, step = matched.groups()
        begin = low if every else int(first)
        end = high if every or (step and not last) else int(last or first)
        if not low <= begin <= end <= high:
            raise ValueError(f"{name}: {part!r}, expected {low} to {high}")
        if step is not None and not 0 < int(step) <= high:
            raise ValueError(f"{name}: {part!r}, expected a step of 1 to {high}")
        found.update(range(begin, end + 1, int(step or 1)))
    return frozenset(found)
