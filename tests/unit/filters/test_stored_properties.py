"""An expression finds the same properties in stored bytes as in the parsed properties."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from epochmq_broker.filters.message_filter import StoredProperties, carried_filter
from epochmq_broker.filters.sql import compile_sql
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
