"""An expression finds the same properties in stored bytes as in the parsed properties."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from epochmq_broker.tables.filters.message_filter import (
    RESULTS_MAX,
    StoredProperties,
    carried_filter,
    selector,
)
from epochmq_broker.tables.filters.sql import compile_sql
from epochmq_protocol.bodies import SubscriptionData
from epochmq_protocol.message import parse_properties

PIECES = st.sampled_from(["a", "aa", "b", "\x01", "\x02", "1", "7", "", "x y", "TAGS", "%"])
STORED = st.lists(PIECES, max_size=30).map("".join)
NAMES = st.sampled_from(["a", "aa", "b", "TAGS", "1", "none", "ü"])


@given(STORED, NAMES)
def test_a_property_is_found_as_the_parser_finds_it(stored: str, name: str) -> None:
    assert StoredProperties(stored.encode()).get(name) == parse_properties(stored).get(name)


@given(STORED, st.sampled_from(["", "ü", "b\x01ü\x02", "\udcff"]))
def test_a_filter_selects_as_over_the_parsed_properties(stored: str, more: str) -> None:
    data = (stored + more).encode("utf-8", "surrogateescape")
    text = "a > 3 OR b = 'x y'"
    wanted = carried_filter(SubscriptionData(topic="T", sub_string=text, expression_type="SQL92"))
    assert wanted.select is not None
    assert wanted.select(data) == compile_sql(text).matches(parse_properties(data))


@given(
    st.lists(STORED, max_size=20), st.sampled_from(["a > 3", "a = b OR aa IS NULL", "NOT (a <> '1')", "TRUE"])
)
def test_a_filter_selects_each_of_many_messages_by_its_own_properties(messages: list[str], text: str) -> None:
    expression = compile_sql(text)
    select = selector(expression)
    for stored in messages * 2:
        assert select(stored.encode()) == expression.matches(parse_properties(stored))


def test_a_filter_with_more_values_than_it_keeps_selects_the_right_messages() -> None:
    select = selector(compile_sql("a BETWEEN 10 AND 19"))
    selected = [number for number in range(3 * RESULTS_MAX) if select(b"a\x01%d\x02" % number)]
    assert selected == list(range(10, 20))
    assert not select(b"a\x01" + b"1" * 10_000)
