"""Tests the comparison of epoch files with each other and with logs, on hand-made histories."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark.checks import controller_view, epoch_history
from epochmq_spark.checks.epoch_history import ReplicaHistory
from epochmq_spark.decode.epoch_file import parse_epoch_text
from epochmq_spark.log_spans import LogSpan


def log(name: str, end: int, *entries: tuple[int, int], start: int = 0) -> ReplicaHistory:
    """A replica with one run of records."""
    one = ReplicaHistory(name, start, [LogSpan(start, end, 1000, 2000, "zeros")], list(entries))
    assert epoch_history.find_extent("g", one) == []
    return one


def kinds(*members: ReplicaHistory, diverged: frozenset[str] = frozenset()) -> list[tuple[str, str]]:
    findings = epoch_history.compare_epoch_files("g", members, diverged)
    return [(row["replica"], row["kind"]) for row in findings]


def test_an_epoch_without_a_byte_may_be_in_one_file_only() -> None:
    full = log("a", 300, (1, 0), (3, 100))
    assert kinds(full, log("b", 300, (1, 0), (3, 100), (4, 300))) == []
    assert kinds(full, log("b", 100, (1, 0), (2, 100))) == []


def test_a_log_that_starts_later_needs_no_entry_for_an_epoch_that_ended_before() -> None:
    assert kinds(log("a", 300, (1, 0), (2, 100)), log("b", 300, (2, 100), start=150)) == []


def test_the_common_end_is_the_end_of_the_newest_common_epoch() -> None:
    old, new = log("old", 400, (1, 0), (2, 200)), log("new", 500, (1, 0), (2, 200), (3, 300))
    assert epoch_history.common_end(old, new) == 300
    extents = epoch_history.log_extents([old, new])
    assert {name: extent.common_end for name, extent in extents.items()} == {"old": 300, "new": 500}


def test_an_entry_is_missing_only_if_the_replica_has_the_bytes_of_the_epoch() -> None:
    old, new = log("old", 400, (1, 0), (2, 200)), log("new", 500, (1, 0), (2, 200), (3, 300))
    assert kinds(old, new) == [("old", "epoch.missing")]
    assert kinds(old, new, diverged=frozenset({"old"})) == []


def test_the_majority_decides_where_an_epoch_starts() -> None:
    right = [log(name, 300, (1, 0), (2, 100)) for name in "ab"]
    assert kinds(*right, log("c", 300, (1, 0), (2, 120))) == [("c", "epoch.two-masters")]


def test_older_records_after_a_gap_are_remains_and_newer_ones_make_it_a_hole() -> None:
    spans = [LogSpan(0, 100, 5000, 6000, "magic"), LogSpan(140, 200, 3000, 4000, "zeros")]
    truncated = ReplicaHistory("a", 0, spans)
    assert [row["kind"] for row in epoch_history.find_extent("g", truncated)] == ["log.remains"]
    assert truncated.end == 100
    holed = ReplicaHistory("b", 0, [spans[0], LogSpan(140, 200, 6001, 6002, "zeros")])
    assert [row["kind"] for row in epoch_history.find_extent("g", holed)] == ["log.broken-record"]
    assert (holed.end, holed.holes) == (200, [(100, 140)])


def test_older_records_that_another_replica_has_belong_to_the_log() -> None:
    spans = [LogSpan(0, 100, 5000, 6000, "magic"), LogSpan(140, 200, 3000, 4000, "zeros")]
    damaged = ReplicaHistory("a", 0, spans)
    found = epoch_history.find_extent("g", damaged, frozenset({140}))
    assert [(row["kind"], row["start_offset"]) for row in found] == [("log.broken-record", 100)]
    assert (damaged.end, damaged.holes) == (200, [(100, 140)])


def test_only_a_log_with_the_same_epoch_at_an_offset_has_the_same_record() -> None:
    one = log("a", 300, (1, 0), (3, 100))
    same, other, short = log("b", 400, (1, 0), (3, 100)), log("c", 400, (1, 0)), log("d", 90, (1, 0))
    assert epoch_history.holders_of(one, 200, [one, same, other, short]) == [same]
    assert epoch_history.holders_of(one, 50, [one, same, other, short]) == [same, other, short]


@pytest.mark.parametrize(("first", "kind"), [(100, "epoch.before-first"), (0, "epoch.gap")])
def test_bytes_without_an_epoch_are_an_error_only_if_another_replica_has_one_for_them(
    first: int, kind: str
) -> None:
    found = epoch_history.check_epoch_file("g", log("a", 300, (2, 100)), others_have=True, first_start=first)
    assert [(row["kind"], row["start_offset"], row["end_offset"]) for row in found] == [(kind, 0, 100)]


@pytest.mark.parametrize(
    "text", ["", "x", "1\n", "2\n0\n1-0\n", "1\n5\n1-0\n", "1\n0\n1_0\n", "1\n0\n1-0-0\n"]
)
def test_a_broken_epoch_file_has_a_fault(text: str) -> None:
    assert parse_epoch_text(text)[1]


@pytest.mark.parametrize("metadata", [7, [3], {"brokerName": "g"}, {"brokerName": "g", "masterEpoch": "1"}])
def test_metadata_of_another_shape_are_rejected(metadata: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        controller_view.parse_views(metadata)


def test_a_damaged_epoch_file_costs_a_bounded_number_of_rows_and_characters() -> None:
    entries, fault = parse_epoch_text("3\n7\n" + "?" * 50 + "\n1-0\n" + "x\n" * 90_000)
    assert entries == [(1, 0)]
    assert fault is not None
    assert "89991 more such lines" in fault
    assert len(fault) < 2000
    entries, fault = parse_epoch_text("1-0\n" * 200_000)
    assert (entries, fault) == ([], "200000 lines, expected at most 100000")
