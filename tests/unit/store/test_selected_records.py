"""A get with an expression sees the properties of each record, and returns the records that it selects."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from epochmq_protocol.message import decode_record
from epochmq_store import record
from epochmq_store.message_store import MessageStore
from epochmq_store.statuses import GetStatus
from tests.unit.store.read_guard import Guard
from tests.unit.store.support import Message, open_store, put, put_all, random_messages, small_config


def scan(store: MessageStore, topic: str, chosen: random.Random) -> tuple[list[bytes], list[bytes]]:
    """Gets all messages of the topic's first queue by gets of random sizes and selections. Returns the
    properties that were looked at, and the records that should have been selected."""
    queue = store.queue(topic, 0)
    seen: list[bytes] = []
    offset = queue.min_offset
    while offset < queue.max_offset:
        looked_at: list[bytes] = []
        results: list[bool] = []

        def select(stored: bytes, looked: list[bytes] = looked_at, said: list[bool] = results) -> bool:
            looked.append(stored)
            said.append(chosen.random() < 0.4)
            return said[-1]

        count = chosen.choice([1, 3, 32])
        found = store.reader.get_selected(queue, offset, count, select, examine_max=20, resident=False)
        units = list(queue.units(offset, len(results)))
        selected = [store.read(unit[0], unit[1]) for unit, yes in zip(units, results, strict=True) if yes]
        assert found.body == b"".join(one for one in selected if one is not None)
        assert (found.count, found.size) == (len(selected), len(found.body))
        assert found.next_offset == offset + len(results)
        assert len(selected) <= count
        seen += looked_at
        offset = found.next_offset
    records = [store.read(physical, size) or b"" for physical, size, _ in _all_units(store, topic)]
    return seen, records


def _all_units(store: MessageStore, topic: str) -> list[tuple[int, int, int]]:
    queue = store.queue(topic, 0)
    units = [queue.unit(offset) for offset in range(queue.min_offset, queue.max_offset)]
    return [unit for unit in units if unit is not None]


def test_a_filter_gets_the_properties_of_each_record_whatever_its_hosts_and_topic(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_all(store, random_messages(3, 400))
    for topic in ("orders", "payments", "t" * 140):
        seen, records = scan(store, topic, random.Random(5))
        assert seen == [record.properties_at(data, 0, len(data)) for data in records]
        assert [text.decode() for text in seen] == [
            decode_record(data).properties.decode() for data in records
        ]
        assert len(seen) > 20
    store.stop()


def test_a_filter_gets_the_properties_of_records_in_a_light_message_queue(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    light = store.queue("%LMQ%light", 0)
    for number in range(3):
        _, physical, _, size = put(store, Message(body=bytes(number), properties={"a": str(number)}))
        light.put(number, physical, size, 0)
    seen, _ = scan(store, "%LMQ%light", random.Random(5))
    assert seen == [b"a\x010\x02", b"a\x011\x02", b"a\x012\x02"]
    store.stop()


def test_expired_records_are_passed_over(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_all(store, [Message(body=bytes(900)) for _ in range(300)])
    store.log.files.files.pop(0).close()  # as after expiry: the queue starts with units of expired records
    queue = store.queue("orders", 0)
    expired = sum(physical < store.min_phy_offset for physical, _, _ in _all_units(store, "orders"))
    found = store.reader.get_selected(queue, 0, 9, lambda _: True, examine_max=300, resident=False)
    assert found.status is GetStatus.FOUND
    assert (found.count, found.next_offset) == (9, expired + 9)
    assert expired > 0
    store.stop()


def test_selected_records_stay_within_the_bytes_and_messages_of_a_get(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    size = put_all(store, [Message(body=bytes(700))] * 6)[0][3]
    store.configure(small_config(tmp_path, max_transfer_bytes_on_message_in_memory=3 * size))
    queue = store.queue("orders", 0)

    def count(had: tuple[int, int]) -> int:
        found = store.reader.get_selected(
            queue, 0, 32, lambda _: True, examine_max=32, had=had, resident=False
        )
        return found.count

    assert [count(had) for had in ((0, 0), (1, size), (1, 3 * size), (32, size))] == [3, 2, 0, 0]
    store.stop()


def test_the_whole_stretch_of_records_must_be_known_to_be_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    put_all(store, [Message(body=bytes(700))] * 3)
    asked: set[int] = set()
    guard = Guard(asked)
    monkeypatch.setattr(store.reader, "residency", guard)
    queue = store.queue("orders", 0)
    assert store.reader.get_selected(queue, 0, 32, lambda _: True, examine_max=32).count == 3
    (first, *_), (last, size, _) = queue.unit(0) or (), queue.unit(2) or ()
    assert guard.spans == [(first, last + size)]
    assert asked == set(range(first, last + size))
    store.stop()
