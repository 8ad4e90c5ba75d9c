"""Sorts the interoperability tests into a matrix: which role of RocketMQ and which mode of EpochMQ they test,
with which release. Counts how many there are and how many passed, for the table in docs/rocketmq.md.

With EPOCHMQ_MATRIX=FILE, `tests/interop` appends a line for each test that was collected, and one for
each that passed. `tools/release_matrix.py` counts the lines and writes the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.compatibility import names_newest


class Row(NamedTuple):
    """Tests with one role of RocketMQ's programs. `mode` is that of EpochMQ's group; None: the kind of the
    test's cluster decides (`MODES`)."""

    role: str
    mode: str | None
    tests: str
    """A pattern of the tests' names, from their file on."""


ONE_BROKER = "one broker"
CONTROLLER = "`Controller`"
MASTER_SLAVE = "`MasterSlave`"
DLEDGER = "`DLedger`"
MODES: Mapping[str, str | None] = {
    "ours": ONE_BROKER,
    "replicas": f"{CONTROLLER}, three replicas",
    "secured": f"{ONE_BROKER}, TLS and users",
    "our-broker": f"{ONE_BROKER} under RocketMQ's nameserver",
    "our-nameserver": "nameserver for RocketMQ's broker",
    "java": None,
    "java-users": None,
}
"""The mode of each kind of cluster of `tests/interop/conftest.py`. None: it has RocketMQ's programs alone, so
that it proves the test and says nothing of EpochMQ."""
_KINDS = "|".join(sorted(MODES, key=len, reverse=True))
KIND = re.compile(rf"^(?:{_KINDS})(?=[-@:\] ])")
"""A kind of cluster, at the begin of a test's parameters."""
ROWS = (
    Row("client: Java", None, r"test_java_client_(?!binary)|test_sql_filter"),
    Row("client: Java, binary headers", None, r"test_java_client_binary"),
    Row("tool: `mqadmin`", None, r"test_mqadmin"),
    Row("tool: `mqadmin` for controllers", CONTROLLER, r"test_controller_admin.*(\[ours|prints_the_same)"),
    Row("broker in one group with ours", CONTROLLER, r"test_(replica_groups|replication|handover)"),
    Row("broker in one group with ours", MASTER_SLAVE, r"test_(slave_sync|compaction_replication)"),
    Row(
        "broker in one group with ours",
        f"{MASTER_SLAVE}, acting master",
        r"test_acting_(master|return|handback).*\[(?!all-)",
    ),
    Row("broker in one group with ours", DLEDGER, r"test_dledger_(broker|faults)"),
    Row("controller in one quorum with ours", CONTROLLER, r"test_controller(_members)?\.py.*(-of-ours|\[\d)"),
    Row("nameserver beside ours", "the same requests to both", r"test_nameserver"),
    Row("store, opened by the other program", ONE_BROKER, r"test_(store|batch|compaction|extension)_interop"),
)
RELEASE_NAME = re.compile(r"(\d\.\d\.\d|newest)-|-(\d\.\d\.\d|newest)(?=[-\]])")
"""A release among the parameters of a test. The test is the same without it."""


class Cell(NamedTuple):
    """A cell of the matrix."""

    role: str
    mode: str
    release: str


class Count(NamedTuple):
    """The tests of a cell: how many there are, and how many passed in the recorded runs."""

    tests: int
    passed: int


Counts = dict[Cell, Count]


def release_of(test: str, in_use: str, reference: str, newest: str) -> str:
    """The release that a test runs with: the one that its parameters name, otherwise the one in use."""
    if names_newest(test, newest):
        return newest
    return reference if f"[{reference}" in test else in_use


def result_line(test: str, release: str, *, has_passed: bool) -> str:
    """The line for a test that was collected, or that passed."""
    path, bracket, parameters = test.partition("[")
    name = path.rpartition("/")[2] + bracket + RELEASE_NAME.sub("", parameters)
    return json.dumps({"test": name, "release": release, "passed": has_passed})


def kind_of(test: str) -> str:
    """The kind of cluster that the parameters of a test name; `ours` if they name none."""
    found = KIND.search(test.partition("[")[2])
    return "ours" if found is None else found[0]


def cells_of(test: str, release: str) -> list[Cell]:
    """The cells to which a test belongs; none without a program of RocketMQ, or without EpochMQ."""
    found = []
    for row in ROWS:
        if not re.match(row.tests, test):
            continue
        mode = row.mode if row.mode is not None else MODES[kind_of(test)]
        if mode is not None:
            found.append(Cell(row.role, mode, release))
    return found


def counted(lines: Iterable[str]) -> Counts:
    """Counts the tests of each cell. A test that ran twice counts once; one that passed was collected."""
    tests: dict[Cell, set[str]] = {}
    passed: dict[Cell, set[str]] = {}
    for one in map(json.loads, lines):
        for cell in cells_of(one["test"], one["release"]):
            tests.setdefault(cell, set()).add(one["test"])
            if one["passed"]:
                passed.setdefault(cell, set()).add(one["test"])
    return {cell: Count(len(names), len(passed.get(cell, ()))) for cell, names in sorted(tests.items())}


def table(counts: Counts) -> str:
    """The table in Markdown: a row for each role and mode, a column for each release."""
    releases = sorted({cell.release for cell in counts})
    lines = [
        f"| RocketMQ's | EpochMQ's mode | {' | '.join(releases)} |",
        "|---|---|" + "---|" * len(releases),
    ]
    order = {row.role: at for at, row in enumerate(ROWS)}
    rows = sorted({(cell.role, cell.mode) for cell in counts}, key=lambda one: (order[one[0]], one[1]))
    for role, mode in rows:
        shown = [_shown(counts.get(Cell(role, mode, release))) for release in releases]
        lines.append(f"| {role} | {mode} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def _shown(count: Count | None) -> str:
    if count is None:
        return "no test"
    return f"{count.passed} of {count.tests} passed" if count.passed else str(count.tests)


def encoded(counts: Counts) -> list[dict[str, object]]:
    """The counts as plain objects, as the repository keeps them."""
    return [{**cell._asdict(), **count._asdict()} for cell, count in counts.items()]


def decoded(objects: Sequence[Mapping[str, object]]) -> Counts:
    """The counts of `encoded`."""
    counts: Counts = {}
    for one in objects:
        cell = Cell(str(one["role"]), str(one["mode"]), str(one["release"]))
        counts[cell] = Count(int(str(one["tests"])), int(str(one["passed"])))
    return counts


def recorded_lines(paths: Iterable[Path]) -> list[str]:
    """The lines that test runs have appended to files."""
    return [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
