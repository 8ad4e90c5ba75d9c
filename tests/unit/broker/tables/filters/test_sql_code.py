"""The function that an expression is made to has the value that its nodes compute."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochmq_broker.tables.filters.java_values import EvaluationError
from epochmq_broker.tables.filters.sql import SqlExpression, compile_sql
from epochmq_broker.tables.filters.sql_code import DEPTH_MAX, NODES_MAX, Decide
from epochmq_broker.tables.filters.sql_lexer import SqlSyntaxError
from tests.support.sql_expressions import VALUES, expression, message


def by_function(compiled: SqlExpression, properties: dict[str, str], decide: Decide | None = None) -> object:
    """The value by the function; "fails" if the evaluation fails."""
    decide = decide or compiled.function
    assert decide is not None
    try:
        return decide(*[properties.get(name) for name in compiled.names])
    except EvaluationError:
        return "fails"


def by_nodes(compiled: SqlExpression, properties: dict[str, str]) -> object:
    """The value by the nodes; "fails" if the evaluation fails."""
    try:
        return compiled.value(properties)
    except EvaluationError:
        return "fails"


@given(st.integers(0, 2**32))
def test_any_expression_has_the_same_value_both_ways(seed: int) -> None:
    rng = random.Random(seed)
    compared = 0
    while compared < 20:
        try:
            compiled = compile_sql(expression(rng))
        except SqlSyntaxError:
            continue
        decide = compiled.function
        for properties in [message(rng) for _ in range(4)] if decide else ():
            assert by_function(compiled, properties, decide) is by_nodes(compiled, properties), compiled.text
            values = [properties.get(name) for name in compiled.names]
            assert compiled.decides(values) == compiled.matches(properties)
            compared += 1


@pytest.mark.parametrize(
    "text",
    [
        *("a > 1.5", "a >= 1.5", "a < 1.5", "a <= 1.5", "1.5 < a", "1.5 > a", "a = 1.5", "a > -1.5"),
        *("a > 5", "5 >= a", "a = 5", "a <> -5", "a < -2147483648", "a BETWEEN 1 AND 9223372036854775807"),
        *("a NOT BETWEEN -5 AND 5", "a > b", "a = b", "NOT a = b", "a <> b OR TRUE", "-a IS NULL"),
        *("a > 5 OR b = 'x'", "(a > 5 AND b > 5) OR TRUE", "NOT (b IS NULL AND a > 5)", "TRUE = a"),
        *("a CONTAINS '5'", "a NOT STARTSWITH '-'", "(a = 5) ENDSWITH 'x'", "a IN ('5', 'x')", "a OR NOT b"),
    ],
)
def test_every_odd_value_has_the_same_result_both_ways(text: str) -> None:
    compiled = compile_sql(text)
    decide = compiled.function
    for one in (*VALUES, None):
        for other in ("5", "x", None):
            properties = {name: value for name, value in (("a", one), ("b", other)) if value is not None}
            found = by_function(compiled, properties, decide)
            assert found is by_nodes(compiled, properties), properties


@pytest.mark.parametrize(
    "text", ["NOT " * DEPTH_MAX + "(a > 3)", " OR ".join(f"a = {number}" for number in range(NODES_MAX))]
)
def test_a_large_expression_is_evaluated_by_its_nodes(text: str) -> None:
    compiled = compile_sql(text)
    assert compiled.function is None
    for value in ("3", "4", "x", None):
        properties = {} if value is None else {"a": value}
        assert compiled.decides([value]) == compiled.matches(properties)


def test_names_and_words_of_an_expression_are_no_code() -> None:
    text = "__import__ = 'x\"]) or exec(\\' AND decide IS NOT NULL AND None = 'p0'"
    compiled = compile_sql(text)
    properties = {"__import__": 'x"]) or exec(\\', "decide": "1", "None": "p0"}
    assert by_function(compiled, properties) is True
    assert by_function(compiled, {**properties, "None": "p1"}) is False


def test_the_largest_function_is_made_within_a_moment() -> None:
    texts = [f"a{number} BETWEEN {number} AND 99.5" for number in range(NODES_MAX // 8)]
    compiled = compile_sql(" AND ".join(f"({text} OR b > {at})" for at, text in enumerate(texts)))
    started = time.process_time()
    assert compiled.function is not None
    assert time.process_time() - started < 0.5
