"""Tests that the mutation tool makes one observable change at a time, and selects the tests that execute the
changed line."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from tools.mutants import mutant_tester
from tools.mutants.catalogue import REMOVE_CALL, MutatedModule, draw, operators
from tools.mutants.checkout_copies import CheckoutCopy
from tools.mutants.coverage_map import CoverageMap, joined
from tools.mutants.mutant_tester import MutantOutcome, MutantTester
from tools.mutants.packages import (
    FURTHER_TESTS,
    PACKAGES,
    ROOT,
    MutatedPackage,
    other_tests,
    package_files,
)
from tools.mutants.report import EQUIVALENT, summary

SOURCE = """from dataclasses import dataclass

LIMIT = 3


@dataclass(frozen=True)
class Box:
    size: int | None = None

    def grow(self, by: int | None) -> bool:
        log.info("grows by %d", by + 1)
        if by is not None:
            self.touch(by)
        return True
"""


def _package(tmp_path: Path) -> MutatedPackage:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "box.py").write_text(SOURCE)
    return MutatedPackage("package", "package", ("tests",), ())


def test_every_position_with_an_observable_change_has_a_mutant_and_no_other(tmp_path: Path) -> None:
    package = _package(tmp_path)
    mutants, places = draw([package], 100, 1, tmp_path)
    changed = {(mutant.before, mutant.after) for mutant in mutants}
    assert places == len(mutants)
    assert {before for before, _ in changed} == {
        "@dataclass(frozen=True)",  # the whole decorator, not its options
        "if by is not None:",
        "self.touch(by)",
        "return True",
    }
    assert ("self.touch(by)", "pass") in changed
    assert ("return True", "return False") in changed
    assert ("@dataclass(frozen=True)", "@dataclass(frozen=False)") not in changed


def test_the_same_seed_draws_the_same_mutants_and_another_seed_others(tmp_path: Path) -> None:
    package = _package(tmp_path)
    first, again, other = (draw([package], 2, seed, tmp_path)[0] for seed in (1, 1, 5))
    assert first == again
    assert first != other


def test_other_code_does_not_change_the_draw(tmp_path: Path) -> None:
    package = _package(tmp_path)
    before = [one.key for one in draw([package], 100, 1, tmp_path)[0]]
    file = tmp_path / package_files(package, tmp_path)[0]
    file.write_text("def other(a, b):\n    return not a + b\n\n\n" + file.read_text())
    after = [one.key for one in draw([package], 100, 1, tmp_path)[0]]
    assert len(after) > len(before)
    assert [key for key in after if key in before] == before


def test_a_mutant_changes_one_line_and_is_still_python(tmp_path: Path) -> None:
    package = _package(tmp_path)
    module = MutatedModule(package, package_files(package, tmp_path)[0], tmp_path)
    text = module.code(REMOVE_CALL, 0)
    assert text is not None
    differing = [
        pair for pair in zip(SOURCE.splitlines(), text.splitlines(), strict=True) if pair[0] != pair[1]
    ]
    assert [(old.strip(), new.strip()) for old, new in differing] == [("self.touch(by)", "pass")]


def test_operators_that_differ_only_for_types_with_their_own_equality_are_left_out() -> None:
    assert not [name for name in operators() if name.endswith(("_Is_Eq", "_Eq_Is"))]


def test_the_tests_that_execute_the_line_are_selected_fastest_first() -> None:
    known = CoverageMap(
        ["slow", "quick", "elsewhere"], [2.0, 0.1, 1.0], {"a.py": {"3": [0, 1], "9": [2]}}, []
    )
    assert known.chosen("a.py", 3, 4) == [1, 0]
    assert known.chosen("a.py", 5, 6) == []


def test_for_a_line_of_the_module_itself_the_tests_that_name_the_module_are_selected_too(
    tmp_path: Path,
) -> None:
    tests = ["tests/test_a.py::calls", "tests/test_b.py::imports", "tests/test_c.py::other"]
    for test, text in zip(tests, ("", "from epochmq_x.box import LIMIT", "import box"), strict=True):
        file = tmp_path / test.split("::")[0]
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    package = _package(tmp_path)
    (tmp_path / "lib" / "epochmq_x").mkdir(parents=True)
    (tmp_path / "lib" / "epochmq_x" / "box.py").write_text(SOURCE)
    name = MutatedModule(package, Path("lib/epochmq_x/box.py"), tmp_path).dotted_name
    importers = partial(CheckoutCopy(tmp_path).test_files_with, name)
    known = CoverageMap(tests, [0.1] * 3, {"box.py": {"3": [], "9": [0]}}, [])
    assert known.chosen("box.py", 3, 3, importers) == [0, 1]
    assert known.chosen("box.py", 9, 9, importers) == [0]
    assert known.chosen("b.py", 3, 4) == []


def test_joined_maps_select_from_the_tests_of_all() -> None:
    first = CoverageMap(["a", "b"], [2.0, 3.0], {"box.py": {"7": [0], "8": [1]}}, ["broken"])
    second = CoverageMap(["c", "d"], [1.0, 4.0], {"box.py": {"7": [1]}, "lid.py": {"1": [0]}}, [])
    both = joined([first, second])
    assert [both.tests[one] for one in both.chosen("box.py", 7, 8)] == ["a", "b", "d"]
    assert [both.tests[one] for one in both.chosen("lid.py", 1, 1)] == ["c"]
    assert both.failed == ["broken"]


def test_the_other_tests_are_all_that_are_not_of_the_packages() -> None:
    others = other_tests(PACKAGES)
    measured = [*others, *(folder for package in PACKAGES for folder in package.unit_tests)]
    assert len(set(measured)) == len(measured)
    modules = {path for root in FURTHER_TESTS for path in (ROOT / root).rglob("test_*.py")}
    found = [
        path
        for name in measured
        for path in ([ROOT / name] if name.endswith(".py") else (ROOT / name).rglob("test_*.py"))
    ]
    assert len(found) == len(set(found))
    assert modules == set(found)


def test_a_line_that_executes_only_at_import_is_tested_by_all_tests_of_the_module() -> None:
    known = CoverageMap(["one", "two"], [2.0, 1.0], {"a.py": {"1": [], "3": [0, 1]}}, [])
    assert known.chosen("a.py", 1, 1) == [1, 0]


def test_a_changed_module_is_restored_after_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    before = path.stat().st_mtime_ns
    try:
        with CheckoutCopy(tmp_path).changed("a.py", "x = 2\n"):
            assert path.read_text() == "x = 2\n"
            assert path.stat().st_mtime_ns > before
            raise KeyError
    except KeyError:
        pass
    assert path.read_text() == "x = 1\n"
    assert path.stat().st_mtime_ns == before


def test_a_command_is_killed_with_its_descendants_after_a_time_out(tmp_path: Path) -> None:
    output = tmp_path / "output"
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    assert CheckoutCopy(tmp_path).run(["-c", code], timeout_s=0.5, output=output) is None


def test_further_tests_are_those_of_all_other_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = MutatedPackage("package", "package", ("tests/unit/broker",), ())
    _package(tmp_path)
    (mutant, *_), _ = draw([package], 1, 1, tmp_path)
    tests = [
        f"tests/unit/{name}.py::test" for name in ("broker/test_a", "broker_pop/test_b", "acting/test_c")
    ]
    lines = {mutant.path: {str(line): [0, 1, 2] for line in range(1, 40)}}
    monkeypatch.setattr(mutant_tester, "PACKAGES", [package])
    ran: list[list[str]] = []
    monkeypatch.setattr(MutantTester, "_run", lambda _self, names, *_: ran.append(names) or "")
    copy = CheckoutCopy(tmp_path)
    unit = CoverageMap(tests[:1], [0.1], {mutant.path: {line: [0] for line in lines[mutant.path]}}, [])
    further = CoverageMap(tests, [0.1, 0.2, 0.3], lines, [])
    tester = MutantTester(copy, {"package": unit}, further, processes=False)
    module = MutatedModule(package, Path(mutant.path), tmp_path)
    assert tester.outcome(module, mutant) == MutantOutcome("survived", "", 3)
    assert ran == [tests[:1], tests[1:]]


def test_tests_whose_parameters_the_mutant_changes_run_with_all_of_theirs(tmp_path: Path) -> None:
    named: list[list[str]] = []

    class Copy:
        folder = tmp_path

        def run(self, _command: list[str], **_: object) -> int:
            named.append((tmp_path / ".mutants-tests").read_text().split())
            return 4 if len(named) == 1 else 0

    tester = MutantTester(cast(Any, Copy()), {}, None, processes=False)
    assert tester._run(["a.py::one[1]", "a.py::one[2]", "a.py::two"], 60) == ""
    assert named == [["a.py::one[1]", "a.py::one[2]", "a.py::two"], ["a.py::one", "a.py::two"]]


def test_runs_share_no_temporary_directory(tmp_path: Path) -> None:
    copy, output = CheckoutCopy(tmp_path), tmp_path / "output"
    roots = set()
    for _ in range(2):
        code = "import os; root = os.environ['PYTEST_DEBUG_TEMPROOT']; print(root, os.path.isdir(root))"
        assert copy.run(["-c", code], timeout_s=60, output=output) == 0
        root, existed = output.read_text().split()
        assert existed == "True"
        assert not Path(root).exists()
        roots.add(root)
    assert len(roots) == 2


def test_shares_leave_equivalent_mutants_out(tmp_path: Path) -> None:
    package = _package(tmp_path)
    mutants, _ = draw([package], 2, 1, tmp_path)
    killed, survived = MutantOutcome("unit", "a test", 3), MutantOutcome("survived", "", 3)
    rows = summary([(mutants[0], killed), (mutants[1], survived)])
    assert rows["all"]["killed_share"] == 0.5
    assert rows["package"]["survived"] == 1


def test_the_paths_of_packages_and_equivalent_mutants_exist() -> None:
    for package in PACKAGES:
        assert package_files(package), package.name
        for tests in (*package.unit_tests, *package.process_tests):
            assert (ROOT / tests).exists(), tests
    for row in json.loads(EQUIVALENT.read_text()):
        assert row["before"] in " ".join(
            line.strip() for line in (ROOT / row["path"]).read_text().splitlines()
        )
        assert row["reason"]
