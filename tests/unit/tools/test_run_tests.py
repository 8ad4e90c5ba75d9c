"""Tests the runner of the parts of the test suite, with small programs as parts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.run_tests import ONE_AT_A_TIME, ROOT, TEST, WORKERS, Lane, Part, SuiteRun, skip_summary


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
    assert SuiteRun(parts, WORKERS).all() == 1
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
    assert SuiteRun([part("tests", f"print({summary!r}); raise SystemExit(1)")], ONE_AT_A_TIME).all() == 1
    expected = "  failed: tests\n    tests/unit/a.py::test_bytes[two words - 1]\n    tests/unit/c.py\n"
    assert capsys.readouterr().out.endswith(expected)


def test_the_last_lines_say_how_many_tests_were_skipped_for_each_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = """
SKIPPED [2] tests/interop/conftest.py:61: missing: `java` 17 or newer
SKIPPED [1] tests/unit/spark/test_walk.py:12: Skipped: missing: numba (make install-spark)
1 passed, 3 skipped in 0.01s
"""
    second = """
SKIPPED [30] tests/spark/test_hdfs.py:33: missing: `java` 17 or newer
SKIPPED [1] tests/unit/broker/test_cold_reads.py: files are in memory: [tmpfs]
"""
    parts = [part("first", f"print({first!r})"), part("second", f"print({second!r})"), part("third", "")]
    assert SuiteRun(parts, ONE_AT_A_TIME).all() == 0
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "skipped 32 tests: missing: `java` 17 or newer",
        "skipped 1 test: missing: numba (make install-spark)",
        "skipped 1 test: files are in memory: [tmpfs]",
        "3 passed, 0 failed",
    ]


@pytest.mark.long
def test_real_summaries_of_pytest_are_understood(tmp_path: Path) -> None:
    (tmp_path / "test_module.py").write_text(
        "import pytest\npytest.importorskip('no_such_module', reason='no module')\n"
    )
    (tmp_path / "test_marks.py").write_text(
        "import pytest\n"
        "@pytest.mark.skipif(True, reason='never: here')\n"
        "@pytest.mark.parametrize('number', range(3))\n"
        "def test_marked(number): pass\n"
        "def test_called(): pytest.skip('missing: root')\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", "."]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert skip_summary(printed) == {"no module": 1, "never: here": 3, "missing: root": 1}


def test_the_output_of_parts_that_passed_can_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    parts = [part("good", "print('not interesting')"), part("bad", "raise SystemExit('interesting')")]
    assert SuiteRun(parts, ONE_AT_A_TIME, show_passed=False).all() == 1
    printed = capsys.readouterr().out
    assert "not interesting" not in printed
    assert "interesting" in printed


def test_the_parts_of_a_lane_run_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(number) for number in range(4)]
    assert SuiteRun([part(name, "") for name in names], ONE_AT_A_TIME).all() == 0
    started = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.endswith("…")]
    assert started == names


def test_a_worker_whose_lane_is_empty_takes_parts_of_its_next_one(capsys: pytest.CaptureFixture[str]) -> None:
    parts = [part("first", ""), part("second", ""), part("on a cluster", "", "kubernetes")]
    assert SuiteRun(parts, [("kubernetes", "processes")]).all() == 0
    started = [line for line in capsys.readouterr().out.splitlines() if line.endswith("…")]
    assert started == ["[3/3] on a cluster …", "[1/3] first …", "[2/3] second …"]


def test_every_test_is_in_one_part() -> None:
    given = [Path(one) for part in TEST for one in part.command if one.startswith("tests/")]
    for file in (ROOT / "tests").rglob("test_*.py"):
        parts = [one for one in given if file.relative_to(ROOT).is_relative_to(one)]
        assert len(parts) == 1, f"{file} is in {parts}"


def test_the_parts_have_different_names_and_the_cluster_is_built_before_it_is_tested() -> None:
    assert len({one.name for one in TEST}) == len(TEST)
    build, tests = (one for one in TEST if one.lane == "kubernetes")
    assert build.command[-1] == "build"
    assert tests.command[-1] == "tests/kubernetes"
