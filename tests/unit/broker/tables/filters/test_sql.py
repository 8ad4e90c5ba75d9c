"""SQL92 expressions mean what they mean to RocketMQ, oddities included. The interop test compares thousands
of generated ones with RocketMQ's own evaluator; the cases here are the rules by name."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochmq_broker.tables.filters.java_values import EvaluationError, Value
from epochmq_broker.tables.filters.sql import EXPRESSION_MAX, compile_sql
from epochmq_broker.tables.filters.sql_expression import DEPTH_MAX
from epochmq_broker.tables.filters.sql_lexer import SqlSyntaxError
from tests.support.sql_expressions import expression, message


def value(text: str, properties: Mapping[str, str] | None = None, **more: str) -> Value:
    """The value of an expression for a message with these properties."""
    return compile_sql(text).value({**(properties or {}), **more})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = '5'", True),
        ("a = 5", True),
        ("a = 5.0", True),
        ("a <> 5", False),
        ("5 = a", True),
        ("a > 4 AND a < 6", True),
        ("a BETWEEN 5 AND 7", True),
        ("a NOT BETWEEN 5 AND 7", False),
        ("a BETWEEN 7 AND -3", False),
        ("a IN ('4', '5')", True),
        ("a NOT IN ('4', '5')", False),
        ("a IS NULL", False),
        ("b IS NULL", True),
        ("b IS NOT NULL", False),
        ("a > b", None),
        ("a = b", False),
        ("b = a", None),
        ("b = c", True),
        ("b IN ('x')", None),
        ("NOT b IN ('x')", "error"),
        ("text CONTAINS 'ell'", True),
        ("text NOT CONTAINS 'ell'", False),
        ("text STARTSWITH 'he' AND text ENDSWITH 'lo'", True),
        ("text CONTAINS ''", False),
        ("text NOT CONTAINS ''", False),
        ("(a > text) CONTAINS ''", False),
        ("b NOT CONTAINS 'x'", False),
        ("quoted = 'it''s'", True),
        ("a", False),
        ("b", None),
        ("NOT a", True),
        ("TRUE", True),
        ("NULL", None),
        ("yes = TRUE", True),
        ("TRUE = yes", "fails"),
        ("-a = -5", None),
        ("- -5 = 5", True),
        ("a > text", "fails"),
        ("a >= '5'", "error"),
        ("a > half", True),
        ("half > 1", "fails"),
        ("half > 1.0", True),
        ("big = 9223372036854775807", True),
        ("big > 1", "fails"),
        ("a = 007", False),
        ("a = 5 and", "error"),
        ("a = 5 whatever follows", True),
        ("a = 5 -- a comment\n AND a /* one */ = 6", False),
        ("a = 5 !", "error"),
    ],
)
def test_an_expression_has_rocketmqs_value(text: str, expected: Value | str) -> None:
    properties = {
        "a": "5",
        "text": "hello",
        "quoted": "it's",
        "yes": "True",
        "half": "1.5",
        "big": "9223372036854775807",
    }
    if expected == "error":
        with pytest.raises(SqlSyntaxError):
            compile_sql(text)
    elif expected == "fails":
        with pytest.raises(EvaluationError):
            value(text, properties)
        assert not compile_sql(text).matches(properties)
    else:
        assert value(text, properties) is expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "'x'",
        "-a",
        "a =",
        "(a = 5",
        "a = NULL",
        "NULL <> a",
        "TRUE = 5",
        "a > 'x'",
        "a < TRUE",
        "(a = 1) > 5",
        "5 IN ('x')",
        "a IN (5)",
        "a IN ()",
        "a NOT 5",
        "a IS 5",
        "a BETWEEN 7 AND 5",
        "a BETWEEN NULL AND 5",
        "a = 9223372036854775808",
        "a = 0.0",
        "a = 1e999",
        "a = 1e-999",
        "a CONTAINS b",
        "a = 'x",
        "a != 5",
        "a = 5 /* open",
        "+",
        "a LIKE 'x'",
        "1 AND a = 5",
    ],
)
def test_what_rocketmq_does_not_compile_is_rejected(text: str) -> None:
    if text == "a LIKE 'x'":  # the text after a complete expression does not count
        assert compile_sql(text).value({"a": "x"}) is False
        return
    with pytest.raises(SqlSyntaxError):
        compile_sql(text)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        ("NaN", True),
        ("Infinity", True),
        (" 7.5d ", True),
        ("0x1p3", True),
        ("-Infinity", False),
        ("1e999", True),
    ],
)
def test_doubles_are_read_as_java_reads_them(number: str, expected: bool) -> None:
    assert value("a > 7.0", a=number) is expected


def test_zero_and_minus_zero_differ() -> None:
    assert value("a = b", a="0.0", b="-0.0") is False
    assert value("a > b", a="0.0", b="-0.0") is True


@pytest.mark.parametrize(
    "text",
    [
        "(" * (DEPTH_MAX + 1) + "a" + ")" * (DEPTH_MAX + 1),
        "NOT " * (DEPTH_MAX + 1) + "a",
        "a" + " IS NULL" * (DEPTH_MAX + 1),
        "a = '" + "x" * EXPRESSION_MAX + "'",
    ],
)
def test_expressions_without_bounds_are_rejected(text: str) -> None:
    with pytest.raises(SqlSyntaxError):
        compile_sql(text)


@given(st.text(max_size=60) | st.integers(0, 1 << 32).map(lambda seed: expression(random.Random(seed))))
def test_any_text_compiles_or_is_rejected_and_any_message_has_a_value_or_none(text: str) -> None:
    reasons = []
    for _ in range(2):  # the second time the result is remembered
        try:
            compiled = compile_sql(text)
        except SqlSyntaxError as error:
            reasons.append(str(error))
    if reasons:
        assert reasons[0]
        assert reasons == reasons[:1] * 2
        return
    assert compile_sql(text) is compiled
    properties = message(random.Random(text))
    try:
        found = compiled.value(properties)
    except EvaluationError:
        assert not compiled.matches(properties)
    else:
        assert found is None or isinstance(found, bool)
        assert compiled.matches(properties) is (found is True)


def test_a_long_chain_is_one_level() -> None:
    chain = " OR ".join(f"a = '{number}'" for number in range(2000))
    assert value(chain, a="1999") is True
    assert value(chain, a="x") is False
