"""Writes the table of peers in docs/rocketmq.md: `python -m tools.compatibility FILE`, where FILE lists the
tests that passed (`tests.support.compatibility`). `tests/interop/compatibility.json` keeps the counts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.compatibility import Counts, counted, passed_tests, table

ROOT = Path(__file__).resolve().parent.parent
COUNTS = ROOT / "tests" / "interop" / "compatibility.json"
PAGE = ROOT / "docs" / "rocketmq.md"
BEGIN, END = "<!-- peers: begin -->\n", "<!-- peers: end -->\n"


def kept_counts() -> Counts:
    """The counts of the last run."""
    counts: Counts = json.loads(COUNTS.read_text(encoding="utf-8"))
    return counts


def with_table(page: str, counts: Counts) -> str:
    """The page with the table between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table(counts)}{END}{after}"


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m tools.compatibility FILE", file=sys.stderr)
        return 2
    counts = counted(passed_tests(Path(sys.argv[1])))
    COUNTS.write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), counts), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
