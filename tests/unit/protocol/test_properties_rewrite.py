"""Changing a key of a configuration file leaves everything else unchanged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from epochmq_protocol import properties
from epochmq_protocol.properties import rewrite

TEXTS = st.text(st.sampled_from("ab=:#! \\\n\t\\u0041é") | st.characters(codec="utf-8"), max_size=60)
KEYS = st.text(min_size=1, max_size=8)
VALUES = st.text(max_size=12)


def test_comments_order_and_spelling_of_other_keys_stay() -> None:
    text = "# who\nbrokerName = a\n\n! old style\nflushDiskType:ASYNC_FLUSH\n"
    assert rewrite(text, {"flushDiskType": "SYNC_FLUSH", "traceOn": "false"}) == (
        "# who\nbrokerName = a\n\n! old style\nflushDiskType=SYNC_FLUSH\ntraceOn=false\n"
    )


def test_a_value_over_several_lines_is_replaced_as_a_whole() -> None:
    assert (
        rewrite("namesrvAddr=a:1;\\\n  b:2\nbrokerId=0\n", {"namesrvAddr": "c:3"})
        == "namesrvAddr=c:3\nbrokerId=0\n"
    )


def test_every_occurrence_of_a_key_is_replaced_because_the_last_one_counts() -> None:
    assert properties.parse(rewrite("a=1\nb=2\na=3\n", {"a": "9"})) == {"a": "9", "b": "2"}


@given(TEXTS, st.dictionaries(KEYS, VALUES, max_size=4))
def test_parsing_the_result_gives_the_old_keys_and_the_changes(text: str, changes: dict[str, str]) -> None:
    assert properties.parse(rewrite(text, changes)) == properties.parse(text) | changes


@given(TEXTS, st.dictionaries(KEYS, VALUES, max_size=4))
def test_the_same_change_twice_changes_nothing_more(text: str, changes: dict[str, str]) -> None:
    once = rewrite(text, changes)
    assert rewrite(once, changes) == once
