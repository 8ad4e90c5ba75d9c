"""Runs the checks that take a minute or two: the inner loop of a change.

`make quick` tests the whole tree, and `make quick ROOM=store` or `ROOM=broker/services` one room of it. Both
run ruff, the import layers, the pure modules, the types, some seeds of each simulated world, and unit tests.
Spark, Java and Kubernetes are not needed. Tests with the mark `long` are left to `make test`.

The unit tests are divided by their files into shares, each for a process of pytest, which collects only its
own tests.

A room is a root of the product such as `store`, whose code is in `store/epochmq_store`, or a package inside
one, or any other folder of `tests/unit`. Its unit tests are in the folder of `tests/unit` with its name, or
with that of the nearest room around it. mypy always gets the whole tree: it keeps its results, and checks
only the modules that changed and those that import them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tools.run_tests import BIN, ROOT, Part, SuiteRun, Worker

UNIT_TESTS = Path("tests", "unit")
SIMULATED_SEEDS = 3
"""Of each world; `make test` runs hundreds."""
PROCESSES_PER_CORE = 8
"""That run unit tests: most of their time is waiting, for events and for files."""
SHARES_PER_CORE = 12
"""Of the unit tests: smaller ones than one for each process, because some wait much longer than others."""


class UnknownRoomError(Exception):
    """There is no room with this name."""


def rooms(checkout: Path = ROOT) -> set[str]:
    """The names of all rooms."""
    names = set()
    for file in checkout.glob("*/epochmq*/**/__init__.py"):
        root, _, *inner = file.parent.relative_to(checkout).parts
        names.add("/".join((root, *inner)))
    for file in (checkout / UNIT_TESTS).glob("*/**/test_*.py"):
        names.add(file.parent.relative_to(checkout / UNIT_TESTS).as_posix())
    return names


def unit_tests(room: str, checkout: Path = ROOT) -> Path:
    """The folder with the unit tests of a room, relative to the checkout. UnknownRoomError names the rooms
    that there are."""
    name = room.strip("/")
    known = rooms(checkout)
    if name not in known:
        raise UnknownRoomError(f"there is no room {room!r}, but {', '.join(sorted(known))}")
    folder = UNIT_TESTS / name
    while not (checkout / folder).is_dir():
        folder = folder.parent
    return folder


def shares(tests: Path, count: int, checkout: Path = ROOT) -> list[list[str]]:
    """The files with the unit tests of a folder, relative to the checkout, in at most so many shares with
    about the same number of bytes. Neighbours stay together, because they import the same modules."""
    files = sorted((checkout / tests).rglob("test_*.py"))
    if tests == UNIT_TESTS:  # `make quick ROOM=spark` has them
        files = [file for file in files if not file.is_relative_to(checkout / UNIT_TESTS / "spark")]
    total = sum(file.stat().st_size for file in files) + 1
    divided: list[list[str]] = [[] for _ in range(count)]
    before = 0
    for file in files:
        divided[before * count // total].append(str(file.relative_to(checkout)))
        before += file.stat().st_size
    return [share for share in divided if share]


def parts(tests: Path, cores: int) -> list[Part]:
    """The parts of a run with these unit tests, on so many cores."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-m", "not soak and not long"]
    divided = shares(tests, cores * SHARES_PER_CORE)
    return [
        *(
            Part(f"unit tests {number} of {len(divided)}", [*pytest, *share])
            for number, share in enumerate(divided, 1)
        ),
        _check("ruff", str(BIN / "ruff"), "check", "."),
        _check("formatting", str(BIN / "ruff"), "format", "--check", "."),
        _check("import layers", str(BIN / "lint-imports")),
        _check("pure modules", sys.executable, "-m", "tools.purity"),
        _check("types", str(BIN / "mypy")),
        _check("simulation", sys.executable, "-m", "tests.simulation", "every", "0", str(SIMULATED_SEEDS)),
    ]


def _check(name: str, *command: str) -> Part:
    return Part(name, list(command), "computation")


def main(arguments: list[str]) -> int:
    """Runs the checks. Exit status 1 if one failed, 2 if there is no such room."""
    if len(arguments) > 1:
        print("usage: python -m tools.quick [ROOM]", file=sys.stderr)
        return 2
    try:
        tests = unit_tests(arguments[0]) if arguments else UNIT_TESTS
    except UnknownRoomError as error:
        print(f"quick: {error}", file=sys.stderr)
        return 2
    cores = os.cpu_count() or 1
    workers: list[Worker] = [("processes",)] * (cores * PROCESSES_PER_CORE) + [("computation",)]
    return SuiteRun(parts(tests, cores), workers, show_passed=False).all()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
