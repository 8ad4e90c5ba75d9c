"""Java's hashes equal their definition."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from epochmq_protocol import javahash
from epochmq_protocol.javahash import index_hash, java_hash, key_hash, tags_code, topic_seed, unsigned_hash


def _reference_hash(text: str) -> int:
    value = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(raw), 2):
        value = (31 * value + (raw[at] << 8 | raw[at + 1])) % 2**32
    return value - 2**32 if value >= 2**31 else value


@settings(deadline=None)
@given(st.text(max_size=1500))
def test_the_hash_is_the_polynomial_over_utf16_units(text: str) -> None:
    assert java_hash(text) == _reference_hash(text)


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8"), max_size=100))
def test_texts_and_their_utf8_bytes_hash_the_same(text: str) -> None:
    assert java_hash(text) == java_hash(text.encode())


@settings(deadline=None)
@given(st.binary(max_size=50))
def test_any_bytes_have_a_hash(data: bytes) -> None:
    assert java_hash(data) == _reference_hash(data.decode("utf-8", "replace"))


@settings(deadline=None)
@given(st.text(max_size=40), st.text(max_size=100))
def test_a_hash_can_be_continued_from_the_preceding_text(head: str, tail: str) -> None:
    assert unsigned_hash(tail, unsigned_hash(head)) == unsigned_hash(head + tail)
    assert key_hash(head, tail) == index_hash(_reference_hash(f"{head}#{tail}"))
    assert topic_seed(head) == _reference_hash(head + "#") % 2**32


def test_tags_have_a_code_and_no_tags_have_none() -> None:
    assert tags_code("TagA") == java_hash("TagA") == 2598919
    assert tags_code("") == tags_code(None) == 0


def test_the_cache_of_tag_codes_is_bounded() -> None:
    for number in range(10_000):
        tags_code(f"tag-{number}")
    assert javahash.tags_code.cache_info().currsize <= 4096


def test_the_hash_without_an_absolute_value_becomes_zero() -> None:
    assert index_hash(-(2**31)) == 0
    assert index_hash(-5) == 5
