"""Draws mutants by a seed, tests each in a copy of the tree, and reports which the tests do not detect.

An interrupted run goes on where it was when it is started again with the same seed: the outcome of every
mutant is kept under .cache/mutants until its module changes. `--again` tries survivors anew, after tests were
added.
"""

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
from pathlib import Path
from typing import Any, Final

from tools.mutants import report
from tools.mutants.catalogue import Mutant, MutatedModule, draw
from tools.mutants.checkout_copies import CheckoutCopy
from tools.mutants.coverage_map import CoverageMap, measured
from tools.mutants.mutant_tester import MutantOutcome, MutantTester
from tools.mutants.packages import CACHE, FURTHER_TESTS, PACKAGES, ROOT, MutatedPackage

RESULTS: Final = ROOT / "docs" / "results"
COUNT: Final = 300
SEED: Final = 1
WORKERS: Final = 2
NICENESS: Final = 10


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help=f"mutants to draw (default {COUNT})")
    parser.add_argument("--seed", type=int, default=SEED, help=f"default {SEED}")
    parser.add_argument("--rooms", help=f"some of {','.join(room.name for room in PACKAGES)} (default: all)")
    parser.add_argument("--workers", type=int, default=WORKERS, help=f"side by side (default {WORKERS})")
    parser.add_argument("--minutes", type=float, help="begin no further mutant after so long")
    parser.add_argument("--again", action="store_true", help="try known survivors anew")
    parser.add_argument("--only-unit", action="store_true", help="only the unit tests of each mutant's room")
    parser.add_argument(
        "--processes", action="store_true", help="also tests that start processes, for what all others miss"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="where the report goes (default: docs/results; .cache for a part of the rooms)",
    )
    return parser.parse_args()


class OutcomeFile:
    """Outcomes of earlier and of this run, one JSON line each. A line counts as long as the mutated module
    is what it was."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, MutantOutcome] = {}
        self._lock = threading.Lock()
        if path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self._known[row["key"]] = MutantOutcome(**row["outcome"])

    def outcome(self, key: str) -> MutantOutcome | None:
        """What is known of this mutant."""
        return self._known.get(key)

    def add(self, key: str, outcome: MutantOutcome) -> None:
        """Remembers an outcome."""
        with self._lock:
            self._known[key] = outcome
            with self._path.open("a") as stream:
                stream.write(json.dumps({"key": key, "outcome": vars(outcome)}) + "\n")


def _key(mutant: Mutant, module: MutatedModule) -> str:
    return f"{mutant.key}-{hashlib.sha256(module.source.encode()).hexdigest()[:12]}"


class MutantQueue:
    """The mutants that are still to be tested, and the workers that take them."""

    def __init__(
        self, todo: list[tuple[str, Mutant, MutatedModule]], session: OutcomeFile, deadline: float
    ) -> None:
        self._todo: queue.SimpleQueue[tuple[str, Mutant, MutatedModule]] = queue.SimpleQueue()
        for one in todo:
            self._todo.put(one)
        self._total = len(todo)
        self._session = session
        self._deadline = deadline
        self._done = 0
        self._printing = threading.Lock()
        self.error: BaseException | None = None

    def run(self, trials: list[MutantTester]) -> None:
        """Returns when all mutants are tested, or the time is over."""
        threads = [threading.Thread(target=self._work, args=(trial,)) for trial in trials]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.error is not None:
            raise self.error

    def _work(self, trial: MutantTester) -> None:
        try:
            while time.monotonic() < self._deadline and self.error is None:
                try:
                    key, mutant, module = self._todo.get_nowait()
                except queue.Empty:
                    return
                started = time.monotonic()
                outcome = trial.outcome(module, mutant)
                self._session.add(key, outcome)
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
    tree: CheckoutCopy, rooms: list[MutatedPackage], *, further: bool
) -> tuple[dict[str, CoverageMap], CoverageMap | None]:
    unit = {room.name: measured(tree, room.unit_tests) for room in rooms}
    others = measured(tree, FURTHER_TESTS) if further else None
    for known in [*unit.values(), *([others] if others else [])]:
        for test in known.failed:
            print(f"not used, because it does not pass here: {test}", flush=True)
    return unit, others


def _packages(wanted: str | None) -> list[MutatedPackage]:
    names = wanted.split(",") if wanted else [room.name for room in PACKAGES]
    unknown = sorted(set(names) - {room.name for room in PACKAGES})
    if unknown:
        raise SystemExit(
            f"no such rooms: {', '.join(unknown)}; there are {', '.join(r.name for r in PACKAGES)}"
        )
    return [room for room in PACKAGES if room.name in names]


def main() -> int:
    options = arguments()
    os.nice(NICENESS)
    deadline = time.monotonic() + options.minutes * 60 if options.minutes else float("inf")
    rooms = _packages(options.rooms)
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another run works in {CACHE}") from None
        return _run(options, rooms, deadline)


def _run(options: argparse.Namespace, rooms: list[MutatedPackage], deadline: float) -> int:
    first = CheckoutCopy(CACHE / "tree-1")
    first.fill()
    mutants, places = draw(rooms, options.count, options.seed, first.folder)
    modules = {
        one.path: MutatedModule(_package_of(one, rooms), Path(one.path), first.folder) for one in mutants
    }
    session = OutcomeFile(CACHE / "session.jsonl")
    keyed = [(_key(mutant, modules[mutant.path]), mutant, modules[mutant.path]) for mutant in mutants]
    todo = [one for one in keyed if _is_untested(session.outcome(one[0]), again=options.again)]
    print(f"{len(mutants)} mutants, {len(mutants) - len(todo)} of them known from earlier runs", flush=True)
    if todo:
        unit, further = _coverage_maps(first, rooms, further=not options.only_unit)
        trees = [first, *(first.copy(CACHE / f"tree-{n}") for n in range(2, options.workers + 1))]
        trials = [MutantTester(tree, unit, further, processes=options.processes) for tree in trees]
        MutantQueue(todo, session, deadline).run(trials)
    results = [(mutant, found) for key, mutant, _ in keyed if (found := session.outcome(key)) is not None]
    data: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": f"python -m tools.mutants {shlex.join(sys.argv[1:])}".strip(),
        "seed": options.seed,
        "count": len(mutants),
        "places": places,
        "rooms": [room.name for room in rooms],
        "further": "no others" if options.only_unit else f"those of {' and '.join(FURTHER_TESTS)}",
    }
    whole = len(rooms) == len(PACKAGES) and len(results) == len(mutants) and not options.only_unit
    written = report.write(options.out or (RESULTS if whole else CACHE / "results"), data, results)
    rows = report.summary(results)
    print("\n" + report.table(rows))
    print("written: " + ", ".join(str(path) for path in written))
    share = rows["all"]["killed_share"] if rows else None
    return 0 if share is not None and share >= report.GOAL and len(results) == len(mutants) else 1


def _package_of(mutant: Mutant, rooms: list[MutatedPackage]) -> MutatedPackage:
    return next(room for room in rooms if room.name == mutant.room)


def _is_untested(known: MutantOutcome | None, *, again: bool) -> bool:
    return known is None or (again and known.stage == "survived")


if __name__ == "__main__":
    sys.exit(main())
