"""Tests the joining of the spans of a log: what a healthy log needs is one run, what a wrecked one needs is
bounded, and the extent of a log does not depend on how its spans were divided."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("pyarrow", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark.checks import epoch_history
from epochmq_spark.checks.epoch_history import ReplicaHistory
from epochmq_spark.log_spans import UNREAD, LogSpan, join_spans, row_of_span, span_of_row


def test_a_healthy_log_is_one_run() -> None:
    spans = [LogSpan(at, at + 100, at + 1, at + 90, "range", 4) for at in range(0, 100_000, 100)]
    random.Random(1).shuffle(spans)
    assert join_spans(spans) == [LogSpan(0, 100_000, 1, 99_990, "range", 4000)]


def test_the_bytes_behind_a_run_are_told_by_a_span_without_records() -> None:
    spans = [LogSpan(0, 100, 1, 2, "file", 3), LogSpan(100, 100, 0, 0, "zeros")]
    assert join_spans(spans) == [LogSpan(0, 100, 1, 2, "zeros", 3)]


@pytest.mark.parametrize("runs_max", [1, 10, 1000])
def test_the_runs_of_a_wrecked_log_are_bounded_and_none_of_its_breaks_is_forgotten(runs_max: int) -> None:
    spans = [LogSpan(at, at + 90, at + 1, at + 50, "magic", 4) for at in range(0, 500_000, 100)]
    runs = join_spans(spans, runs_max)
    assert len(runs) == runs_max + 1
    assert len(runs) - 1 + sum(one.breaks for one in runs) == len(spans) - 1
    assert sum(one.records for one in runs) == 4 * len(spans)
    assert runs[-1].end == spans[-1].end
    history = ReplicaHistory("a", 0, runs)
    found = epoch_history.find_extent("g", history)
    assert history.end == spans[-1].end
    more = found.pop()
    assert [row["kind"] for row in found] == ["log.broken-record"] * runs_max
    assert more["kind"] == "more"
    assert more["detail"] == f"{len(spans) - 1 - runs_max} of log.broken-record or log.hole"
    assert history.broken_runs == [(runs[-1].start, runs[-1].end)]


def test_old_records_do_not_belong_to_the_log_however_many_runs_of_them_there_are() -> None:
    spans = [LogSpan(0, 50, 9000, 9999, "magic", 1)]
    spans += [LogSpan(at, at + 90, at, at + 1, "magic", 1) for at in range(100, 5000, 100)]
    runs = join_spans(spans, 3)
    assert len(runs) == 4
    history = ReplicaHistory("a", 0, runs)
    assert {row["kind"] for row in epoch_history.find_extent("g", history)} == {"log.remains"}
    assert (history.end, history.broken_runs) == (50, [])


@pytest.mark.parametrize("seed", range(30))
def test_ranges_that_are_joined_one_by_one_give_the_same_extent(seed: int) -> None:
    rng = random.Random(seed)
    spans, at, time = [], 0, 1
    for _ in range(rng.randrange(1, 60)):
        at += rng.choice([0, 0, 0, 7])
        size = rng.choice([0, 10, 20])
        first = time if size else 0
        time += 5
        last = time if size else 0
        stop = UNREAD if size and rng.random() < 0.1 else rng.choice(["magic", "zeros", "range"])
        spans.append(LogSpan(at, at + size, first, last, stop, size // 10))
        at += size
    whole, parts = ReplicaHistory("a", 0, spans), ReplicaHistory("a", 0, [])
    ranges = [spans[start : start + 7] for start in range(0, len(spans), 7)]
    rows = [row_of_span(run) for one in ranges for run in join_spans(one, 64)]
    parts.spans = join_spans([span_of_row(row) for row in rows])
    expected = [
        (row["kind"], row["start_offset"], row["end_offset"]) for row in epoch_history.find_extent("g", whole)
    ]
    found = [
        (row["kind"], row["start_offset"], row["end_offset"]) for row in epoch_history.find_extent("g", parts)
    ]
    assert found == expected
    assert (parts.end, parts.holes) == (whole.end, whole.holes)


def test_ranges_that_cannot_be_read_are_bounded() -> None:
    spans = [LogSpan(at, at + 50, 0, 0, UNREAD) for at in range(0, 100_000, 100)]
    runs = join_spans(spans, 10)
    assert len(runs) == 10
    assert runs[-1].end == spans[-1].end
