"""Tests the runner of the parts of the test suite, with small programs as parts."""

from __future__ import annotations

import sys

import pytest

from tools.run_tests import TEST, Lane, Part, SuiteRun


def part(name: str, code: str, lane: Lane = "processes", niceness: int = 0) -> Part:
    return Part(name, [sys.executable, "-c", code], lane, niceness)


def test_all_parts_run_and_the_failed_ones_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    parts = [
        part("first", "print('output of the first')"),
        part("second", "raise SystemExit(3)"),
        part("third", ""),
        part("on a cluster", "", "kubernetes"),
        part("a computation", "import os; assert os.getsid(0) == os.getpid()", "computation", niceness=10),
    ]
    assert SuiteRun(parts, 2).all() == 1
    printed = capsys.readouterr().out
    assert "output of the first" in printed
    assert "[2/5] second: FAILED (3)" in printed
    assert printed.endswith("4 passed, 1 failed\n  failed: second\n")


def test_the_failed_tests_are_listed_at_the_end_however_long_their_messages(
    capsys: pytest.CaptureFixture[str],
) -> None:
    summary = """
FAILED tests/unit/a.py::test_bytes[two words - 1] - assert b'0' == \\
    b'FAILED tests/unit/b.py::test_of_a_message'
ERROR tests/unit/c.py
2 failed
"""
    assert SuiteRun([part("tests", f"print({summary!r}); raise SystemExit(1)")], 1).all() == 1
    expected = "  failed: tests\n    tests/unit/a.py::test_bytes[two words - 1]\n    tests/unit/c.py\n"
    assert capsys.readouterr().out.endswith(expected)


def test_the_parts_of_a_lane_run_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(number) for number in range(4)]
    assert SuiteRun([part(name, "") for name in names], 1).all() == 0
    started = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.endswith("…")]
    assert started == names


def test_the_parts_have_different_names_and_the_cluster_is_built_before_it_is_tested() -> None:
    assert len({one.name for one in TEST}) == len(TEST)
    build, tests = (one for one in TEST if one.lane == "kubernetes")
    assert build.command[-1] == "build"
    assert tests.command[-1] == "tests/kubernetes"
