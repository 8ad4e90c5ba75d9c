"""Keeps the results of power cuts and disk faults in one pair of files, to which several runs add."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.benchmarks.machine import describe_machine
from tests.integration.disks import report

ROOT = Path(__file__).resolve().parents[3]


class DiskResults:
    """The rounds of power cuts of each scope and the disk faults, of this run and of those before it."""

    def __init__(self, folder: Path, earlier: Path | None) -> None:
        """`earlier` is the .json of earlier runs, whose files `save` replaces."""
        found = {} if earlier is None else json.loads(earlier.read_text())
        self.runs: list[dict[str, Any]] = found.get("runs", [])
        self.faults: list[dict[str, Any]] = found.get("faults", [])
        self.cuts: dict[str, list[dict[str, Any]]] = found.get("cuts", {})
        self._machine = found.get("machine") or describe_machine()
        self._folder = folder
        self._replaced = earlier

    def add_run(self, command: str, seed: int) -> None:
        """Names the run that adds results from now on."""
        self.runs.append(
            {
                "date": _now(),
                "command": command,
                "commit": _commit(),
                "seed": seed,
                "load_average_at_start": round(os.getloadavg()[0], 1),
            }
        )

    def save(self) -> tuple[Path, Path]:
        """Writes the files, removes those that they replace, and returns their paths."""
        data = {
            "date": _now(),
            "runs": self.runs,
            "machine": self._machine,
            "faults": self.faults,
            "cuts": self.cuts,
        }
        written = report.write(self._folder, data)
        if self._replaced is not None:
            for old in (self._replaced, self._replaced.with_suffix(".md")):
                if old.resolve() not in [path.resolve() for path in written]:
                    old.unlink(missing_ok=True)
            self._replaced = None
        return written

    def are_good(self) -> bool:
        """Whether nothing was lost, no replica differs, every group got back in sync, and every fault was
        felt."""
        return all(not (row["lost"] or row["divergent"]) and row["felt"] for row in self.faults) and all(
            not (cut["lost"] or cut["divergent"] or cut["findings"]) and cut["healed"]
            for rounds in self.cuts.values()
            for cut in rounds
        )


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
