"""Runs the parts of the test suite and prints the progress.

`test` is what continuous integration runs. Its parts run in three lanes, because most of them wait for
processes half of the time: those with processes; the Kubernetes of the tests, which is built and then tested;
and the parts that only compute. These and the build have a low priority: they use what the others leave of
the cores, and do not make a process stall for which a test waits. A worker whose lane is empty takes parts
with processes; as long as Kubernetes runs, which takes a quarter of the cores, there are few of them.

`soak` runs the long tests, one part after another. A failed part does not stop the others. The output of a
part is printed when it ends, with its slowest tests. The last lines say which tests were skipped and why, how
many parts passed and failed, and which parts and tests failed. The CPU seconds of a part are those of all
processes that it has waited for.

`python -m tools.quick` runs other parts in the same way."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
NO_TESTS_COLLECTED = 5
FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (\S+?::[\w:]+(?:\[.*?\])?|\S+)(?: - |$)", re.MULTILINE)
"""A line of pytest's summary; the group is the test's name."""
SKIPPED_TESTS = re.compile(r"^SKIPPED \[(\d+)\] (\S+?)(?::\d+)?: (.+)$", re.MULTILINE)
"""A line of pytest's summary: the number of tests, the file in which they were skipped, and the reason."""
SLOWEST = ("--durations=25", "--durations-min=5")
"""Options of pytest that list the 25 slowest tests of a part, and fixtures, that took 5 s and more."""
CACHE = os.environ.get("EPOCHMQ_CACHE")
MYPY_CACHE = ("--cache-dir", str(Path(CACHE) / "mypy")) if CACHE else ()
"""mypy keeps its results where the next clone finds them."""
FAILED_TESTS_MAX = 20
"""How many failed tests of a part are listed at the end."""


Lane = Literal["processes", "kubernetes", "computation"]
Worker = tuple[Lane, ...]
"""The lanes from which a worker takes parts, in their order: from the next one when there is no other."""
WORKERS: tuple[Worker, ...] = (
    ("kubernetes", "processes"),
    ("processes",),
    ("computation", "processes"),
)
ONE_AT_A_TIME: tuple[Worker, ...] = (("kubernetes",), ("processes",), ("computation",))
"""In each lane."""


class Part(NamedTuple):
    """One command of the test suite."""

    name: str
    command: list[str]
    lane: Lane = "processes"
    niceness: int = 0
    """Of its processes, 0 (normal) to 19 (lowest priority)."""


INTEROP = "tests/interop"
INTEGRATION = "tests/integration"
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
    "test_stranger",
)
"""Prefixes of those that test clients while a master or a disk fails."""


COMMANDS = ("test_a", "test_b", "test_chaos", "test_command", "test_console")
"""Prefixes of the files of `tests/integration` that test sidecars, commands and the console."""
STORE_ROOMS = ("controller", "dledger", "store")
"""Folders of `tests/unit`."""


def files(folder: str, *prefixes: str) -> list[str]:
    """The files of this folder whose names begin with one of these prefixes."""
    names = sorted(path.name for path in (ROOT / folder).glob("test_*.py"))
    return [f"{folder}/{name}" for name in names if name.startswith(prefixes)]


def other_files(folder: str, *prefixes: str) -> list[str]:
    """The other files of this folder."""
    return sorted(set(files(folder, "")) - set(files(folder, *prefixes)))


def other_rooms() -> list[str]:
    """The tests in `tests/unit` that are neither the broker's nor in one of `STORE_ROOMS`."""
    rooms = {path.parent.name for path in (ROOT / "tests" / "unit").glob("*/__init__.py")}
    return [f"tests/unit/{room}" for room in sorted(rooms - {"broker", *STORE_ROOMS})] + files(
        "tests/unit", ""
    )


def pytest(name: str, *paths: str, lane: Lane = "processes", niceness: int = 0) -> Part:
    """A part with the short tests of these paths."""
    command = [sys.executable, "-m", "pytest", "-q", *SLOWEST, "-m", "not soak", *paths]
    return Part(name, command, lane, niceness)


def computation(name: str, *paths: str) -> Part:
    """A part with the short tests of these paths, which only compute."""
    return pytest(name, *paths, lane="computation", niceness=10)


def check(name: str, *command: str) -> Part:
    """A part that checks the code without running it."""
    return Part(name, list(command), "computation", niceness=10)


def soak(folder: str) -> Part:
    """A part with the long tests of a folder."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "soak", "--timeout=7200", f"tests/{folder}"]
    return Part(f"soak: {folder}", command)


# Those that measure pauses first, as long as few others run.
TEST = [
    Part(
        "kubernetes: programs and images",
        [sys.executable, "-m", "tests.kubernetes.testbed", "build"],
        "kubernetes",
        niceness=5,
    ),
    pytest("kubernetes: a real cluster", "tests/kubernetes", lane="kubernetes"),
    check("ruff", str(BIN / "ruff"), "check", "."),
    check("formatting", str(BIN / "ruff"), "format", "--check", "."),
    check("import layers", str(BIN / "lint-imports")),
    check("pure modules", sys.executable, "-m", "tools.purity"),
    check("types", str(BIN / "mypy"), *MYPY_CACHE),
    check("spark: compiled code", sys.executable, "-m", "epochmq_spark.decode.precompile"),
    computation("simulation: seeded faults", "tests/simulation"),
    computation("spark: audits", "tests/spark"),
    pytest("interop: clients under faults", *files(INTEROP, *FAULTS)),
    pytest("interop: brokers, controllers, stores", *files(INTEROP, *REPLICAS)),
    pytest("integration: groups", *other_files(INTEGRATION, *COMMANDS)),
    pytest("interop: clients and tools", *other_files(INTEROP, *REPLICAS, *FAULTS)),
    pytest("integration: sidecars, commands, console", *files(INTEGRATION, *COMMANDS)),
    pytest("unit tests: brokers", "tests/unit/broker"),
    pytest("unit tests: stores, controllers, DLedger", *(f"tests/unit/{room}" for room in STORE_ROOMS)),
    pytest("unit tests: all other rooms", *other_rooms()),
]
NEWEST = Part(
    "soak: interop with the newest RocketMQ",
    [
        *("env", "EPOCHMQ_ROCKETMQ=5.5.0", sys.executable, "-m", "pytest", "-q", "-m", "java and not soak"),
        *("--timeout=7200", "tests/interop"),
    ],
)
SOAK = [
    *(soak(folder) for folder in ("unit", "spark", "simulation", "integration", "interop", "kubernetes")),
    NEWEST,
    Part("soak: mutants", [sys.executable, "-m", "tools.mutants"]),
]


def skip_summary(output: str) -> Counter[str]:
    """How many tests pytest skipped for each reason, according to the summary that it printed (`-ra`)."""
    counted: Counter[str] = Counter()
    for number, _, reason in SKIPPED_TESTS.findall(output):
        counted[reason.removeprefix("Skipped: ").strip()] += int(number)
    return counted


class SuiteRun:
    """One run of parts."""

    def __init__(self, parts: list[Part], workers: Sequence[Worker], *, show_passed: bool = True) -> None:
        """As many parts run at a time as there are `workers`; `show_passed` is whether the output of parts
        that passed is printed, too."""
        self.parts = parts
        self.workers = workers
        self.show_passed = show_passed
        self.failed: dict[str, list[str]] = {}
        """The failed parts, each with its failed tests."""
        self.skipped: Counter[str] = Counter()
        """How many tests were skipped for each reason."""
        self._waiting = list(enumerate(parts, 1))
        self._running: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def all(self) -> int:
        """Runs all parts; returns the exit status, 1 if one failed."""
        with ThreadPoolExecutor(len(self.workers)) as pool:
            try:
                for done in [pool.submit(self._work, worker) for worker in self.workers]:
                    done.result()
            except BaseException:
                self._end_now()
                raise
        for reason, number in self.skipped.most_common():
            print(f"skipped {number} {'test' if number == 1 else 'tests'}: {reason}")
        print(f"{len(self.parts) - len(self.failed)} passed, {len(self.failed)} failed")
        for name, tests in self.failed.items():
            print("\n    ".join([f"  failed: {name}", *tests[:FAILED_TESTS_MAX]]))
        return 1 if self.failed else 0

    def _work(self, worker: Worker) -> None:
        """Runs parts of one lane after the other until none is left."""
        for lane in worker:
            while (numbered := self._next_part(lane)) is not None:
                self._run_part(*numbered)

    def _next_part(self, lane: Lane) -> tuple[int, Part] | None:
        with self._lock:
            numbered = next((one for one in self._waiting if one[1].lane == lane), None)
            if numbered is not None:
                self._waiting.remove(numbered)
            return numbered

    def _run_part(self, number: int, part: Part) -> None:
        label = f"[{number}/{len(self.parts)}] {part.name}"
        print(f"{label} …", flush=True)
        started = time.monotonic()
        with tempfile.TemporaryFile() as output:
            status, cpu_s = self._run(part, output.fileno())
            output.seek(0)
            printed = output.read().decode(errors="replace")
        passed = status == 0 or (status == NO_TESTS_COLLECTED and "soak" in part.name)
        result = "ok" if passed else f"FAILED ({status})"
        took = f"{time.monotonic() - started:.0f} s, {cpu_s:.0f} CPU seconds"
        with self._lock:
            if printed.strip() and (self.show_passed or not passed):
                print(printed.rstrip())
            print(f"{label}: {result}, {took}", flush=True)
            self.skipped += skip_summary(printed)
            if not passed:
                self.failed[part.name] = FAILED_TEST.findall(printed)

    def _run(self, part: Part, output: int) -> tuple[int, float]:
        """Runs the command; returns its exit status and the CPU seconds of its processes."""
        process = subprocess.Popen(
            part.command,
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=part.niceness > 0,
        )
        self._running.append(process)
        if part.niceness:
            lower_priority(process.pid, part.niceness)
        _, status, usage = os.wait4(process.pid, 0)
        self._running.remove(process)
        process.returncode = os.waitstatus_to_exitcode(status)
        return process.returncode, usage.ru_utime + usage.ru_stime

    def _end_now(self) -> None:
        """After Ctrl-C, which reaches only the processes of the terminal's session: starts no other part, and
        interrupts the parts with a session of their own."""
        with self._lock:
            self._waiting.clear()
        for process in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)


def lower_priority(pid: int, niceness: int) -> None:
    """Lowers the priority of a process that leads a session, and of the processes that it will start. Linux
    may first divide the cores among sessions (autogroups); a niceness then counts only within one."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))


def main() -> int:
    if sys.argv[1:] not in (["test"], ["soak"]):
        print("usage: run_tests.py test|soak", file=sys.stderr)
        return 2
    # Background jobs of a shell ignore SIGINT, and processes of the tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.argv[1] == "soak":
        return SuiteRun(SOAK, ONE_AT_A_TIME).all()
    one_core = os.cpu_count() == 1
    return SuiteRun(TEST, ONE_AT_A_TIME if one_core else WORKERS).all()


if __name__ == "__main__":
    sys.exit(main())
