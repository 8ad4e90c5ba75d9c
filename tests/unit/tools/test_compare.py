"""Tests that the comparison of benchmark results distinguishes a slower program from a slower machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.compare import main


def _result(path: Path, ours: float, java: float, *, cell: str = "send 1x1") -> str:
    row = {"ours": {"per_second": ours}, "java": {"per_second": java}}
    path.write_text(json.dumps({"machine": {"cores": 2}, "medians": {cell: row}}))
    return str(path)


@pytest.mark.parametrize(
    ("ours", "java", "status"),
    [(100, 100, 0), (97.5, 100, 0), (96.5, 100, 1), (90, 90, 0), (90, 95, 1), (120, 100, 0)],
)
def test_a_cell_fails_when_it_lost_more_than_three_percent_and_rocketmq_did_not(
    tmp_path: Path, ours: float, java: float, status: int
) -> None:
    old, new = _result(tmp_path / "old", 100, 100), _result(tmp_path / "new", ours, java)
    assert main([old, new]) == status


def test_plain_comparison_fails_whatever_rocketmq_did(tmp_path: Path) -> None:
    old, new = _result(tmp_path / "old", 100, 100), _result(tmp_path / "new", 90, 90)
    assert main([old, new, "--plain"]) == 1


def test_results_without_a_common_cell_are_an_error(tmp_path: Path) -> None:
    old, new = _result(tmp_path / "old", 1, 1), _result(tmp_path / "new", 1, 1, cell="pull 1x1")
    assert main([old, new]) == 2
