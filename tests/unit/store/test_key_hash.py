"""Tests that the fast key hash equals Java's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochmq_protocol import javahash
from epochmq_store.index.key_hash import KeyHasher


@given(topic=st.text(max_size=40), key=st.text(max_size=60))
def test_any_key_hashes_as_in_java(topic: str, key: str) -> None:
    assert KeyHasher(javahash.topic_seed(topic))(key) == javahash.key_hash(topic, key)


@given(key=st.text("0123456789ABCDEF", min_size=12, max_size=300))
def test_client_keys_hash_as_in_java(key: str) -> None:
    hasher = KeyHasher(javahash.topic_seed("orders"))
    assert hasher(key) == hasher(key) == javahash.key_hash("orders", key)


@given(parts=st.lists(st.text("0123456789ab@é", max_size=30), min_size=2, max_size=9))
def test_keys_of_several_parts_hash_as_in_java(parts: list[str]) -> None:
    hasher = KeyHasher(javahash.topic_seed("rmq_sys_wheel_timer"))
    key = "@".join(parts)
    assert hasher(key) == hasher(key) == javahash.key_hash("rmq_sys_wheel_timer", key)


@pytest.mark.parametrize("offset", [0, 7, 42, 999, 1000, 123_456_789_012])
def test_keys_of_acknowledgements_hash_as_in_java(offset: int) -> None:
    hasher = KeyHasher(javahash.topic_seed("rmq_sys_wheel_timer"))
    key = f"orders@3@{offset}@billing@1763720000000@broker-a@ack"
    assert hasher(key) == javahash.key_hash("rmq_sys_wheel_timer", key)


@pytest.mark.parametrize(
    ("topic", "key", "expected"),
    [
        ("T", "k", 81_916),  # "T#k".hashCode()
        ("orders", "7F0000010A1E18B4AAC2000000010000", None),
    ],
)
def test_known_hashes(topic: str, key: str, expected: int | None) -> None:
    value = KeyHasher(javahash.topic_seed(topic))(key)
    assert value == (javahash.key_hash(topic, key) if expected is None else expected)


def test_a_hash_of_the_smallest_integer_becomes_zero() -> None:
    """Java's Math.abs(Integer.MIN_VALUE) is negative; RocketMQ's IndexFile replaces it by 0."""
    # "#" + this text has the hash -2^31.
    hasher = KeyHasher(javahash.topic_seed(""))
    key = _key_with_unsigned_hash(0x8000_0000)
    assert javahash.unsigned_hash("#" + key) == 0x8000_0000
    assert hasher(key) == 0


def _key_with_unsigned_hash(wanted: int) -> str:
    """A key of 12 characters such that `#key` has this hash: its digits in base 31, as characters from 0x20
    on."""
    base = sum(0x20 * 31**at for at in range(12)) + ord("#") * 31**12
    rest = (wanted - base) % 2**32
    digits = []
    for _ in range(12):
        digits.append(rest % 31)
        rest //= 31
    return "".join(chr(0x20 + digit) for digit in reversed(digits))
