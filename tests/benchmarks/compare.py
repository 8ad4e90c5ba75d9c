"""Compares two results of the same benchmark cell by cell, and fails if a cell has become slower.

python -m tests.benchmarks.compare OLD.json NEW.json

It reads `benchmark-DATE.json`, `replica-groups-DATE.json` and `controllers-DATE.json`. The value of a cell is
our throughput. RocketMQ is the same program in both runs, so its results show how the machine changed between
them. A cell is slower if it lost more than the tolerance and RocketMQ's did not."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.benchmarks import result_files

TOLERANCE: Final = 0.03


@dataclass(frozen=True)
class CellComparison:
    """One cell. `ours` and `java` are ratios new / old; `java` is None if a run has no result of RocketMQ."""

    cell: str
    old: float
    new: float
    ours: float
    java: float | None

    def slower(self, tolerance: float) -> bool:
        """Whether ours lost more than the tolerance."""
        return self.ours < 1 - tolerance

    def slower_than_machine(self, tolerance: float) -> bool:
        """Whether ours lost more than the tolerance, both absolutely and relative to RocketMQ."""
        return self.slower(tolerance) and (self.java is None or self.ours / self.java < 1 - tolerance)


def throughputs(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    """The cells of a result: (cell, throughput by program)."""
    for cell, kinds in data.get("medians", {}).items():
        yield cell, {kind: row["per_second"] for kind, row in kinds.items()}
    summary = data.get("summary", {})
    for cell, kinds in summary.get("throughput", {}).items():
        yield f"sends {cell}", {kind: row["per_second"] for kind, row in kinds.items()}
    if "catch_up" in summary:
        yield "catch-up", {kind: row["mb_per_s"] for kind, row in summary["catch_up"].items()}
    for depth, kinds in summary.get("appends", {}).items():
        yield f"appends, {depth} in flight", {kind: row["per_second"] for kind, row in kinds.items()}


def compare(old: dict[str, Any], new: dict[str, Any]) -> list[CellComparison]:
    """The cells that both results have."""
    before, found = dict(throughputs(old)), []
    for cell, after in throughputs(new):
        earlier = before.get(cell, {})
        if "ours" not in after or "ours" not in earlier:
            continue
        both = "java" in after and "java" in earlier
        found.append(
            CellComparison(
                cell,
                earlier["ours"],
                after["ours"],
                after["ours"] / earlier["ours"],
                after["java"] / earlier["java"] if both else None,
            )
        )
    return found


def table(rows: list[CellComparison], tolerance: float) -> str:
    """The table of all cells, with a verdict for each."""
    head = ["cell", "old", "new", "new/old", "RocketMQ new/old", "verdict"]
    lines = []
    for row in rows:
        verdict = "slower" if row.slower_than_machine(tolerance) else "as RocketMQ"
        lines.append(
            [
                row.cell,
                f"{row.old:,.0f}",
                f"{row.new:,.0f}",
                f"{row.ours:.3f}",
                "–" if row.java is None else f"{row.java:.3f}",
                verdict if row.slower(tolerance) else "",
            ]
        )
    return result_files.table(head, lines)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.compare", description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help=f"a share (default {TOLERANCE:g})")
    parser.add_argument(
        "--plain",
        action="store_true",
        help="fail for every cell beyond the tolerance, also if RocketMQ has become slower, too",
    )
    options = parser.parse_args(words)
    old, new = (json.loads(path.read_text(encoding="utf-8")) for path in (options.old, options.new))
    rows = compare(old, new)
    if not rows:
        print("the results have no cell in common")
        return 2
    if old.get("machine") != new.get("machine"):
        print(f"the machines differ: {old.get('machine')} and {new.get('machine')}")
    print(table(rows, options.tolerance))
    beyond = [
        row
        for row in rows
        if (row.slower(options.tolerance) if options.plain else row.slower_than_machine(options.tolerance))
    ]
    print(f"\n{len(rows)} cells, {len(beyond)} more than {options.tolerance:.0%} slower")
    for row in beyond:
        print(f"  {row.cell}: {row.ours:.3f}")
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
