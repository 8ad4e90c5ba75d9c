"""Runs the tests that may detect a mutant, and returns the first one that did."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from tools.mutants.catalogue import Mutant, MutatedModule
from tools.mutants.checkout_copies import CheckoutCopy
from tools.mutants.coverage_map import CoverageMap
from tools.mutants.packages import PACKAGES

TEST_TIMEOUT_MIN_S: Final = 30.0
TIMEOUT_MIN_S: Final = 120.0
TIMEOUT_FACTOR: Final = 8.0
"""The limit is this multiple of the durations while coverage was measured. It is large, because a time-out
counts as a detection, and a busy machine must not look like one."""
BUDGET_S: Final = 240.0
"""A stage runs the fastest of the selected tests, up to this sum of their durations."""
PROCESS_TIMEOUT_S: Final = 600.0
FAILURES: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
NOT_FOUND: Final = 4
"""pytest's exit status if a named test does not exist. Some tests have parameters that are computed from the
code, so a mutant may have others."""
OUTPUT_KEPT: Final = 300

KILLED_STAGES: Final = ("unit", "further", "processes")


@dataclass(frozen=True)
class MutantOutcome:
    """The outcome of a mutant. `stage` names the tests that detected it: `unit` (the unit tests of its
    package), `further`, `processes`; or it is `survived`. `by` is the first test that failed, or how else the
    run ended. `tests` is the largest number of tests that may have run."""

    stage: str
    by: str
    tests: int


class MutantTester:
    """Tests mutants in one copy of the checkout, one at a time."""

    def __init__(
        self,
        copy: CheckoutCopy,
        unit: dict[str, CoverageMap],
        further: CoverageMap | None,
        *,
        processes: bool,
    ) -> None:
        self._copy = copy
        self._unit = unit
        self._further = further
        self._processes = processes
        self._packages = {package.name: package for package in PACKAGES}

    def outcome(self, module: MutatedModule, mutant: Mutant) -> MutantOutcome:
        """Changes the module, runs the tests stage by stage until one fails, and restores the module."""
        text = module.code(mutant.operator, mutant.occurrence)
        assert text is not None, f"{mutant.path}: {mutant.operator} {mutant.occurrence} does not exist"
        package = self._packages[mutant.package]
        importers = partial(self._copy.test_files_with, module.dotted_name)
        tried = 0
        with self._copy.changed(mutant.path, text):
            for stage, known in (("unit", self._unit[package.name]), ("further", self._further)):
                if known is None:
                    continue
                numbers = known.chosen(mutant.path, *mutant.lines, importers)
                if stage == "further":
                    tested = tuple(f"{folder}/" for folder in package.unit_tests)
                    numbers = [one for one in numbers if not known.tests[one].startswith(tested)]
                tried += len(numbers)
                if numbers and (by := self._killed_by_known(known, numbers)):
                    return MutantOutcome(stage, by, tried)
            if (
                self._processes
                and package.process_tests
                and (by := self._run(package.process_tests, PROCESS_TIMEOUT_S))
            ):
                return MutantOutcome("processes", by, tried)
        return MutantOutcome("survived", "", tried)

    def _killed_by_known(self, known: CoverageMap, numbers: list[int]) -> str:
        affordable, expected = [], 0.0
        for one in numbers:
            if affordable and expected + known.seconds[one] > BUDGET_S:
                break
            affordable.append(one)
            expected += known.seconds[one]
        longest = TEST_TIMEOUT_MIN_S + TIMEOUT_FACTOR * known.seconds[affordable[-1]]
        return self._run(
            [known.tests[one] for one in affordable],
            TIMEOUT_MIN_S + TIMEOUT_FACTOR * expected,
            f"--timeout={longest:.0f}",
        )

    def _run(self, tests: Sequence[str], timeout_s: float, *options: str) -> str:
        """The test that detected the mutant, or how else the run ended; empty if all tests passed."""
        names = self._copy.folder / ".mutants-tests"
        names.write_text("".join(f"{test}\n" for test in tests))
        output = self._copy.folder / ".mutants-output"
        command = [
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-m",
            "not soak",
            *options,
            f"@{names}",
        ]
        status = self._copy.run(command, timeout_s=timeout_s, output=output)
        if status == NOT_FOUND:
            whole = list(dict.fromkeys(test.partition("[")[0] for test in tests))
            if whole != list(tests):
                return self._run(whole, timeout_s, *options)
        if status == 0:
            return ""
        if status is None:
            return f"time-out after {timeout_s:.0f} s"
        printed = output.read_text(errors="replace")
        found = FAILURES.search(printed)
        if found:
            return found.group(1)
        return f"exit status {status}: {printed.strip()[-OUTPUT_KEPT:]}"
