"""Checksums of a group's replicas decide what is repaired, from where, and what is reported."""

from __future__ import annotations

import pytest

from epochmq_broker.replication.scrub.comparison import (
    REPAIRED_BYTES_MAX,
    Part,
    chosen,
    differing,
    differing_range,
    is_outvoted,
    parts_of,
    sources,
)
from epochmq_store.log.damaged_ranges import DamagedRange
from epochmq_store.log.scanned_unit import ScannedPiece, ScannedUnit

PARTS = [Part(0, 100, 1), Part(100, 150, None), Part(150, 300, 3)]


def test_the_parts_are_in_order_and_leave_out_what_is_too_large_to_repair() -> None:
    pieces = (ScannedPiece(0, 100, 1), ScannedPiece(150, 300, 3))
    unit = ScannedUnit(0, 300, pieces, (DamagedRange(100, 150, "rot"),))
    assert parts_of(unit) == PARTS
    huge = DamagedRange(300, 301 + REPAIRED_BYTES_MAX, "rot")
    assert parts_of(ScannedUnit(0, huge.end, pieces, (*unit.damaged, huge))) == PARTS


def test_a_repair_comes_from_replicas_that_agree_or_have_the_same_bytes_around_it() -> None:
    peers = {"b": [1, 2, 9], "c": [8, 2, 3], "d": [1, 7, 3], "e": [1, 5, 9], "f": [1, 2, 9]}
    assert sources(PARTS, 1, peers) == [["b", "c", "f"], ["d"]]


def test_a_unit_that_is_broken_as_a_whole_takes_every_replica() -> None:
    assert sources([Part(0, 100, None)], 0, {"b": [2], "c": [2]}) == [["b", "c"]]


@pytest.mark.parametrize(
    ("whole", "best"),
    [
        ([], None),
        ([["b"]], ["b"]),
        ([["b"], ["c"]], None),
        ([["b"], ["c", "d"]], ["c", "d"]),
    ],
)
def test_a_repair_needs_bytes_that_most_whole_replicas_have(
    whole: list[list[str]], best: list[str] | None
) -> None:
    assert chosen(whole) == best


def test_whole_parts_with_another_checksum_elsewhere_differ() -> None:
    assert differing(PARTS, {"b": [1, 2, 3], "c": [1, 5, 3]}) == []
    assert differing(PARTS, {"b": [1, 2, 3], "c": [9, 2, 3]}) == [0]


@pytest.mark.parametrize(
    ("others", "outvoted"),
    [
        ([], False),
        ([1], False),
        ([2], True),
        ([1, 2], False),
        ([2, 2], True),
        ([2, 3], True),
        ([1, 1, 2], False),
    ],
)
def test_the_majority_tells_whose_bytes_are_wrong(others: list[int], outvoted: bool) -> None:
    assert is_outvoted(1, others) is outvoted


def test_differing_bytes_are_reported_as_whole_records() -> None:
    own = bytes(100)
    theirs = bytes(45) + b"x" + bytes(9) + b"y" + bytes(44)
    found = differing_range(1000, [1000, 1040, 1060, 1100], own, theirs, "b:1")
    assert found is not None
    assert (found.start, found.end, found.repairable) == (1040, 1060, False)
    assert "b:1" in found.fault
    assert differing_range(1000, [1000, 1100], own, own, "b:1") is None
