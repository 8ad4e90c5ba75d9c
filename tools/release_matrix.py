"""Writes the matrix of releases and modes in docs/rocketmq.md: `python -m tools.release_matrix FILE …`,
where the files list the tests that were collected and that passed (`tests.support.release_matrix`).
`tests/interop/release_matrix.json` keeps the counts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.release_matrix import Counts, counted, decoded, encoded, recorded_lines, table

ROOT = Path(__file__).resolve().parent.parent
COUNTS = ROOT / "tests" / "interop" / "release_matrix.json"
PAGE = ROOT / "docs" / "rocketmq.md"
BEGIN, END = "<!-- matrix: begin -->\n", "<!-- matrix: end -->\n"


def kept_counts() -> Counts:
    """The counts of the recorded runs."""
    return decoded(json.loads(COUNTS.read_text(encoding="utf-8")))


def with_table(page: str, counts: Counts) -> str:
    """The page with the table between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table(counts)}{END}{after}"


def main() -> int:
    if len(sys.argv) < 2:
        print("usage: python -m tools.release_matrix FILE …", file=sys.stderr)
        return 2
    counts = counted(recorded_lines(map(Path, sys.argv[1:])))
    COUNTS.write_text(json.dumps(encoded(counts), indent=2) + "\n", encoding="utf-8")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), counts), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
