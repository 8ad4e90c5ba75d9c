"""An expression finds the same properties in stored bytes as in the parsed properties."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from epochmq_broker.tables.filters.bloom import BloomFilter, has_bits
from epochmq_broker.tables.filters.consumer_filters import ConsumerFilterTable
from epochmq_broker.tables.filters.message_filter import (
    RESULTS_MAX,
    bit_map_of,
    carried_filter,
    retry_filter,
    selector,
)
from epochmq_broker.tables.filters.sql import compile_sql
from epochmq_protocol.bodies import SubscriptionData
from epochmq_protocol.message import parse_properties

PIECES = st.sampled_from(["a", "aa", "b", "\x01", "\x02", "1", "7", "", "x y", "TAGS", "%"])
STORED = st.lists(PIECES, max_size=30).map("".join)
ODD_BYTES = st.binary(max_size=6) | st.sampled_from(
    [b"", b"a\x01\xe3\x81\x02", b"\xff\x02a\x017", "ü".encode()]
)


@given(STORED, ODD_BYTES, STORED, st.sampled_from(["a = '7'", "a > 3 OR b = 'x y'", "a CONTAINS '\ufffd'"]))
def test_a_filter_selects_among_any_bytes_as_over_the_parsed_properties(
    before: str, odd: bytes, after: str, text: str
) -> None:
    data = before.encode() + odd + after.encode()
    expression = compile_sql(text)
    assert selector(expression)(data) == expression.matches(parse_properties(data))


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


@given(st.lists(STORED, min_size=1, max_size=5))
def test_bit_maps_and_retry_filters_select_as_over_the_parsed_properties(messages: list[str]) -> None:
    table = ConsumerFilterTable(BloomFilter(20, 32))
    texts = {"g": "a > 3", "h": "b = 'x y' OR aa IS NULL"}
    for group, text in texts.items():
        words = SubscriptionData(topic="a", sub_string=text, expression_type="SQL92", sub_version=1)
        table.register(group, [words], 1)
    retries = {
        group: retry_filter(table, SubscriptionData(topic=f"%RETRY%{group}")).select for group in texts
    }
    for stored in messages:
        data = f"{stored}\x02RETRY_TOPIC\x01a\x02".encode()
        bit_map = bit_map_of(table, "a", data)
        for group, text in texts.items():
            matches = compile_sql(text).matches(parse_properties(data))
            bits = table.of_topic("a")[group].data.bloom_filter_data
            select = retries[group]
            assert bits is not None
            assert select is not None
            assert select(data) == matches
            assert has_bits(bits, bit_map) or not matches
    assert not any(bit_map_of(table, "a", b"a\x011\x02aa\x011\x02"))
