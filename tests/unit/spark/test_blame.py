"""Which replica a difference is blamed on: the minority of the valid copies, or none."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark.checks.log_extent import LogExtent
from epochmq_spark.checks.record_copies import LISTED_MAX, RecordCopy, compare_records

END = 1_000_000
Log = list[RecordCopy]


def copy(offset: int, size: int, letter: str, *, crc_ok: bool = True) -> RecordCopy:
    return RecordCopy(offset, letter.encode() * size, crc_ok)


def compared(**logs: Log) -> list[dict[str, Any]]:
    """`b` leads."""
    extents = {name: LogExtent(0, END, END, name == "b") for name in logs}
    return compare_records("g", logs, extents)


def blamed(**logs: Log) -> list[tuple[str, str, int]]:
    return [(row["replica"], row["kind"], row["start_offset"]) for row in compared(**logs)]


WHOLE = [copy(0, 200, "x"), copy(200, 100, "y")]
OTHER = [copy(0, 200, "z"), copy(200, 100, "y")]
SPLIT = [copy(0, 100, "p"), copy(100, 100, "q"), copy(200, 100, "y")]
HOLE = [copy(200, 100, "y")]
ROTTEN = [copy(0, 200, "z", crc_ok=False), copy(200, 100, "y")]


def test_a_minority_is_blamed_even_if_it_leads() -> None:
    assert blamed(a=WHOLE, b=OTHER, c=WHOLE) == [("b", "log.diverged", 0)]


def test_two_records_in_place_of_one_are_the_minority_s() -> None:
    assert blamed(a=WHOLE, b=SPLIT, c=WHOLE) == [("b", "log.diverged", 0), ("b", "log.diverged", 100)]


def test_one_record_in_place_of_two_is_the_minority_s() -> None:
    assert blamed(a=SPLIT, b=WHOLE, c=SPLIT) == [("b", "log.diverged", 0), ("b", "message.missing", 100)]


@pytest.mark.parametrize("other", [OTHER, SPLIT], ids=["altered", "split"])
def test_of_a_pair_one_differs_and_nothing_tells_which(other: Log) -> None:
    rows = compared(a=WHOLE, b=other)
    assert [(row["replica"], row["kind"], row["start_offset"]) for row in rows] == [
        ("a", "log.diverged", 0),
        ("b", "log.diverged", 0),
    ]
    assert all(row["detail"].startswith("a, b: one of the two differs, and nothing tells") for row in rows)


def test_a_hole_is_blamed_in_a_pair_and_in_a_majority() -> None:
    assert blamed(a=HOLE, b=WHOLE) == [("a", "message.missing", 0)]
    assert blamed(a=HOLE, b=WHOLE, c=HOLE) == [("a", "message.missing", 0), ("c", "message.missing", 0)]


def test_a_wrong_checksum_has_no_vote() -> None:
    """The other check names it."""
    assert blamed(a=WHOLE, b=ROTTEN) == []
    assert blamed(a=ROTTEN, b=WHOLE, c=ROTTEN) == []


def test_what_is_not_listed_has_a_range() -> None:
    size = 100
    many = [copy(at * size, size, "x") for at in range(LISTED_MAX + 50)]
    *_, last = compared(a=many, b=[], c=many)
    assert (last["kind"], last["replica"], last["detail"]) == ("more", "b", "50 of message.missing")
    assert (last["start_offset"], last["end_offset"]) == (LISTED_MAX * size, (LISTED_MAX + 50) * size)
