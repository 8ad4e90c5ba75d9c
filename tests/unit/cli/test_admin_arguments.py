"""Tests the output and the argument errors of the verbs that administer a cluster."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest
import yaml

from epochmq.app import run
from epochmq.exits import ExitCode, UsageError
from epochmq.verbs.cluster_calls import parse_time
from epochmq.verbs.output import Column, OutputTable, ResultFormat, VerbResult, format_result
from tests.support.net import free_port, loopback

ROWS = [{"name": "a\x1b[31m", "count": 5, "when": 0, "tags": {"x": "1"}}, {"name": "b", "count": 1000}]
TABLE = OutputTable(
    (
        Column("NAME", "name"),
        Column("COUNT", "count"),
        Column("WHEN", "when", is_time=True),
        Column("TAGS", "tags", is_wide=True),
    ),
    ROWS,
)
RESULT = VerbResult(ROWS, [TABLE], ["a", "b"])


def test_a_table_aligns_numbers_right_and_shows_no_control_character() -> None:
    assert format_result(RESULT, ResultFormat.TABLE).splitlines() == [
        "NAME     COUNT   WHEN",
        "a\ufffd[31m       5   -",
        "b         1000   -",
    ]
    assert format_result(RESULT, ResultFormat.WIDE).splitlines()[1] == "a\ufffd[31m       5   -      x=1"


def test_programs_get_everything() -> None:
    assert json.loads(format_result(RESULT, ResultFormat.JSON)) == ROWS
    assert yaml.safe_load(format_result(RESULT, ResultFormat.YAML)) == ROWS
    assert format_result(RESULT, ResultFormat.NAME) == "a\nb\n"


def test_a_time_may_be_absolute_or_a_span_before_now() -> None:
    assert parse_time("--time", "1700000000000") == 1_700_000_000_000
    assert parse_time("--time", "2023-11-14T22:13:20+00:00") == 1_700_000_000_000
    now_ms = datetime.now().timestamp() * 1000
    assert abs(parse_time("--time", "2d") - (now_ms - 2 * 86_400_000)) < 60_000
    clock = datetime.now().replace(hour=14, minute=30, second=0, microsecond=0)
    assert parse_time("--time", "yesterday 14:30") == int((clock - timedelta(days=1)).timestamp() * 1000)
    assert parse_time("--time", "today 14:30:05") == int(clock.timestamp() * 1000) + 5000
    wrong = ("", "d", "-3h", "yesterday", "3 h", "٣h", "9999999999d", "2023-13-01")
    for text in (*wrong, "yesterday 25:00", "yesterday 1", "yesterday 1:٣", "today 1:2:3:4", "tomorrow 1:00"):
        with pytest.raises(UsageError, match="--time"):
            parse_time("--time", text)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["topic", "create", "a b"], "TOPIC 'a b'"),
        (["topic", "create", ""], "TOPIC ''"),
        (["topic", "create", "t", "--perm", "x"], "--perm x: expected r, w or rw"),
        (["topic", "create", "t", "--attribute", "x"], "--attribute x: expected KEY=VALUE"),
        (["topic", "create", "t", "--remove-attribute", "x"], "No such option"),
        (["topic", "alter", "t"], "nothing to change"),
        (["topic", "create", "t", "--queues", "0"], "--queues"),
        (["group", "lag", "a b"], "GROUP 'a b'"),
        (["group", "lag", "x" * 300], "300 characters, expected at most 255"),
        (["group", "reset", "g", "--topic", "t"], "give one of --to"),
        (["group", "reset", "g", "--topic", "t", "--to", "earliest", "--offset", "1"], "give one of --to"),
        (["group", "reset", "g", "--topic", "t", "--to", "end"], "--to end: expected earliest or latest"),
        (["group", "reset", "g", "--topic", "t", "--time", "soon"], "--time soon: expected a time"),
        (["group", "reset", "g", "--topic", "t", "--offset", "1", "--queue", "1"], "expected BROKER:NUMBER"),
        (["topic", "list", "-o", "xml"], "xml"),
        (["message", "peek", "t", "--tag", "a", "--sql", "b"], "give --tag or --sql, not both"),
        (["message", "peek", "t", "--time", "soon"], "--time soon: expected a time"),
        (["message", "peek", "t", "--queue", "a:b"], "--queue a:b: expected BROKER:NUMBER"),
        (["message", "get", "1", "--topic", "a b"], "TOPIC 'a b'"),
        (["message", "resend", "1", "--topic", "t", "--to", "a b"], "TOPIC 'a b'"),
        (["message", "export", "t", "--file", "/nowhere/x", "-n", "127.0.0.1:1"], "--file /nowhere/x"),
        (["dlq", "list", "a b"], "GROUP 'a b'"),
        (["dlq", "resend"], "GROUP"),
        (["topic", "list", "--nameserver", "x"], "--nameserver x: expected HOST:PORT"),
    ],
)
def test_a_wrong_argument_is_named_with_what_was_expected(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == ExitCode.USAGE
    output = capsys.readouterr()
    assert problem in output.err
    assert output.out == ""


def test_a_cluster_that_does_not_respond_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    host = loopback(55)
    address = f"{host}:{free_port(host)}"
    assert run(["topic", "list", "--nameserver", address]) == ExitCode.FAILED
    output = capsys.readouterr()
    assert address in output.err
    assert (output.out, output.err.count("\n")) == ("", 1)
