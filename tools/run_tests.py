"""Runs the parts of the test suite and prints the progress.

`test` is what continuous integration runs: two parts at a time, because most of them wait for processes half
of the time. The tests on a cluster come last, beside the unit tests, which leave most of both cores to them.
`soak` runs the long tests, one part after another. A failed part does not stop the others. The output of a
part is printed when it ends; the failed parts are listed last."""

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
    last: bool = False
    """Starts when all parts that are not among the last have ended."""


INTEROP = ROOT / "tests" / "interop"
REPLICAS = ("test_controller", "test_dledger", "test_replica", "test_slave", "test_store")
"""Prefixes of the files of `tests/interop` that test brokers, controllers and stores."""
FAULTS = (
    "test_acting",
    "test_chaos",
    "test_disk",
    "test_escape",
    "test_handover",
    "test_pop_h",
    "test_power",
)
"""Prefixes of those that test clients while a master or a disk fails."""


def interop(*prefixes: str) -> list[str]:
    """The files of `tests/interop` whose names begin with one of these prefixes."""
    names = sorted(path.name for path in INTEROP.glob("test_*.py"))
    return [str((INTEROP / name).relative_to(ROOT)) for name in names if name.startswith(prefixes)]


CLIENTS = sorted(set(interop("")) - set(interop(*REPLICAS, *FAULTS)))
"""The other files of `tests/interop`; they test clients and tools."""


def pytest(name: str, *paths: str, last: bool = False) -> TestPart:
    """A part with the short tests of these paths."""
    return TestPart(name, [sys.executable, "-m", "pytest", "-q", "-m", "not soak", *paths], last)


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
    pytest("interop: clients under faults", *interop(*FAULTS)),
    pytest("integration: real processes", "tests/integration"),
    pytest("interop: brokers, controllers, stores", *interop(*REPLICAS)),
    pytest("interop: clients and tools", *CLIENTS),
    pytest("simulation: seeded faults", "tests/simulation"),
    pytest("spark: audits", "tests/spark"),
    pytest("kubernetes: a real cluster", "tests/kubernetes", last=True),
    pytest("unit tests", "tests/unit", last=True),
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
        for last in (False, True):
            with ThreadPoolExecutor(self.workers) as pool:
                list(pool.map(self._run_part, (one for one in numbered if one[1].last is last)))
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
