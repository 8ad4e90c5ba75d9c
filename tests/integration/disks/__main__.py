"""Runs power cuts and disk faults of real groups under RocketMQ's clients, and writes disk-faults-DATE.json
and .md. With `--add-to` it adds its results to those of earlier runs. Power cuts are added after each group,
so that an interrupted run loses those of one group only."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.benchmarks import result_files
from tests.integration.disks import audits, faulty_volume, images
from tests.integration.disks.disk_faults import FAULTS, ROLES, SETTINGS, FaultRounds
from tests.integration.disks.disk_results import ROOT, DiskResults
from tests.integration.disks.group import FaultyGroup
from tests.integration.disks.power_cuts import (
    ALL,
    AT_END,
    EACH,
    NEVER,
    ONE,
    ROUNDS_PER_GROUP,
    PowerCutRounds,
)

RESULTS = ROOT / "docs" / "results"


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.integration.disks", description=__doc__)
    parser.add_argument("--cuts", type=int, default=50, help="power cuts of each kind (default: 50)")
    parser.add_argument("--scope", choices=[ALL, ONE], action="append", help="only this kind of power cut")
    parser.add_argument("--audit", choices=[NEVER, AT_END, EACH], default=AT_END, help="when the audit runs")
    parser.add_argument("--hold", type=float, default=5.0, help="how long a disk fault lasts, s (0: none)")
    parser.add_argument("--groups", type=int, default=1, help="groups that run at a time (default: 1)")
    parser.add_argument("--minutes", type=float, help="start no further group after this time")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument(
        "--add-to", type=Path, help="the .json of earlier results, which the new ones replace"
    )
    parser.add_argument("--out", type=Path, help="where the results go (default: docs/results)")
    return parser.parse_args()


def report_progress(text: object) -> None:
    """Prints a line of progress."""
    print(text, flush=True)


class GroupQueue:
    """The groups whose power is to be cut; several threads take them. Each group is run by one thread to its
    end, because the group's processes end with the thread that started them."""

    def __init__(self, options: argparse.Namespace, folder: Path, results: DiskResults) -> None:
        self._options = options
        self._folder = folder
        self._results = results
        self._left = dict.fromkeys(options.scope or [ALL, ONE], options.cuts)
        self._deadline = time.monotonic() + options.minutes * 60 if options.minutes else float("inf")
        self._seed = options.seed
        self._lock = threading.Lock()

    def run(self) -> None:
        """Runs groups of all scopes in turn, until all rounds are made or the time is over. Saves the results
        after each group."""
        while (group := self._take()) is not None:
            scope, seed, count = group
            rounds = PowerCutRounds(
                self._folder / scope, scope, seed, self._options.audit, report_progress=report_progress
            )
            rounds.run(count)
            with self._lock:
                self._left[scope] += count - len(rounds.cuts)  # a failed round ends its group
                self._results.cuts.setdefault(scope, []).extend(cut.plain() for cut in rounds.cuts)
                self._results.save()

    def _take(self) -> tuple[str, int, int] | None:
        """(scope, seed, rounds) of the next group."""
        with self._lock:
            scope = max(self._left, key=lambda one: self._left[one])
            count = min(self._left[scope], ROUNDS_PER_GROUP)
            if count <= 0 or time.monotonic() >= self._deadline:
                return None
            self._left[scope] -= count
            self._seed += 1
            return scope, self._seed - 1, count


def measure_cuts(options: argparse.Namespace, folder: Path, results: DiskResults) -> None:
    """Cuts the power of `options.groups` groups at a time."""
    groups = GroupQueue(options, folder, results)
    with ThreadPoolExecutor(options.groups) as threads:
        for thread in [threads.submit(groups.run) for _ in range(options.groups)]:
            thread.result()
    if options.audit != NEVER:
        audits.end_session()


def measure_faults(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """The results of each fault at each role."""
    found = []
    with FaultyGroup(folder / "faults", SETTINGS) as group:
        rounds = FaultRounds(group)
        for fault in FAULTS:
            for role in ROLES:
                found.append(rounds.run(role, fault, hold_s=options.hold).plain())
                report_progress(found[-1])
        rounds.finish()
    return found


def main() -> int:
    """Measures and writes the results. The exit status is 1 when anything was lost, or a fault affected
    nothing; then the folders of the processes stay."""
    options = arguments()
    if (lacks := images.missing() or faulty_volume.missing()) is not None:
        print(f"missing: {lacks}", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="epochmq-disk-report-"))
    report_progress(f"seed {options.seed}, processes live in {folder}")
    results = DiskResults(options.out or RESULTS, options.add_to)
    results.add_run(result_files.command_line("tests.integration.disks", sys.argv[1:]), options.seed)
    if options.hold:
        results.faults = measure_faults(options, folder)
    if options.cuts:
        measure_cuts(options, folder, results)
    for path in results.save():
        report_progress(path)
    if not results.are_good():
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
