"""Groups' registered expressions: which version counts, when one is dead, and what the file keeps."""

from __future__ import annotations

import json

from epochmq_broker.tables.filters.bloom import BloomFilter, bits_as_text, has_bits, murmur3, set_bits
from epochmq_broker.tables.filters.consumer_filters import ConsumerFilterTable
from epochmq_protocol.bodies import SubscriptionData

BLOOM = BloomFilter(20, 32)
DAY_MS = 24 * 3600 * 1000


def subscription(
    text: str = "a > 1", version: int = 1, topic: str = "T", kind: str = "SQL92"
) -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=text, expression_type=kind, sub_version=version)


def registered(table: ConsumerFilterTable, topic: str = "T") -> str | None:
    found = table.get(topic, "group")
    return None if found is None else found.data.expression


def test_a_newer_version_replaces_the_expression_and_an_older_one_does_not() -> None:
    table = ConsumerFilterTable(BLOOM)
    table.register("group", [subscription("a > 1", 5)], 100)
    table.register("group", [subscription("a > 2", 4)], 200)
    assert registered(table) == "a > 1"
    table.register("group", [subscription("a > 2", 6)], 300)
    found = table.get("T", "group")
    assert found is not None
    assert (found.data.expression, found.data.client_version, found.data.born_time) == ("a > 2", 6, 300)


def test_a_new_version_of_the_same_expression_keeps_its_time_of_birth() -> None:
    table = ConsumerFilterTable(BLOOM)
    table.register("group", [subscription(version=5)], 100)
    table.register("group", [subscription(version=6)], 200)
    found = table.get("T", "group")
    assert found is not None
    assert (found.data.client_version, found.data.born_time) == (6, 100)


def test_an_expression_that_does_not_compile_removes_the_one_before() -> None:
    table = ConsumerFilterTable(BLOOM)
    table.register("group", [subscription("a >", 1)], 100)
    assert registered(table) is None
    table.register("group", [subscription("a > 1", 2)], 100)
    table.register("group", [subscription("a >", 3)], 200)
    assert registered(table) is None


def test_tags_and_empty_expressions_are_not_registered() -> None:
    table = ConsumerFilterTable(BLOOM)
    table.register("group", [subscription("a", kind="TAG"), subscription("", topic="U")], 100)
    assert registered(table) is registered(table, "U") is None


def test_an_expression_dies_with_its_group_or_its_subscription_and_comes_back() -> None:
    table = ConsumerFilterTable(BLOOM)
    table.register("group", [subscription(), subscription(topic="U")], 100)
    table.register("group", [subscription()], 200)
    one, other = table.get("T", "group"), table.get("U", "group")
    assert one is not None
    assert other is not None
    assert (one.data.is_dead, other.data.is_dead) == (False, True)
    table.unregister("group", 300)
    assert one.data.dead_time == 300
    table.register("group", [subscription()], 400)
    assert not one.data.is_dead


def test_an_expression_is_deleted_a_day_after_its_death() -> None:
    table = ConsumerFilterTable(BLOOM)
    table.register("group", [subscription()], 100)
    table.unregister("group", 200)
    table.clean(199 + DAY_MS, DAY_MS)
    assert registered(table) == "a > 1"
    table.clean(200 + DAY_MS, DAY_MS)
    assert registered(table) is None


def test_the_file_has_rocketmqs_fields_and_a_restored_group_counts_as_dead() -> None:
    table = ConsumerFilterTable(BLOOM)
    table.register("group", [subscription()], 100)
    text = table.encode()
    row = json.loads(text)["filterDataByTopic"]["T"]["groupFilterData"]["group"]
    assert list(row) == [
        "bloomFilterData",
        "bornTime",
        "clientVersion",
        "consumerGroup",
        "dead",
        "deadTime",
        "expression",
        "expressionType",
        "topic",
    ]
    assert row["bloomFilterData"]["bitNum"] == 112
    again = ConsumerFilterTable(BLOOM)
    again.restore(text, 100_000)
    found = again.get("T", "group")
    assert found is not None
    assert found.expression is not None
    assert found.data.dead_time == 70_000


def test_a_file_for_another_size_of_bit_maps_is_ignored() -> None:
    table = ConsumerFilterTable(BLOOM)
    table.register("group", [subscription()], 100)
    other = ConsumerFilterTable(BloomFilter(10, 32))
    other.restore(table.encode(), 200)
    assert registered(other) is None


def test_the_bits_of_a_group_are_found_in_a_bit_map() -> None:
    bit_map = bytearray(BLOOM.bits // 8)
    one, other = BLOOM.positions("group#T"), BLOOM.positions("another#T")
    set_bits(one, bit_map)
    assert has_bits(one, bytes(bit_map))
    assert not has_bits(other, bytes(bit_map))


def test_hashes_are_murmurs() -> None:
    # Published values of the 128-bit x64 variant with seed 0, first eight bytes, little-endian.
    assert murmur3(b"") == 0
    assert murmur3(b"hello") == 0xCBD8A7B341BD9B02
    assert murmur3(b"The quick brown fox jumps over the lazy dog") == 0xE34BBC7BBC071B6C


def test_a_bit_map_is_shown_from_its_last_byte() -> None:
    assert bits_as_text(bytes([1] + [0] * 8)) == "00000000\n" + "00000000" * 7 + "00000001\n"
