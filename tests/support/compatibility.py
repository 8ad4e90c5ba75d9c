"""Records which tests with a release of RocketMQ passed, and counts them for the table in docs/rocketmq.md.

With EPOCHMQ_COMPATIBILITY=FILE, the tests of `tests/interop` append a line for each test that passed.
`tools/compatibility.py` counts the lines and writes the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    """A row of the table: one kind of peer, and the tests with it."""

    peer: str
    tests: str
    """A pattern of the tests' names, from their file on."""


ROWS = (
    Row("Java client", r"test_java_client_(?!binary)"),
    Row("Java client with binary headers", r"test_java_client_binary"),
    Row("`mqadmin` with brokers and nameservers", r"test_mqadmin"),
    Row("`mqadmin` with controllers", r"test_controller_admin"),
    Row("brokers in a group with ours, under controllers", r"test_replica_groups.*test_every_broker"),
    Row("master or slave of ours, without controllers", r"test_(replication|slave_sync)"),
    Row("controllers in a quorum with ours", r"test_controller(_members)?\.py"),
    Row("stores, opened by the other program", r"test_store_interop"),
)
NOT_RUN = "not run"

Counts = dict[str, dict[str, int]]
"""Peer → version of RocketMQ → number of tests that passed."""


def names_newest(test: str, newest: str) -> bool:
    """Whether the parameters of a test name the newest release. It needs that one then, and otherwise the
    release in use."""
    _, _, parameters = test.partition("[")
    return newest in parameters or "newest" in parameters


def passed_line(test: str, in_use: str, newest: str) -> str:
    """The line for a test that passed."""
    path, bracket, parameters = test.partition("[")
    release = newest if names_newest(test, newest) else in_use
    name = path.rpartition("/")[2] + bracket + parameters
    return json.dumps({"test": name, "release": release})


def counted(lines: Iterable[str]) -> Counts:
    """Counts the tests of each row by release. A test that passed twice counts once."""
    ran = {(str(one["test"]), str(one["release"])) for one in map(json.loads, lines)}
    found: Counts = {row.peer: {} for row in ROWS}
    for test, release in sorted(ran):
        for row in ROWS:
            if re.match(row.tests, test):
                found[row.peer][release] = found[row.peer].get(release, 0) + 1
    return found


def table(counts: Counts) -> str:
    """The table in Markdown."""
    releases = sorted({release for row in counts.values() for release in row})
    lines = [f"| RocketMQ's | {' | '.join(releases)} |", "|---|" + "---|" * len(releases)]
    for row in ROWS:
        cells = [str(counts.get(row.peer, {}).get(release, NOT_RUN)) for release in releases]
        lines.append(f"| {row.peer} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def passed_tests(path: Path) -> list[str]:
    """The lines that test runs have appended to a file."""
    return path.read_text(encoding="utf-8").splitlines()
