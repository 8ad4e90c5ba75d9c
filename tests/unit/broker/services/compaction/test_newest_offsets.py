"""The table of newest offsets is a dictionary of bounded size."""

from __future__ import annotations

import random

from epochmq_broker.services.compaction.newest_offsets import ENTRIES_MIN, ENTRY_BYTES, NewestOffsets


def test_it_remembers_the_newest_offset_of_each_key() -> None:
    table, expected = NewestOffsets(ENTRY_BYTES * 1000), {}
    made = random.Random(1)
    for offset in range(5000):
        key = b"key%d" % made.randrange(700)
        assert table.put(key, offset)
        expected[key] = offset
    assert {key: table.get(key) for key in expected} == expected
    assert table.get(b"unknown") == -1
    assert table.last_offset == 4999


def test_a_full_table_takes_no_further_key_and_still_updates_known_ones() -> None:
    table = NewestOffsets(1)
    taken = 0
    while table.put(b"key%d" % taken, taken):
        taken += 1
    assert taken == ENTRIES_MIN * 3 // 4
    assert table.last_offset == taken - 1
    assert table.put(b"key0", 10_000)
    assert (table.get(b"key0"), table.last_offset) == (10_000, 10_000)
    assert table.get(b"key%d" % taken) == -1
