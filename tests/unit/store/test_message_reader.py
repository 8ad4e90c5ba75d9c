"""Tests reads by offset, time and key."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epochmq_protocol import javahash
from epochmq_protocol import message as records
from epochmq_store.statuses import GetStatus
from tests.unit.store.read_guard import Guard
from tests.unit.store.support import (
    HOST,
    Message,
    open_store,
    put_all,
    random_messages,
    read_log,
    small_config,
    with_joined_pieces,
)

TAG_A, TAG_B = javahash.tags_code("TagA"), javahash.tags_code("TagB")


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
        (0, GetStatus.FOUND, 5),
        (3, GetStatus.FOUND, 5),
        (5, GetStatus.OFFSET_OVERFLOW_ONE, 5),
        (6, GetStatus.OFFSET_OVERFLOW_BADLY, 5),
    ],
)
def test_the_status_of_a_get_depends_on_its_offset(
    tmp_path: Path, offset: int, status: GetStatus, next_offset: int
) -> None:
    store = open_store(tmp_path)
    put_all(store, [Message()] * 5)
    found = store.get(store.queue("orders", 0), offset, 32)
    assert (found.status, found.next_offset) == (status, next_offset)
    assert (found.min_offset, found.max_offset) == (0, 5)
    assert found.count == len(records.decode_records(found.body)) == (5 - offset if found.body else 0)
    store.stop()


def test_a_get_from_an_empty_queue_reports_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    found = store.get(store.queue("orders", 7), 3, 32)
    assert (found.status, found.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
    store.stop()


def test_a_get_returns_whole_messages_of_one_queue_in_order(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    messages = random_messages(1, 60)
    put_all(store, messages)
    wanted = [m.body for m in messages if (m.topic, m.queue_id) == ("orders", 1) and not m.sys_flag & 4]
    queue = store.queue("orders", 1)
    bodies: list[bytes] = []
    offset = 0
    while offset < queue.max_offset:
        found = store.get(queue, offset, 3)
        bodies += [one.body for one in records.decode_records(found.body)]
        assert found.next_offset > offset
        offset = found.next_offset
    assert bodies == wanted
    store.stop()


def test_a_get_with_tags_returns_only_messages_with_them(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    tags = ["TagA", "TagB", "", "TagA", "TagC", "TagB"]
    put_all(store, [Message(properties={"TAGS": tag}) for tag in tags])
    queue = store.queue("orders", 0)
    found = store.get(queue, 0, 32, tags=frozenset([TAG_A]))
    assert [one.queue_offset for one in records.decode_records(found.body)] == [0, 3]
    assert found.next_offset == 6
    found = store.get(queue, 2, 1, tags=frozenset([TAG_A, TAG_B]))
    assert (found.count, found.next_offset) == (1, 4)
    found = store.get(queue, 4, 32, tags=frozenset([TAG_A]))
    assert (found.status, found.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 6)
    store.stop()


def test_messages_with_a_queue_extension_address_are_left_to_the_client(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    queue = store.queue("orders", 0)
    for code in (TAG_A, TAG_B, -(1 << 31) - 1):
        store.append(queue, body=b"", properties=b"", born_timestamp=0, born_host=HOST, tags_code=code)
    assert store.get(queue, 0, 32, tags=frozenset([TAG_A])).count == 2
    store.stop()


def test_a_get_is_limited_in_messages_and_bytes_but_returns_at_least_one(tmp_path: Path) -> None:
    store = open_store(
        tmp_path, mapped_file_size_consume_queue=20 * 1000, mapped_file_size_commit_log=1 << 20
    )
    done = put_all(store, [Message(body=bytes(1000))] * 100)
    size = done[0][3]
    queue = store.queue("orders", 0)
    assert store.get(queue, 0, 100).count == 32
    assert store.get(queue, 0, 7).count == 7
    assert store.get(queue, 0, 32, 3 * size).count == 3
    assert store.get(queue, 0, 32, 3 * size - 1).count == 2
    assert store.get(queue, 0, 32, 1).count == 1
    store.configure(
        small_config(
            tmp_path,
            max_transfer_count_on_message_in_memory=5,
            max_transfer_bytes_on_message_in_memory=4 * size,
        )
    )
    assert store.get(queue, 0, 32).count == 4
    store.configure(small_config(tmp_path, access_message_in_memory_max_ratio=0))
    assert store.get(queue, 0, 32).count == 8
    store.stop()


def test_a_scan_that_matches_nothing_ends_after_800_units(tmp_path: Path) -> None:
    store = open_store(
        tmp_path, mapped_file_size_consume_queue=20 * 2000, mapped_file_size_commit_log=1 << 20
    )
    put_all(store, [Message()] * 1000)
    found = store.get(store.queue("orders", 0), 10, 32, tags=frozenset([TAG_A]))
    assert (found.status, found.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 810)
    store.stop()


def test_adjacent_records_are_read_in_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    put_all(store, [Message()] * 5)
    put_all(store, [Message(topic="other")])
    put_all(store, [Message()] * 3)
    seen: list[list[tuple[int, int]]] = []
    read_pieces = type(store.log).read_pieces
    monkeypatch.setattr(
        type(store.log), "read_pieces", lambda log, pieces: seen.append(pieces) or read_pieces(log, pieces)
    )
    found = store.get(store.queue("orders", 0), 0, 32, tags=frozenset([0]))
    assert (found.count, len(seen[0])) == (8, 2)
    # Without tags the fast path returns the same result.
    assert with_joined_pieces(store.get(store.queue("orders", 0), 0, 32)) == with_joined_pieces(found)
    alone = store.get(store.queue("orders", 0), 5, 32, tags=frozenset([0]))
    assert with_joined_pieces(store.get(store.queue("orders", 0), 5, 32)) == with_joined_pieces(alone)
    store.stop()


def test_reads_by_physical_offset(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    done = put_all(store, [Message(body=bytes(n)) for n in range(5)])
    for _, physical, offset, size in done:
        record = store.read(physical)
        assert record is not None
        assert len(record) == size
        assert store.read(physical, size) == record
        assert store.lookup.physical_offset("orders", 0, offset) == physical
    assert store.read(store.max_phy_offset) is None
    assert store.read(done[0][1] + 1) is None
    assert store.read(-1) is None
    assert store.read(0, store.max_phy_offset + 1) is None
    store.stop()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.integers(0, 3), min_size=1, max_size=35),
    asked=st.integers(-2, 60),
    upper=st.booleans(),
)
def test_offsets_by_time(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], asked: int, upper: bool
) -> None:
    """Lower: the first message at or after the time. Upper: the last message at or before it."""
    store = open_store(tmp_path_factory.mktemp("store"))
    times = [1_000_000 + sum(steps[: at + 1]) for at in range(len(steps))]
    clock = iter(times)
    store.appender._clock = lambda: next(clock) / 1000 + 0.0001
    put_all(store, [Message()] * len(steps))
    stored = [found.store_timestamp for found in read_log(store.config.root)]
    assert stored == times
    wanted = 1_000_000 + asked
    lower_offset = next((at for at, time in enumerate(times) if time >= wanted), len(times))
    upper_offset = max((at for at, time in enumerate(times) if time <= wanted), default=0)
    found = store.lookup.offset_by_time("orders", 0, wanted, upper=upper)
    assert found == (upper_offset if upper else lower_offset)
    assert store.lookup.store_time("orders", 0, len(times) - 1) == times[-1]
    assert store.lookup.earliest_time("orders", 0) == store.lookup.earliest_time() == times[0]
    store.stop()


def test_missing_queues_and_messages_have_no_times(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert (
        store.lookup.earliest_time()
        == store.lookup.earliest_time("orders", 0)
        == store.lookup.store_time("orders", 0, 0)
        == -1
    )
    assert store.lookup.offset_by_time("orders", 0, 5) == 0
    assert store.lookup.existing_queue("orders", 0) is None
    assert store.lookup.physical_offset("orders", 0, 0) is None
    store.queue("orders", 0)
    assert store.lookup.offset_by_time("orders", 0, 5) == 0
    store.stop()


def test_messages_are_found_by_key_and_unique_key(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    messages = random_messages(3, 60)
    put_all(store, messages)
    everything = list(read_log(tmp_path))
    for key in ["key3", "key7", messages[17].properties["UNIQ_KEY"], "nobody"]:
        for topic in ("orders", "payments"):
            found = store.reader.query(topic, key, 64, 0, 1 << 60)
            wanted = [
                one.physical_offset
                for one in everything
                if one.topic == topic and one.sys_flag & 12 != 12 and key in _keys(one)
            ]
            have = records.decode_records(found.body)
            # Other keys may have the same hash; the client compares keys.
            assert [one.physical_offset for one in have if one.topic == topic and key in _keys(one)] == wanted
            assert found.count == len(have)
    assert found.index_last_update_phyoffset == max(
        one.physical_offset for one in everything if one.sys_flag & 12 != 12
    )
    store.stop()


def _keys(message: records.MessageExt) -> list[str]:
    properties = records.parse_properties(message.properties)
    return [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")]


def test_a_query_returns_the_newest_messages_of_its_time_range(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    clock = iter(range(1000, 2000))
    store.appender._clock = lambda: next(clock)
    put_all(store, [Message(properties={"KEYS": "k"})] * 30)
    found = store.reader.query("orders", "k", 10, 1_005_000, 1_020_000)
    assert [one.queue_offset for one in records.decode_records(found.body)] == list(range(11, 21))
    assert store.reader.query("orders", "k", 100, 1_005_000, 1_020_000).count == 16
    assert store.reader.query("orders", "k", 100, 0, 1 << 60).count == 30
    assert store.reader.query("orders", "k", 100, 5_000_000, 6_000_000).count == 0
    store.stop()


@pytest.mark.parametrize("tags", [None, frozenset([TAG_A])], ids=["every tag", "one tag"])
@pytest.mark.parametrize("between", [0, 1], ids=["in one piece", "apart"])
def test_a_get_asks_whether_all_of_its_messages_are_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: int, tags: frozenset[int] | None
) -> None:
    store = open_store(tmp_path)
    for _ in range(3):
        put_all(store, [Message(body=bytes(700), properties={"TAGS": "TagA"})])
        put_all(store, [Message(topic="other")] * between)
    queue = store.queue("orders", 0)
    asked: set[int] = set()
    monkeypatch.setattr(store.reader, "resident_only", Guard(asked))
    assert store.get(queue, 0, 32, tags=tags).count == 3
    wanted = {offset + n for offset, size, _ in queue.units(0, 3) for n in range(size)}
    assert asked == wanted
    store.stop()


@pytest.mark.parametrize("sized", [False, True])
def test_a_read_asks_whether_the_whole_record_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, sized: bool
) -> None:
    """Otherwise the event loop would wait for the disk in the part that is not."""
    store = open_store(tmp_path)
    put_all(store, [Message(body=bytes(700))] * 2)
    unit = store.queue("orders", 0).unit(1)
    assert unit is not None
    offset, size, _ = unit
    asked: set[int] = set()
    monkeypatch.setattr(store.reader, "resident_only", Guard(asked))
    assert store.reader.read(offset, size if sized else None) is not None
    assert asked == set(range(offset, offset + size))
    asked.clear()
    assert store.reader.read(store.max_phy_offset, size) is None
    assert asked == set()
    store.stop()
