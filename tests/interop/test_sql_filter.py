"""SQL92: our evaluator and RocketMQ's agree about generated expressions and messages, and Java consumers get
what their expressions select."""

from __future__ import annotations

import base64
import random
import time
from pathlib import Path

import pytest

from epochmq_broker.tables.filters.bloom import BloomFilter
from epochmq_broker.tables.filters.consumer_filters import ConsumerFilterTable
from epochmq_broker.tables.filters.java_values import EvaluationError
from epochmq_broker.tables.filters.sql import compile_sql
from epochmq_broker.tables.filters.sql_lexer import SqlSyntaxError
from epochmq_protocol.bodies import SubscriptionData
from tests.interop.java_env import compile_java, run_java
from tests.interop.scenarios import ScenarioReport
from tests.support.sql_expressions import expression, message

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

COLORS = ("red", "green", "blue")


def chosen(*numbers: int) -> list[str]:
    """The bodies of these messages, sorted as text."""
    return sorted(f"m-{number}" for number in numbers)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def evaluated(text: str, messages: list[dict[str, str]]) -> list[str]:
    """Our results in the words of the Java program."""
    try:
        compiled = compile_sql(text)
    except SqlSyntaxError:
        return ["error"]
    results = ["ok"]
    for properties in messages:
        try:
            value = compiled.value(properties)
        except EvaluationError:
            results.append("X")
        else:
            assert value is None or isinstance(value, bool)
            results.append("N" if value is None else "T" if value else "F")
    return results


def compare(home: Path, cases: list[tuple[str, list[dict[str, str]]]]) -> dict[str, int]:
    """Asserts that both evaluators agree on every case. Returns how often each result occurred."""
    lines, ours = [], []
    for text, messages in cases:
        results = evaluated(text, messages)
        lines.append(f"E {encoded(text)}")
        ours.append((text, None, results[0]))
        if results[0] == "error":
            continue
        for properties, result in zip(messages, results[1:], strict=True):
            pairs = " ".join(f"{encoded(name)}:{encoded(value)}" for name, value in properties.items())
            lines.append(f"M {pairs}")
            ours.append((text, properties, result))
    classes = compile_java("SqlEvaluator.java")
    done = run_java(
        "epochmq.interop.SqlEvaluator", home=home, classes=classes, heap_mb=512, stdin="\n".join(lines) + "\n"
    )
    theirs = done.stdout.split("\n")
    counts: dict[str, int] = {}
    differences = []
    for (text, properties, mine), java in zip(ours, theirs, strict=False):
        counts[java] = counts.get(java, 0) + 1
        if mine != java:
            differences.append(f"{text!r} {properties}: ours {mine}, RocketMQ {java}")
    assert not differences, "\n".join(differences[:20]) + f"\n({len(differences)} differences)"
    assert len(theirs) == len(ours) + 1
    return counts


@pytest.mark.parametrize(
    ("seed", "count"), [(1, 4000), pytest.param(2, 20_000, marks=pytest.mark.soak)], ids=["short", "long"]
)
def test_generated_expressions_have_the_same_value_in_both_evaluators(
    tmp_path: Path, seed: int, count: int
) -> None:
    rng = random.Random(seed)
    cases = [(expression(rng), [message(rng) for _ in range(4)]) for _ in range(count)]
    counts = compare(tmp_path, cases)
    # Every kind of result must be tested, and most expressions must compile.
    assert min(counts[kind] for kind in ("ok", "error", "T", "F", "N", "X")) > count // 50, counts


def test_the_bits_of_a_group_are_rocketmqs(tmp_path: Path) -> None:
    texts = [
        "",
        "group#topic",
        "a" * 15,
        "b" * 16,
        "c" * 17,
        "grün#主题",
        *(f"g{i}#t{i}" for i in range(200)),
    ]
    done = run_java(
        "epochmq.interop.SqlEvaluator",
        home=tmp_path,
        classes=compile_java("SqlEvaluator.java"),
        stdin="".join(f"B {encoded(text)}\n" for text in texts),
    )
    bloom = BloomFilter(20, 32)
    ours = [bloom.positions(text) for text in texts]
    assert done.stdout.splitlines() == [
        " ".join(map(str, (bits.bit_num, *(bits.bit_pos or ())))) for bits in ours
    ]


def test_java_reads_our_file_of_registered_expressions_and_writes_the_same(tmp_path: Path) -> None:
    table = ConsumerFilterTable(BloomFilter(20, 64))
    now_ms = int(time.time() * 1000)
    subscription = SubscriptionData(
        topic="topic", sub_string="a > 1 AND b = 'ä\"'", expression_type="SQL92", sub_version=7
    )
    table.register("group", [subscription], now_ms - 2000)
    table.unregister("group", now_ms - 1000)
    ours = table.encode()
    done = run_java(
        "epochmq.interop.SqlEvaluator",
        home=tmp_path,
        classes=compile_java("SqlEvaluator.java"),
        stdin=f"F {base64.b64encode(ours).decode()}\n",
    )
    assert base64.b64decode(done.stdout.splitlines()[-1]).decode() == ours.decode()


@pytest.mark.scenario("sql_push")
def test_a_push_consumer_gets_what_its_expression_selects(report: ScenarioReport) -> None:
    wanted = [i for i in range(30, 120) if i % 3 != 1 and i % 4 != 0]
    assert sorted(report["received"]) == chosen(*wanted)


@pytest.mark.scenario("sql_posted")
def test_the_expression_may_come_with_each_pull(report: ScenarioReport) -> None:
    wanted = [i for i in range(60) if 10 <= i <= 19 or i % 3 == 1]
    assert sorted(report["received"]) == chosen(*wanted)


@pytest.mark.scenario("sql_lite_pull")
def test_a_lite_pull_consumer_gets_what_its_expression_selects(report: ScenarioReport) -> None:
    assert sorted(report["received"]) == chosen(*(i for i in range(50, 60) if i % 3 != 1))


@pytest.mark.scenario("sql_resubscribe")
def test_a_new_expression_takes_the_place_of_the_old_one(report: ScenarioReport) -> None:
    assert sorted(report["first"]) == chosen(*range(0, 30, 3))
    assert sorted(report["second"]) == chosen(*range(32, 60, 3))


@pytest.mark.scenario("sql_invalid")
def test_a_consumer_with_an_invalid_expression_does_not_start(report: ScenarioReport) -> None:
    assert report["code"] == 23


@pytest.mark.scenario("sql_long_search")
def test_matches_far_apart_are_found(report: ScenarioReport) -> None:
    assert sorted(report["received"]) == ["m-3", "m-5000"]
