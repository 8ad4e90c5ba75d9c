"""Runs power cuts and disk faults of real groups under RocketMQ's clients, and writes disk-faults-DATE.json
and .md."""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.machine import describe_machine
from tests.integration.disks import audits, faulty_volume, images, report
from tests.integration.disks.disk_faults import FAULTS, ROLES, SETTINGS, FaultRounds
from tests.integration.disks.group import FaultyGroup
from tests.integration.disks.power_cuts import ALL, AT_END, EACH, NEVER, ONE, PowerCutRounds

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "docs" / "results"


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.integration.disks", description=__doc__)
    parser.add_argument("--cuts", type=int, default=50, help="power cuts of each kind (default: 50)")
    parser.add_argument("--scope", choices=[ALL, ONE], action="append", help="only this kind of power cut")
    parser.add_argument("--audit", choices=[NEVER, AT_END, EACH], default=AT_END, help="when the audit runs")
    parser.add_argument("--hold", type=float, default=5.0, help="how long a disk fault lasts, s (0: none)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--out", type=Path, help="where the results go (default: docs/results)")
    return parser.parse_args()


def report_progress(text: object) -> None:
    """Prints a line of progress."""
    print(text, flush=True)


def measure_cuts(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Maps each scope to the results of its power cuts."""
    found = {}
    for scope in (options.scope or [ALL, ONE]) if options.cuts else []:
        rounds = PowerCutRounds(
            folder / scope,
            scope,
            options.seed,
            options.audit,
            stop_at_failure=False,
            report_progress=report_progress,
        )
        rounds.run(options.cuts)
        found[scope] = report.summary_of(rounds.cuts)
    if found and options.audit != NEVER:
        audits.end_session()
    return found


def measure_faults(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """The results of each fault at each role."""
    if not options.hold:
        return []
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
    """Measures and writes the results. The exit status is 1 when anything was lost."""
    options = arguments()
    if (lacks := images.missing() or faulty_volume.missing()) is not None:
        print(f"missing: {lacks}", file=sys.stderr)
        return 2
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    folder = Path(tempfile.mkdtemp(prefix="epochmq-disk-report-"))
    report_progress(f"seed {options.seed}, processes live in {folder}")
    data = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python -m tests.integration.disks", *sys.argv[1:]]),
        "commit": commit,
        "seed": options.seed,
        "machine": {**describe_machine(), "load_average_at_start": round(os.getloadavg()[0], 1)},
        "faults": measure_faults(options, folder),
        "cuts": measure_cuts(options, folder),
    }
    for path in report.write(options.out or RESULTS, data):
        report_progress(path)
    bad = [row for row in data["faults"] if row["lost"] or row["divergent"]]
    bad += [row for row in data["cuts"].values() if row["lost"] or row["divergent"] or row["not_healed"]]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
