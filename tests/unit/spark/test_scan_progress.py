"""Tests the line that shows how far an audit is, and the options for the user's own Spark."""

from __future__ import annotations

import io

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")

from epochmq.app import run
from epochmq_spark import session
from epochmq_spark.scan_progress import ProgressWriter, progress_line

GB = 10**9


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("done", "total", "size", "seconds", "expected"),
    [
        (0, 8, 16 * GB, 5, "audit:   0% of 16.0 GB, 0 of 8 tasks, 0 B/s"),
        (2, 8, 16 * GB, 10, "audit:  25% of 16.0 GB, 2 of 8 tasks, 400.0 MB/s, 30 s remain"),
        (1, 1000, 10_000 * GB, 20, "audit:   0% of 10.0 TB, 1 of 1000 tasks, 500.0 MB/s, 5 h 33 min remain"),
        (8, 8, 900, 1, "audit: 100% of 900 B, 8 of 8 tasks, 900 B/s, 0 s remain"),
    ],
)
def test_the_line_has_share_rate_and_remaining_time(
    done: int, total: int, size: int, seconds: float, expected: str
) -> None:
    assert progress_line(done, total, size, seconds) == expected


def test_a_terminal_gets_one_line_that_is_overwritten() -> None:
    output = Terminal()
    writer = ProgressWriter(output, GB, 0)
    writer.update(0, 0, 1)
    assert output.getvalue() == ""
    for second in (1, 2):
        writer.update(second, 4, second)
    writer.close()
    lines = output.getvalue().split("\r\x1b[K")
    assert [line[:11] for line in lines] == ["", "audit:  25%", "audit:  50%"]
    assert output.getvalue().count("\n") == 1


def test_a_log_gets_a_line_every_half_minute() -> None:
    output = io.StringIO()
    writer = ProgressWriter(output, GB, 0)
    for second in range(0, 75, 5):
        writer.update(second, 100, second)
    writer.close()
    assert [line.split(",")[1] for line in output.getvalue().splitlines()] == [
        " 30 of 100 tasks",
        " 60 of 100 tasks",
    ]


def test_configuration_is_parsed_and_keeps_equals_signs_in_values() -> None:
    assert session.parse_config(["spark.a=b", "spark.driver.extraJavaOptions=-Dx=y"]) == {
        "spark.a": "b",
        "spark.driver.extraJavaOptions": "-Dx=y",
    }


@pytest.mark.parametrize(("shown", "kept"), [("false", session.WITHOUT_UI), ("true", {})])
def test_the_driver_keeps_descriptions_of_many_queries_only_for_a_ui(
    shown: str, kept: dict[str, str]
) -> None:
    options = {"spark.ui.enabled": shown, "spark.driver.memory": "2g"}
    found = session._spark_config(2, "1g", options)
    assert {key: value for key, value in found.items() if key in session.WITHOUT_UI} == kept
    assert found["spark.driver.memory"] == "2g"


@pytest.mark.parametrize("master", ["local[*]", "local", "yarn", "spark://a:7077", "k8s://https://a:6443"])
def test_masters_of_spark_are_accepted(master: str) -> None:
    session.check_master(master)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--conf", "spark.a"], "--conf spark.a: expected spark.KEY=VALUE"),
        (["--conf", "executor.memory=1g"], "--conf executor.memory=1g: expected spark.KEY=VALUE"),
        (["--master", "cluster"], "--master cluster: expected local[N], yarn"),
        (["--master", "yarn", "--cores", "2"], "--cores is for Spark on this machine"),
    ],
)
def test_wrong_options_are_one_line_and_exit_code_2(
    options: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["audit", "/nowhere", *options]) == 2
    text = capsys.readouterr().err
    assert named in text
    assert len(text.splitlines()) == 1
