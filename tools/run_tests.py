"""Runs the parts of the test suite and prints the progress.

`test` is what continuous integration runs: two parts at a time, because most of them wait for processes half
of the time, and the parts that need both cores alone at the end. `soak` runs the long tests, one part after
another. A failed part does not stop the others. The output of a part is printed when it ends; the failed
parts are listed last."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
WORKERS = 2
NO_TESTS_COLLECTED = 5


class TestPart(NamedTuple):
    """One command of the test suite."""

    name: str
    command: list[str]
    alone: bool = False
    """Runs after all others, because it needs both cores."""


INTEROP = ROOT / "tests" / "interop"
REPLICAS = ("test_controller", "test_dledger", "test_replica", "test_slave", "test_store")
"""Prefixes of the files of `tests/interop` that test brokers, controllers and stores; the others test
clients."""


def interop(*, replicas: bool) -> list[str]:
    """One of the two halves of `tests/interop`."""
    files = sorted(path for path in INTEROP.glob("test_*.py") if path.name.startswith(REPLICAS) == replicas)
    return [str(path.relative_to(ROOT)) for path in files]


def pytest(name: str, *paths: str, alone: bool = False) -> TestPart:
    """A part with the short tests of these paths."""
    return TestPart(name, [sys.executable, "-m", "pytest", "-q", "-m", "not soak", *paths], alone)


def soak(folder: str) -> TestPart:
    """A part with the long tests of a folder."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "soak", "--timeout=7200", f"tests/{folder}"]
    return TestPart(f"soak: {folder}", command)


# The longest parts first, so that both workers finish at about the same time.
TEST = [
    TestPart("ruff", [str(BIN / "ruff"), "check", "."]),
    TestPart("formatting", [str(BIN / "ruff"), "format", "--check", "."]),
    TestPart("import layers", [str(BIN / "lint-imports")]),
    TestPart("pure modules", [sys.executable, "tools/purity.py"]),
    TestPart("types", [str(BIN / "mypy")]),
    pytest("integration: real processes", "tests/integration"),
    pytest("interop: brokers, controllers, stores", *interop(replicas=True)),
    pytest("interop: clients and tools", *interop(replicas=False)),
    pytest("simulation: seeded faults", "tests/simulation"),
    pytest("unit tests", "tests/unit"),
    pytest("spark: audits", "tests/spark"),
    pytest("kubernetes: a real cluster", "tests/kubernetes", alone=True),
]
SOAK = [
    *(soak(folder) for folder in ("unit", "spark", "simulation", "integration", "interop", "kubernetes")),
    TestPart("soak: mutants", [sys.executable, "-m", "tools.mutants"]),
]


class SuiteRun:
    """One run of parts."""

    def __init__(self, parts: list[TestPart], workers: int) -> None:
        self.parts = parts
        self.workers = workers
        self.failed: list[str] = []
        self._printing = threading.Lock()

    def all(self) -> int:
        """Runs all parts; returns the exit status, 1 if one failed."""
        numbered = list(enumerate(self.parts, 1))
        with ThreadPoolExecutor(self.workers) as pool:
            list(pool.map(self._run_part, (one for one in numbered if not one[1].alone)))
        for one in numbered:
            if one[1].alone:
                self._run_part(one)
        print(f"{len(self.parts) - len(self.failed)} passed, {len(self.failed)} failed")
        for name in self.failed:
            print(f"  failed: {name}")
        return 1 if self.failed else 0

    def _run_part(self, numbered: tuple[int, TestPart]) -> None:
        number, part = numbered
        label = f"[{number}/{len(self.parts)}] {part.name}"
        print(f"{label} …", flush=True)
        started = time.monotonic()
        with tempfile.TemporaryFile() as output:
            status = subprocess.run(
                part.command, cwd=ROOT, check=False, stdout=output, stderr=subprocess.STDOUT
            ).returncode
            output.seek(0)
            printed = output.read().decode(errors="replace")
        passed = status == 0 or (status == NO_TESTS_COLLECTED and "soak" in part.name)
        result = "ok" if passed else f"FAILED ({status})"
        with self._printing:
            print(f"{printed.rstrip()}\n{label}: {result}, {time.monotonic() - started:.0f} s", flush=True)
            if not passed:
                self.failed.append(part.name)


def main() -> int:
    if sys.argv[1:] not in (["test"], ["soak"]):
        print("usage: run_tests.py test|soak", file=sys.stderr)
        return 2
    # Background jobs of a shell ignore SIGINT, and processes of the tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.argv[1] == "soak":
        return SuiteRun(SOAK, 1).all()
    return SuiteRun(TEST, min(WORKERS, os.cpu_count() or 1)).all()


if __name__ == "__main__":
    sys.exit(main())
