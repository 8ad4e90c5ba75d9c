"""Lists the packages whose code is mutated, and their tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.rooms import source_roots

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".cache" / "mutants"
SOURCE_ROOTS: Final = source_roots()

FURTHER_TESTS: Final = ("tests/unit", "tests/simulation")
"""Tests for a mutant that its package's unit tests did not detect: those of them that execute the changed
line."""


@dataclass(frozen=True)
class MutatedPackage:
    """One folder of code. `unit_tests` run first. `process_tests` start processes, so coverage cannot tell
    which of them execute a line: a mutant that all others miss is tested with all of them (`--processes`)."""

    name: str
    source: str
    unit_tests: tuple[str, ...]
    process_tests: tuple[str, ...]


PACKAGES: Final = (
    MutatedPackage(
        "store",
        "store/epochmq_store",
        ("tests/unit/store",),
        ("tests/integration/test_send_and_pull.py", "tests/integration/test_kill.py"),
    ),
    MutatedPackage(
        "replicas",
        "broker/epochmq_broker/membership/controlled",
        ("tests/unit/broker/membership/controlled",),
        ("tests/integration/test_replica_groups.py",),
    ),
    MutatedPackage("plans", "operator/epochmq_operator/plans", ("tests/unit/operator/plans",), ()),
    MutatedPackage(
        "dledger",
        "dledger/epochmq_dledger",
        ("tests/unit/dledger",),
        (
            "tests/integration/test_controller_process.py",
            "tests/integration/test_controller_kill.py",
        ),
    ),
    MutatedPackage(
        "processors",
        "broker/epochmq_broker/requests/processors",
        ("tests/unit/broker/requests", "tests/unit/broker/tables"),
        ("tests/integration/test_send_and_pull.py", "tests/integration/test_kill.py"),
    ),
    MutatedPackage(
        "acting",
        "broker/epochmq_broker/membership/acting",
        ("tests/unit/broker/membership/acting",),
        ("tests/integration/test_pre_online.py",),
    ),
    MutatedPackage(
        "escape", "broker/epochmq_broker/writing/escape", ("tests/unit/broker/writing/escape",), ()
    ),
)


def other_tests(packages: Sequence[MutatedPackage], root: Path = ROOT) -> tuple[str, ...]:
    """What `FURTHER_TESTS` contains beside the unit tests of these packages, relative to `root`: folders,
    and the test modules beside them."""
    own = {root / folder for package in packages for folder in package.unit_tests}
    found: list[str] = []
    todo = [root / folder for folder in reversed(FURTHER_TESTS)]
    while todo:
        folder = todo.pop()
        if any(folder in one.parents for one in own):
            found += sorted(str(path.relative_to(root)) for path in folder.glob("test_*.py"))
            todo += sorted((path.parent for path in folder.glob("*/__init__.py")), reverse=True)
        elif folder not in own:
            found.append(str(folder.relative_to(root)))
    return tuple(found)


def package_files(package: MutatedPackage, root: Path = ROOT) -> list[Path]:
    """The modules of the package, relative to `root`."""
    return sorted(path.relative_to(root) for path in (root / package.source).rglob("*.py"))
