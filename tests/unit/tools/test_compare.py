"""Tests that the comparison of benchmark results distinguishes a slower program from a slower machine."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import other_checkout
from tests.benchmarks.compare import main
from tests.benchmarks.report import checkout_lines
from tests.benchmarks.result_files import command_line


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


def test_other_checkouts_are_compared_round_by_round() -> None:
    def rounds(*values: float) -> list[dict[str, float]]:
        return [{"per_second": value, "p99_ms": 1.0} for value in values]

    lines = checkout_lines(
        {"send 1x1": {"ours": rounds(99, 50, 198), "java": rounds(1, 1, 1), "before": rounds(100, 25, 200)}}
    )
    assert lines == [["send 1x1", "before", "100", "99", "0.990 (0.99 to 2.00)", "1.00", "1.00"]]


def test_a_checkout_needs_a_name_of_its_own_and_an_environment(tmp_path: Path) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").touch()
    assert other_checkout(f"before={tmp_path}") == ("before", tmp_path.resolve())
    for text in (str(tmp_path), f"java={tmp_path}", f"before={tmp_path / 'none'}"):
        with pytest.raises(ArgumentTypeError):
            other_checkout(text)


def test_the_command_of_a_result_names_no_folder() -> None:
    words = ["--out", "/a", "--rounds", "3", "--beside", "before=/b", "--beside=old=/c", "--data=/d"]
    expected = "python -m tests.benchmarks --rounds 3 --beside before=CHECKOUT --beside old=CHECKOUT"
    assert command_line("tests.benchmarks", words) == expected
