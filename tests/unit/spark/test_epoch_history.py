"""Epoch files against each other and against logs, by hand-made histories."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark.checks import controller_view, epoch_history
from epochmq_spark.checks.epoch_history import LogSpan, ReplicaHistory
from epochmq_spark.decode.epoch_file import parse


def log(name: str, end: int, *entries: tuple[int, int], start: int = 0) -> ReplicaHistory:
    """A replica with one run of records."""
    one = ReplicaHistory(name, start, [LogSpan(start, end, 1000, 2000, "zeros")], list(entries))
    assert epoch_history.extent("g", one) == []
    return one


def kinds(*members: ReplicaHistory, torn: frozenset[str] = frozenset()) -> list[tuple[str, str]]:
    return [(row["replica"], row["kind"]) for row in epoch_history.between("g", members, torn)]


def test_an_epoch_without_a_byte_is_nobody_s_history() -> None:
    full = log("a", 300, (1, 0), (3, 100))
    assert kinds(full, log("b", 300, (1, 0), (3, 100), (4, 300))) == []
    assert kinds(full, log("b", 100, (1, 0), (2, 100))) == []


def test_a_replica_that_began_later_lacks_no_epoch_that_ended_before() -> None:
    assert kinds(log("a", 300, (1, 0), (2, 100)), log("b", 300, (2, 100), start=150)) == []


def test_the_common_end_is_that_of_the_newest_common_epoch() -> None:
    old, new = log("old", 400, (1, 0), (2, 200)), log("new", 500, (1, 0), (2, 200), (3, 300))
    assert epoch_history.common_end(old, new) == 300
    assert {one.replica: one.common for one in epoch_history.extents([old, new])} == {"old": 300, "new": 500}


def test_whether_an_entry_is_missing_depends_on_the_bytes() -> None:
    old, new = log("old", 400, (1, 0), (2, 200)), log("new", 500, (1, 0), (2, 200), (3, 300))
    assert kinds(old, new) == [("old", "epoch.missing")]
    assert kinds(old, new, torn=frozenset({"old"})) == []


def test_the_minority_is_wrong_about_where_an_epoch_starts() -> None:
    right = [log(name, 300, (1, 0), (2, 100)) for name in "ab"]
    assert kinds(*right, log("c", 300, (1, 0), (2, 120))) == [("c", "epoch.two-masters")]


def test_what_lies_behind_the_end_is_older_and_no_hole() -> None:
    spans = [LogSpan(0, 100, 5000, 6000, "magic"), LogSpan(140, 200, 3000, 4000, "zeros")]
    cut = ReplicaHistory("a", 0, spans)
    assert [row["kind"] for row in epoch_history.extent("g", cut)] == ["log.remains"]
    assert cut.end == 100
    holed = ReplicaHistory("b", 0, [spans[0], LogSpan(140, 200, 6001, 6002, "zeros")])
    assert [row["kind"] for row in epoch_history.extent("g", holed)] == ["log.broken-record"]
    assert (holed.end, holed.holes) == (200, [(100, 140)])


@pytest.mark.parametrize(
    "text", ["", "x", "1\n", "2\n0\n1-0\n", "1\n5\n1-0\n", "1\n0\n1_0\n", "1\n0\n1-0-0\n"]
)
def test_a_broken_epoch_file_says_what_is_wrong(text: str) -> None:
    assert parse(text)[1]


@pytest.mark.parametrize("metadata", [7, [3], {"brokerName": "g"}, {"brokerName": "g", "masterEpoch": "1"}])
def test_metadata_that_are_none_are_refused(metadata: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        controller_view.views(metadata)
