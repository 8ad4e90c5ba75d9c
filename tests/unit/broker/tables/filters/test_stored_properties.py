"""An expression finds the same properties in stored bytes as in the parsed properties."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
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
from epochmq_store.record import properties_at
from tests.unit.store.support import HOST, HOST_V6, open_store

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


@pytest.mark.parametrize(
    "text", ["a > 3", "a IS NULL", "a = '7' OR b = 'x y'", "TRUE", "a <> '1' AND aa IS NULL"]
)
def test_a_get_returns_the_records_that_match_by_their_parsed_properties(tmp_path: Path, text: str) -> None:
    rng = random.Random(text)
    names, values = ("a", "aa", "b", "", "%a"), ("1", "7", "", "x y", "\x01", "a\x017")
    store = open_store(tmp_path)
    for number in range(400):
        pairs = [f"{rng.choice(names)}\x01{rng.choice(values)}" for _ in range(rng.randrange(5))]
        stored = rng.choice(("", "7\x02", "\x02")) + "\x02".join(pairs) + rng.choice(("", "\x02"))
        store.append(
            store.queue("orders", 0),
            body=bytes(number % 7),
            properties=stored.encode() + rng.choice((b"", b"\xe3\x02")),
            born_timestamp=1,
            born_host=rng.choice((HOST, HOST, HOST_V6)),
            flag=0,
            sys_flag=0,
            tags_code=0,
            uniq_key=None,
            keys=None,
        )
    queue, expression = store.queue("orders", 0), compile_sql(text)
    for _ in range(2):  # the second time with all results known
        offset, found, expected = 0, b"", b""
        while offset < queue.max_offset:
            got = store.reader.get_selected(
                queue, offset, 7, selector(expression), examine_max=9, resident=False
            )
            found += got.body
            offset = got.next_offset
        for offset in range(queue.max_offset):
            physical, size, _code = queue.unit(offset) or (0, 0, 0)
            record = store.read(physical, size) or b""
            if expression.matches(parse_properties(properties_at(record, 0, size))):
                expected += record
        assert found == expected
        assert expected
    store.stop()


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
