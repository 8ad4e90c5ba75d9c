"""Draws mutants with a seed, tests each in a copy of the checkout, and reports those that the tests do not
detect.

An interrupted run continues when it is started again with the same seed: the outcome of each mutant is kept
under .cache/mutants until its module changes. `--again` tests survivors again, after tests were added, except
those that are listed as equivalent."""

from __future__ import annotations

import argparse
import datetime
import fcntl
import hashlib
import json
import os
import queue
import shlex
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from tools.mutants import report
from tools.mutants.catalogue import Mutant, MutatedModule, draw
from tools.mutants.checkout_copies import CheckoutCopy
from tools.mutants.coverage_map import CoverageMap, joined, measured
from tools.mutants.mutant_tester import MutantOutcome, MutantTester
from tools.mutants.packages import (
    CACHE,
    FURTHER_TESTS,
    PACKAGES,
    ROOT,
    MutatedPackage,
    other_tests,
)

RESULTS: Final = ROOT / "docs" / "results"
COUNT: Final = 300
SEED: Final = 1
WORKERS: Final = 2
NICENESS: Final = 10


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help=f"mutants to draw (default {COUNT})")
    parser.add_argument("--seed", type=int, default=SEED, help=f"default {SEED}")
    parser.add_argument("--packages", help=f"some of {','.join(one.name for one in PACKAGES)} (default: all)")
    parser.add_argument(
        "--workers", type=int, default=WORKERS, help=f"mutants tested at a time (default {WORKERS})"
    )
    parser.add_argument("--minutes", type=float, help="start no further mutant after this time")
    parser.add_argument("--again", action="store_true", help="test survivors again, except equivalent ones")
    parser.add_argument(
        "--only-unit", action="store_true", help="run only the unit tests of each mutant's package"
    )
    parser.add_argument(
        "--processes",
        action="store_true",
        help="also run tests that start processes, on mutants that all others miss",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="folder of the report (default: docs/results; .cache for some packages only)",
    )
    return parser.parse_args()


class OutcomeFile:
    """The outcomes of this run and of earlier ones, one JSON line each. A line is valid until the module
    changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, MutantOutcome] = {}
        self._lock = threading.Lock()
        if path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self._known[row["key"]] = MutantOutcome(**row["outcome"])

    def outcome(self, key: str) -> MutantOutcome | None:
        """The known outcome of a mutant."""
        return self._known.get(key)

    def add(self, key: str, outcome: MutantOutcome) -> None:
        """Stores an outcome."""
        with self._lock:
            self._known[key] = outcome
            with self._path.open("a") as stream:
                stream.write(json.dumps({"key": key, "outcome": vars(outcome)}) + "\n")


def _key(mutant: Mutant, module: MutatedModule) -> str:
    return f"{mutant.key}-{hashlib.sha256(module.source.encode()).hexdigest()[:12]}"


class MutantQueue:
    """The mutants to test, and the threads that test them."""

    def __init__(
        self, todo: list[tuple[str, Mutant, MutatedModule]], outcomes: OutcomeFile, deadline: float
    ) -> None:
        self._todo: queue.SimpleQueue[tuple[str, Mutant, MutatedModule]] = queue.SimpleQueue()
        for one in todo:
            self._todo.put(one)
        self._total = len(todo)
        self._outcomes = outcomes
        self._deadline = deadline
        self._done = 0
        self._printing = threading.Lock()
        self.error: BaseException | None = None

    def run(self, testers: list[MutantTester]) -> None:
        """Returns when all mutants are tested, or at the deadline."""
        threads = [threading.Thread(target=self._work, args=(tester,)) for tester in testers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.error is not None:
            raise self.error

    def _work(self, tester: MutantTester) -> None:
        try:
            while time.monotonic() < self._deadline and self.error is None:
                try:
                    key, mutant, module = self._todo.get_nowait()
                except queue.Empty:
                    return
                started = time.monotonic()
                outcome = tester.outcome(module, mutant)
                self._outcomes.add(key, outcome)
                self._print(mutant, outcome, time.monotonic() - started)
        except BaseException as error:
            self.error = error

    def _print(self, mutant: Mutant, outcome: MutantOutcome, took_s: float) -> None:
        with self._printing:
            self._done += 1
            print(
                f"{self._done}/{self._total}  {outcome.stage:9} {took_s:5.0f} s  {mutant.path}:{mutant.line}"
                f"  {mutant.before} → {mutant.after}  {outcome.by}",
                flush=True,
            )


def _coverage_maps(
    copies: list[CheckoutCopy], packages: list[MutatedPackage], *, further: bool
) -> tuple[dict[str, CoverageMap], CoverageMap | None]:
    """The maps of the packages' unit tests, and with `further` that of all tests. With two copies or more,
    the packages' tests and the other ones are measured at the same time."""

    def measure_packages() -> dict[str, CoverageMap]:
        return {package.name: measured(copies[0], package.unit_tests) for package in packages}

    with ThreadPoolExecutor(min(len(copies), 2)) as threads:
        others = threads.submit(measured, copies[-1], other_tests(packages)) if further else None
        unit = threads.submit(measure_packages).result()
        every = joined([*unit.values(), *([] if others is None else [others.result()])])
    for test in every.failed:
        print(f"ignored, because it fails without a mutant: {test}", flush=True)
    return unit, every if further else None


def _packages(wanted: str | None) -> list[MutatedPackage]:
    names = wanted.split(",") if wanted else [package.name for package in PACKAGES]
    unknown = sorted(set(names) - {package.name for package in PACKAGES})
    if unknown:
        raise SystemExit(
            f"unknown packages: {', '.join(unknown)}; known: {', '.join(one.name for one in PACKAGES)}"
        )
    return [package for package in PACKAGES if package.name in names]


def main() -> int:
    options = arguments()
    os.nice(NICENESS)
    deadline = time.monotonic() + options.minutes * 60 if options.minutes else float("inf")
    packages = _packages(options.packages)
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another run is using {CACHE}") from None
        return _run(options, packages, deadline)


def _run(options: argparse.Namespace, packages: list[MutatedPackage], deadline: float) -> int:
    first = CheckoutCopy(CACHE / "tree-1")
    first.fill()
    mutants, places = draw(packages, options.count, options.seed, first.folder)
    modules = {
        one.path: MutatedModule(_package_of(one, packages), Path(one.path), first.folder) for one in mutants
    }
    outcomes = OutcomeFile(CACHE / "session.jsonl")
    keyed = [(_key(mutant, modules[mutant.path]), mutant, modules[mutant.path]) for mutant in mutants]
    listed = report.equivalents()
    retried = {key for key, mutant, _ in keyed if options.again and report.reason(mutant, listed) is None}
    todo = [one for one in keyed if _is_untested(outcomes.outcome(one[0]), again=one[0] in retried)]
    print(f"{len(mutants)} mutants, {len(mutants) - len(todo)} of them tested in earlier runs", flush=True)
    if todo:
        copies = [first, *(first.copy(CACHE / f"tree-{n}") for n in range(2, options.workers + 1))]
        unit, further = _coverage_maps(copies, packages, further=not options.only_unit)
        testers = [MutantTester(copy, unit, further, processes=options.processes) for copy in copies]
        MutantQueue(todo, outcomes, deadline).run(testers)
    results = [(mutant, found) for key, mutant, _ in keyed if (found := outcomes.outcome(key)) is not None]
    data: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": f"python -m tools.mutants {shlex.join(sys.argv[1:])}".strip(),
        "seed": options.seed,
        "count": len(mutants),
        "places": places,
        "packages": [one.name for one in packages],
        "further": "no other tests" if options.only_unit else f"those of {' and '.join(FURTHER_TESTS)}",
    }
    whole = len(packages) == len(PACKAGES) and len(results) == len(mutants) and not options.only_unit
    written = report.write(options.out or (RESULTS if whole else CACHE / "results"), data, results)
    rows = report.summary(results)
    print("\n" + report.table(rows))
    print("written: " + ", ".join(str(path) for path in written))
    share = rows["all"]["killed_share"] if rows else None
    return 0 if share is not None and share >= report.GOAL and len(results) == len(mutants) else 1


def _package_of(mutant: Mutant, packages: list[MutatedPackage]) -> MutatedPackage:
    return next(package for package in packages if package.name == mutant.package)


def _is_untested(known: MutantOutcome | None, *, again: bool) -> bool:
    return known is None or (again and known.stage == "survived")


if __name__ == "__main__":
    sys.exit(main())
