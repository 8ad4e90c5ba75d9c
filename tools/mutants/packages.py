"""Names the rooms whose code is mutated, and the tests of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".cache" / "mutants"
SOURCE_ROOTS: Final = ("protocol", "dledger", "controller", "broker", "operator", "cli", "spark")
"""Folders that hold the packages, as `tool.hatch.build.dev-mode-dirs` of pyproject.toml has them."""

FURTHER_TESTS: Final = ("tests/unit", "tests/simulation")
"""Tests for a mutant that its room's unit tests have not detected, those that run the changed line."""


@dataclass(frozen=True)
class MutatedPackage:
    """One folder of code. `unit_tests` are tried first. `process_tests` start processes, so coverage does not
    say which of them run a line: a mutant that all others miss meets all of them (`--processes`)."""

    name: str
    source: str
    unit_tests: tuple[str, ...]
    process_tests: tuple[str, ...]


PACKAGES: Final = (
    MutatedPackage(
        "store",
        "broker/epochmq_broker/store",
        ("tests/unit/store",),
        ("tests/integration/test_send_and_pull.py", "tests/integration/test_kill.py"),
    ),
    MutatedPackage(
        "replicas",
        "broker/epochmq_broker/replicas",
        ("tests/unit/replicas",),
        ("tests/integration/test_replica_groups.py",),
    ),
    MutatedPackage("plans", "operator/epochmq_operator/plans", ("tests/unit/operator_plans",), ()),
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
        "broker/epochmq_broker/processors",
        ("tests/unit/broker", "tests/unit/broker_tables"),
        ("tests/integration/test_send_and_pull.py", "tests/integration/test_kill.py"),
    ),
)


def package_files(room: MutatedPackage, root: Path = ROOT) -> list[Path]:
    """The room's modules, relative to `root`."""
    return sorted(path.relative_to(root) for path in (root / room.source).rglob("*.py"))
