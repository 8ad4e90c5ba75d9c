"""The matrix of releases in docs/rocketmq.md: what it counts, and that the page has it."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.release_matrix import (
    MODES,
    ROWS,
    Cell,
    Count,
    cells_of,
    counted,
    decoded,
    encoded,
    kind_of,
    release_of,
    result_line,
    table,
)
from tools.release_matrix import BEGIN, END, PAGE, ROOT, kept_counts, with_table

INTEROP = ROOT / "tests" / "interop"
SEND = "tests/interop/test_java_client_send.py::test_a"


def line(test: str, *, has_passed: bool = False, in_use: str = "5.3.3") -> str:
    return result_line(test, release_of(test, in_use, "5.3.3", "5.5.0"), has_passed=has_passed)


def test_the_page_has_the_matrix_of_the_kept_counts() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.count(BEGIN) == page.count(END) == 1
    assert with_table(page, kept_counts()) == page


def test_every_row_has_tests_and_every_cell_a_row() -> None:
    counts = kept_counts()
    assert {cell.role for cell in counts} == {row.role for row in ROWS}
    assert {cell.mode for cell in counts} <= {row.mode for row in ROWS} | set(MODES.values())
    assert all(0 <= count.passed <= count.tests for count in counts.values())
    names = [path.name for path in INTEROP.glob("test_*.py")]
    for row in ROWS:
        found = [name for name in names if re.match(row.tests.split(".*")[0], name)]
        assert found, f"{row.role}: no file of tests/interop has the name {row.tests}"


def test_a_test_counts_once_for_the_release_that_its_parameters_name() -> None:
    tests = [f"{SEND}[ours]", f"{SEND}[ours]", f"{SEND}[ours-5.5.0]", f"{SEND}[java]"]
    counts = counted([*(line(test) for test in tests), line(f"{SEND}[ours]", has_passed=True)])
    assert counts == {
        Cell("client: Java", "one broker", "5.3.3"): Count(1, 1),
        Cell("client: Java", "one broker", "5.5.0"): Count(1, 0),
    }
    lines = table(counts).splitlines()
    assert lines[0] == "| RocketMQ's | EpochMQ's mode | 5.3.3 | 5.5.0 |"
    assert lines[2:] == ["| client: Java | one broker | 1 of 1 passed | 1 |"]
    assert decoded(encoded(counts)) == counts


def test_a_release_without_a_test_is_said_to_have_none() -> None:
    counts = counted([line(f"{SEND}[ours]"), line("tests/interop/test_mqadmin.py::test_b[5.5.0-secured-x]")])
    assert "| client: Java | one broker | 1 | no test |" in table(counts)
    assert "| tool: `mqadmin` | one broker, TLS and users | no test | 1 |" in table(counts)


@pytest.mark.parametrize(
    ("test", "kind"),
    [
        ("test_x.py::test_a", "ours"),
        ("test_x.py::test_a[our-broker]", "our-broker"),
        ("test_x.py::test_a[java-users]", "java-users"),
        ("test_x.py::test_a[secured-updateTopic -n {java}]", "secured"),
        ("test_x.py::test_a[something ours]", "ours"),
    ],
)
def test_the_kind_of_cluster_is_read_from_the_parameters(test: str, kind: str) -> None:
    assert kind_of(test) == kind


@pytest.mark.parametrize(
    ("test", "roles"),
    [
        ("test_controller.py::test_a[two-of-ours]", {"controller in one quorum with ours"}),
        ("test_controller.py::test_a[java]", set()),
        ("test_controller_members.py::test_a[5.3.3]", {"controller in one quorum with ours"}),
        ("test_acting_return.py::test_a[javas-master-returns-to-ours]", {"broker in one group with ours"}),
        ("test_acting_handback.py::test_a[all-ours]", set()),
        ("test_nameserver.py::test_a[150]", {"nameserver beside ours"}),
        ("test_go_client.py::test_a[ours]", set()),
    ],
)
def test_a_test_belongs_to_the_role_of_rocketmqs_program(test: str, roles: set[str]) -> None:
    assert {cell.role for cell in cells_of(test, "5.3.3")} == roles


@pytest.mark.parametrize(
    "test",
    ["a[replicas-5.5.0]", "a[5.5.0-replicas]", "a[newest-replicas]", "a[replicas-newest]", "a[replicas]"],
)
def test_a_test_is_the_same_with_and_without_the_name_of_its_release(test: str) -> None:
    assert json.loads(line(f"tests/interop/t.py::{test}"))["test"] == "t.py::a[replicas]"


def test_a_named_release_is_not_the_one_in_use() -> None:
    assert release_of("t.py::a[5.3.3]", "5.5.0", "5.3.3", "5.5.0") == "5.3.3"
    assert release_of("t.py::a[newest-copies-ours]", "5.3.3", "5.3.3", "5.5.0") == "5.5.0"
    assert release_of("t.py::a[150]", "5.5.0", "5.3.3", "5.5.0") == "5.5.0"
