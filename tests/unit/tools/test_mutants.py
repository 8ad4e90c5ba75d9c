"""The mutation tool changes one thing at a time, where that can be observed, and chooses the tests that run
the changed line."""

from __future__ import annotations

import json
from pathlib import Path

from tools.mutants.catalogue import REMOVE_CALL, MutatedModule, draw, operators
from tools.mutants.checkout_copies import CheckoutCopy
from tools.mutants.coverage_map import CoverageMap
from tools.mutants.mutant_tester import MutantOutcome
from tools.mutants.packages import PACKAGES, ROOT, MutatedPackage, package_files
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


def _room(tmp_path: Path) -> MutatedPackage:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "box.py").write_text(SOURCE)
    return MutatedPackage("room", "room", ("tests",), ())


def test_every_place_that_can_be_observed_has_a_mutant_and_no_other(tmp_path: Path) -> None:
    room = _room(tmp_path)
    mutants, places = draw([room], 100, 1, tmp_path)
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
    room = _room(tmp_path)
    first, again, other = (draw([room], 2, seed, tmp_path)[0] for seed in (1, 1, 5))
    assert first == again
    assert first != other


def test_a_mutant_changes_one_line_and_is_still_python(tmp_path: Path) -> None:
    room = _room(tmp_path)
    module = MutatedModule(room, package_files(room, tmp_path)[0], tmp_path)
    text = module.code(REMOVE_CALL, 0)
    assert text is not None
    differing = [
        pair for pair in zip(SOURCE.splitlines(), text.splitlines(), strict=True) if pair[0] != pair[1]
    ]
    assert [(old.strip(), new.strip()) for old, new in differing] == [("self.touch(by)", "pass")]


def test_the_operators_leave_out_comparisons_that_differ_for_odd_types_only() -> None:
    assert not [name for name in operators() if name.endswith(("_Is_Eq", "_Eq_Is"))]


def test_the_tests_that_run_the_line_are_chosen_quickest_first() -> None:
    known = CoverageMap(
        ["slow", "quick", "elsewhere"], [2.0, 0.1, 1.0], {"a.py": {"3": [0, 1], "9": [2]}}, []
    )
    assert known.chosen("a.py", 3, 4) == [1, 0]
    assert known.chosen("a.py", 5, 6) == []
    assert known.chosen("b.py", 3, 4) == []


def test_a_line_that_only_an_import_runs_is_tested_by_all_that_use_the_module() -> None:
    known = CoverageMap(["one", "two"], [2.0, 1.0], {"a.py": {"1": [], "3": [0, 1]}}, [])
    assert known.chosen("a.py", 1, 1) == [1, 0]


def test_a_changed_module_is_restored_also_when_its_test_fails(tmp_path: Path) -> None:
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


def test_a_command_without_an_end_is_ended_with_all_it_has_started(tmp_path: Path) -> None:
    output = tmp_path / "output"
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    assert CheckoutCopy(tmp_path).run(["-c", code], timeout_s=0.5, output=output) is None


def test_shares_leave_equivalent_mutants_out(tmp_path: Path) -> None:
    room = _room(tmp_path)
    mutants, _ = draw([room], 2, 1, tmp_path)
    killed, survived = MutantOutcome("unit", "a test", 3), MutantOutcome("survived", "", 3)
    rows = summary([(mutants[0], killed), (mutants[1], survived)])
    assert rows["all"]["killed_share"] == 0.5
    assert rows["room"]["survived"] == 1


def test_the_rooms_and_the_equivalent_mutants_name_what_exists() -> None:
    for room in PACKAGES:
        assert package_files(room), room.name
        for tests in (*room.unit_tests, *room.process_tests):
            assert (ROOT / tests).exists(), tests
    for row in json.loads(EQUIVALENT.read_text()):
        assert row["before"] in " ".join(
            line.strip() for line in (ROOT / row["path"]).read_text().splitlines()
        )
        assert row["reason"]
