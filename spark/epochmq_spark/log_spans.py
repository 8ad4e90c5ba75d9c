# pure: runs of records, bounded
"""Joins the spans of a log to runs without a gap, and bounds their number.

A healthy log is one run, however long it is. Each break begins another run. Beyond a bound, runs are merged,
and only the number of the breaks between them is kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

RUNS_MAX: Final = 1000  # of a log, in the memory of the driver
RUNS_OF_RANGE_MAX: Final = 64  # of a range of a log, in one task

ENTRY_COLUMNS: Final = ("first_index", "last_index", "first_term", "last_term")
"""Fields of a span, and columns of its summary row."""

UNREAD: Final = "unread"
"""The `stop` of a span that could not be read. It may contain records."""


@dataclass(frozen=True)
class LogSpan:
    """Records in [start, end), physical offsets; the store times (ms) of the first and the last, 0 if they
    have none; why the span ends; the number of the records. There are no gaps between the records but for
    `breaks`. In a log of DLedger also indexes and terms of the first and the last entry."""

    start: int
    end: int
    first_time: int
    last_time: int
    stop: str
    records: int = 0
    breaks: int = 0
    first_index: int = -1
    last_index: int = -1
    first_term: int = -1
    last_term: int = -1

    @property
    def is_blank(self) -> bool:
        """Whether no record has a time: there are only blank ones, from the ends of segments. They do not say
        where they belong."""
        return self.end > self.start and not self.first_time and not self.last_time

    def is_older(self, time: int, term: int) -> bool:
        """Whether the records are older than one of this store time and term, so that a truncation may have
        left them. Entries have terms, which no clock changes."""
        return self.last_term < term if self.last_term >= 0 else 0 < self.first_time < time

    def continues(self, before: LogSpan) -> bool:
        """Whether the span starts at the end of another one, and with the entry that follows."""
        if self.start != before.end:
            return False
        if self.first_index < 0 or before.last_index < 0:
            return True
        return self.first_index == before.last_index + 1 and self.first_term >= before.last_term

    def with_next(self, other: LogSpan, breaks: int = 0) -> LogSpan:
        """This span and one that starts at its end or, with a number of breaks, behind it."""
        return LogSpan(
            self.start,
            max(self.end, other.end),
            self.first_time or other.first_time,
            other.last_time or self.last_time,
            other.stop,
            self.records + other.records,
            self.breaks + other.breaks + breaks,
            self.first_index if self.first_index >= 0 else other.first_index,
            other.last_index if other.last_index >= 0 else self.last_index,
            self.first_term if self.first_term >= 0 else other.first_term,
            other.last_term if other.last_term >= 0 else self.last_term,
        )


def span_of_row(row: Mapping[str, Any]) -> LogSpan:
    """The span of a summary row of the kind span."""
    return LogSpan(
        row["at"],
        row["end"],
        row["low"],
        row["high"],
        row["detail"],
        row["count"],
        row["first"] or 0,
        *(row[name] for name in ENTRY_COLUMNS),
    )


def row_of_span(span: LogSpan) -> dict[str, Any]:
    """The columns of a summary row that `span_of_row` reads."""
    return {
        "at": span.start,
        "end": span.end,
        "count": span.records,
        "low": span.first_time,
        "high": span.last_time,
        "first": span.breaks,
        "detail": span.stop,
        **{name: getattr(span, name) for name in ENTRY_COLUMNS},
    }


def join_spans(spans: Iterable[LogSpan], runs_max: int = RUNS_MAX) -> list[LogSpan]:
    """The runs of a log, of spans in any order: at most `runs_max`, two for those beyond, and as many that
    could not be read.

    Records that are older than those before them may be left of a truncation, so they are never merged with
    others. A span without a record only tells what follows the run before it."""
    runs: list[LogSpan] = []
    unread: list[LogSpan] = []
    merged: dict[bool, LogSpan] = {}  # by whether they are older
    last: bool | None = None  # the key in `merged` of the last span; None: it is in `runs`
    time, term = 0, -1  # of the last record that is not older
    older = False
    before: LogSpan | None = None
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        if span.stop == UNREAD:
            if unread and (unread[-1].end >= span.start or len(unread) >= runs_max):
                unread[-1] = replace(unread[-1], end=max(unread[-1].end, span.end))
            else:
                unread.append(span)
            continue
        follows = before is not None and span.continues(before)
        if not follows:
            if span.end == span.start and before is not None:
                continue
            older = span.is_older(time, term)
        if follows and last is None:
            runs[-1] = runs[-1].with_next(span)
        elif follows and last is not None:
            merged[last] = merged[last].with_next(span)
        elif len(runs) < runs_max:
            runs.append(span)
            last = None
        else:
            merged[older] = merged[older].with_next(span, 1) if older in merged else span
            last = older
        before = before.with_next(span) if follows and before is not None else span
        if not older:
            time, term = span.last_time or time, max(span.last_term, term)
    return runs + list(merged.values()) + unread
