"""The table of peers in docs/rocketmq.md has what the tests counted, for each peer that is declared."""

from __future__ import annotations

from tests.support.compatibility import NOT_RUN, ROWS, counted, passed_line, table
from tools.compatibility import BEGIN, END, PAGE, kept_counts, with_table


def test_the_page_has_the_table_of_the_kept_counts() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.count(BEGIN) == page.count(END) == 1
    assert with_table(page, kept_counts()) == page


def test_every_declared_peer_has_a_row_in_the_kept_counts() -> None:
    assert list(kept_counts()) == [row.peer for row in ROWS]


def test_a_test_counts_once_for_the_release_that_its_parameters_name() -> None:
    path = "tests/interop/test_java_client_send.py::test_a"
    tests = [
        f"{path}[ours]",
        f"{path}[ours]",
        f"{path}[ours-5.5.0]",
        "tests/interop/test_mqadmin.py::test_b[-f {dir}/c]",
    ]
    counts = counted(passed_line(test, "5.3.3", "5.5.0") for test in tests)
    assert counts["Java client"] == {"5.3.3": 1, "5.5.0": 1}
    assert counts["`mqadmin` with brokers and nameservers"] == {"5.3.3": 1}
    lines = table(counts).splitlines()
    assert lines[0] == "| RocketMQ's | 5.3.3 | 5.5.0 |"
    assert "| Java client | 1 | 1 |" in lines
    assert f"| `mqadmin` with brokers and nameservers | 1 | {NOT_RUN} |" in lines
