"""Runs the parts of the test suite one after another, with a line of progress for each: `test` is what
continuous integration runs, `soak` the long rounds. All parts run; those that failed are named at the end."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent

LINT = [
    ("ruff", [str(BIN / "ruff"), "check", "."]),
    ("format", [str(BIN / "ruff"), "format", "--check", "."]),
    ("arrows between rooms", [str(BIN / "lint-imports")]),
    ("purity", [sys.executable, "tools/purity.py"]),
    ("types", [str(BIN / "mypy")]),
]


def pytest(folder: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", f"tests/{folder}", *options]


TEST = [
    *LINT,
    ("unit tests", pytest("unit", "-m", "not soak")),
    ("simulation: seeded faults", pytest("simulation", "-m", "not soak")),
    ("integration: real processes", pytest("integration", "-m", "not soak")),
    ("interop: Java and C++ peers", pytest("interop", "-m", "not soak")),
]
SOAK = [
    ("soak: unit", pytest("unit", "-m", "soak", "--timeout=7200")),
    ("soak: simulation", pytest("simulation", "-m", "soak", "--timeout=7200")),
    ("soak: integration", pytest("integration", "-m", "soak", "--timeout=7200")),
    ("soak: interop", pytest("interop", "-m", "soak", "--timeout=7200")),
]
NO_TESTS_COLLECTED = 5


def main() -> int:
    parts = {"test": TEST, "soak": SOAK}[sys.argv[1]]
    failed = []
    for number, (name, command) in enumerate(parts, 1):
        print(f"[{number}/{len(parts)}] {name} …", flush=True)
        started = time.monotonic()
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        passed = status == 0 or (status == NO_TESTS_COLLECTED and sys.argv[1] == "soak")
        verdict = "ok" if passed else f"FAILED ({status})"
        print(f"[{number}/{len(parts)}] {name}: {verdict}, {time.monotonic() - started:.0f} s", flush=True)
        if not passed:
            failed.append(name)
    print(
        f"{len(parts) - len(failed)} passed, {len(failed)} failed"
        + "".join(f"\n  failed: {n}" for n in failed)
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
