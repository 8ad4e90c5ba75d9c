"""Messages that a filter matches are counted in a bounded part of the queue, and estimated for the rest."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from epochmq_protocol.javahash import java_hash
from epochmq_store.files.page_residency import NotResidentError
from epochmq_store.message_store import MessageStore
from epochmq_store.reading.matching_counts import Count
from tests.unit.store.support import Message, open_store, put_all

RED = frozenset({java_hash("red")})


def filled(path: Path, colors: list[str]) -> MessageStore:
    """A store with messages of these tags in one queue, whose files have few units each."""
    store = open_store(path, mapped_file_size_consume_queue=20 * 300)
    put_all(store, [Message(properties={"TAGS": color}) for color in colors])
    return store


def test_all_matching_messages_are_counted_over_the_files_of_a_queue(tmp_path: Path) -> None:
    rng = random.Random(1)
    colors = [rng.choice(["red", "blue"]) for _ in range(2500)]
    store = filled(tmp_path, colors)
    queue = store.queue("orders", 0)
    for start, end in ((0, 2500), (299, 301), (300, 1900), (2499, 2500)):
        found = store.reader.count_tagged(queue, start, end, RED, 5000)
        assert found == Count(colors[start:end].count("red"), end - start)
    store.stop()


def test_a_count_ends_when_enough_messages_match(tmp_path: Path) -> None:
    store = filled(tmp_path, ["red", "blue"] * 1200)
    found = store.reader.count_tagged(store.queue("orders", 0), 0, 2400, RED, 300)
    assert 300 < found.matched < 1200
    assert found.estimate(2400) == 1200
    store.stop()


def test_an_expression_is_counted_by_the_properties(tmp_path: Path) -> None:
    store = filled(tmp_path, ["red", "blue", "blue"] * 50)
    found = store.reader.count_selected(store.queue("orders", 0), 3, 150, lambda stored: b"red" in stored)
    assert found == Count(49, 147)
    store.stop()


def test_nothing_is_counted_where_the_disk_would_have_to_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path, ["red"] * 10)

    class Absent:
        def require(self, *place: object) -> None:
            raise NotResidentError(store.log.files.files[0], 0, 1)

    monkeypatch.setattr(store.reader, "residency", Absent())
    with pytest.raises(NotResidentError):
        store.reader.count_selected(store.queue("orders", 0), 0, 10, lambda _: True)
    store.stop()


@pytest.mark.parametrize(
    ("count", "messages", "estimate"),
    [(Count(3, 10), 10, 3), (Count(3, 10), 100, 30), (Count(0, 0), 100, 100), (Count(0, 10), 100, 0)],
)
def test_the_estimate_extends_the_sample(count: Count, messages: int, estimate: int) -> None:
    assert count.estimate(messages) == estimate
