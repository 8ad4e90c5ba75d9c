"""The fast path of deliveries stores exactly the records that the ordinary path stores."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochmq_broker.services.timer.delivery import TimerDelivery
from epochmq_broker.services.timer.plain_delivery import PlainTimerDelivery, _properties_of
from epochmq_broker.services.timer.record_reader import RecordReader
from epochmq_broker.services.timer.timer_log import Unit
from epochmq_broker.services.timer.timer_metrics import TimerMetrics
from epochmq_formats.timer_log import MAGIC_DEFAULT, MAGIC_DELETE, MAGIC_ROLL
from epochmq_protocol import message as records
from epochmq_protocol.topics import TIMER_TOPIC
from tests.unit.broker.kit import BORN_MS, UNIQ_KEY, Bench, running

ROUNDS = 300
OUT_MS, WRITE_MS = 4_000_000_000_000, 3_999_999_000_000
HOSTS = [records.encode_host("127.0.0.1", 1), records.encode_host("10.0.0.1", 10911)]
MORE = {
    "KEYS": ["k", "a b", "ü"],
    "TAGS": ["a", "TagB"],
    "WAIT": ["true", "false"],
    "own": ["x", "y\x01z", "%s"],
    "TIMER_DEL_UNIQKEY": ["T+x"],
    "TIMER_ENQUEUE_MS": ["5"],
    "TIMER_ROLL_TIMES": ["2"],
    "DELAY": ["0", "3"],
    "INNER_NUM": ["1"],
    "REAL_TOPIC": ["T", "Other", "x" * 128, "%RETRY%g"],
    "REAL_QID": ["0", "7", "x", "-1"],
    "TIMER_OUT_MS": [str(OUT_MS), str(OUT_MS + 1), "x"],
}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path, {"timerStopEnqueue": "true"}) as made:
        yield made


def delivery(bench: Bench, folder: Path) -> tuple[PlainTimerDelivery, TimerDelivery, TimerMetrics]:
    """Both paths, with metrics of their own."""
    broker, metrics = bench.broker, TimerMetrics(folder)
    stats = broker.tables.stats
    ordinary = TimerDelivery(
        sink=broker.writer, stats=stats, metrics=metrics, quarantine=broker.quarantine, precision_ms=1000
    )
    plain = PlainTimerDelivery(
        store=broker.store, sink=broker.writer, stats=stats, metrics=metrics, delivery=ordinary
    )
    return plain, ordinary, metrics


def some_unit(chance: random.Random, bench: Bench) -> Unit:
    """Stores a record in the timer topic, and returns a unit for it."""
    properties = {
        "UNIQ_KEY": UNIQ_KEY,
        "TIMER_DELIVER_MS": str(OUT_MS + 5),
        "TIMER_OUT_MS": str(OUT_MS),
        "REAL_TOPIC": "T",
        "REAL_QID": "1",
    }
    for name in chance.sample(sorted(MORE), chance.choice([0, 0, 1, 2, 3])):
        properties[name] = chance.choice(MORE[name])
    if chance.random() < 0.05:
        del properties[chance.choice(sorted(properties))]
    rendered = records.format_properties(properties)
    if chance.random() < 0.15:
        spoiled = [rendered[:-1], b"\x02" + rendered, rendered + b"WAIT\x01false\x02", rendered + b"a\x02"]
        rendered = chance.choice([*spoiled, rendered + b"b\x01\xff\x02"])
    store = bench.broker.store
    _, physical, _, size = store.append(
        store.queue(chance.choice([TIMER_TOPIC] * 12 + ["T"]), 0),
        body=bytes(chance.choices(range(256), k=chance.choice([0, 1, 100, 5000]))),
        properties=rendered,
        born_timestamp=BORN_MS,
        born_host=chance.choice(HOSTS),
        store_host=chance.choice([None, HOSTS[0]]),
        flag=chance.choice([0, 7, -1]),
        sys_flag=chance.choice([0, 0, 0, 1, 0x301, 8, 0x80]),
        reconsume_times=chance.choice([0, 3]),
    )
    if chance.random() < 0.05:
        file = store.log.file
        assert file is not None
        file.map[physical - file.start + size // 2] ^= 1
    magic = chance.choice([MAGIC_DEFAULT] * 8 + [MAGIC_DEFAULT | MAGIC_ROLL, MAGIC_DEFAULT | MAGIC_DELETE])
    return Unit(0, -1, magic, WRITE_MS, OUT_MS - WRITE_MS, physical, size, 0)


def stored_since(bench: Bench, start: int) -> list[dict[str, Any]]:
    """The records from an offset of the log on, with their tags codes, without what differs between any two
    deliveries."""
    found: list[dict[str, Any]] = []
    store = bench.broker.store
    while start < store.max_phy_offset:
        data = store.read(start)
        assert data is not None
        record = records.decode_record(data)
        queue = store.lookup.existing_queue(record.topic, record.queue_id)
        assert queue is not None
        unit = queue.unit(record.queue_offset)
        assert unit is not None
        assert unit[:2] == (start, record.store_size)
        fields = msgspec.structs.asdict(record)
        for name in ("queue_offset", "physical_offset", "store_timestamp", "properties"):
            del fields[name]
        kept, _, dequeued = record.properties.rpartition(b"TIMER_DEQUEUE_MS\x01")
        assert abs(int(dequeued[:-1]) - record.store_timestamp) < 60_000
        found.append(fields | {"properties": kept, "tags_code": unit[2]})
        start += record.store_size
    return found


async def test_both_paths_store_the_same_records_and_count_the_same(bench: Bench, tmp_path: Path) -> None:
    plain, ordinary, metrics = delivery(bench, tmp_path)
    store, reader, taken = bench.broker.store, RecordReader(bench.broker.store), 0
    for seed in range(ROUNDS):
        unit = some_unit(random.Random(seed), bench)
        store.appender.build_index()
        start, backlog, version = store.max_phy_offset, store.index.backlog, metrics.data_version
        if not plain.put([unit]):
            assert (store.max_phy_offset, metrics.data_version) == (start, version)
            assert not backlog
            continue
        taken += 1
        first, indexed, counted = (
            stored_since(bench, start),
            [one[1:3] for one in backlog],
            metrics.count("T"),
        )
        assert ordinary.log_end == store.max_phy_offset
        store.appender.build_index()
        start, delivered = store.max_phy_offset, ordinary.delivered
        due = reader.read(unit.offset, unit.size)
        assert due is not None, seed
        assert due.out_ms == unit.time_ms
        ordinary.put(due, unit.write_time_ms, rolls=False)
        assert stored_since(bench, start) == first, seed
        assert [one[1:3] for one in backlog] == indexed
        assert ordinary.delivered == delivered + 1
        if due.real_topic == "T":
            assert metrics.count("T") == counted - 1
    assert ROUNDS / 6 < taken < ROUNDS


async def test_a_message_that_cannot_be_stored_now_is_left_to_the_ordinary_path(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _, _ = delivery(bench, tmp_path)
    unit = some_unit(random.Random(0), bench)
    for seed in range(1, 100):
        if plain.put([unit]):
            break
        unit = some_unit(random.Random(seed), bench)
    end = bench.broker.store.max_phy_offset
    with monkeypatch.context() as patch:
        patch.setattr(bench.broker.writer, "may_reject", True)
        patch.setattr(bench.broker.writer, "rejection", lambda _wait: object())
        assert not plain.put([unit])
    assert bench.broker.store.max_phy_offset == end
    assert plain.put([unit])


def test_the_version_of_the_metrics_counts_every_change(tmp_path: Path) -> None:
    metrics = TimerMetrics(tmp_path)
    first = metrics.data_version
    for _ in range(3):
        metrics.add("T", 1)
    assert metrics.data_version.counter == first.counter + 3
    assert metrics.data_version.timestamp == metrics.table["T"].time_stamp
    assert metrics.data_version == metrics.data_version


@given(st.lists(st.sampled_from(["a", "b", "TAGS", "\x01", "\x02", "ü", ""]), max_size=12).map("".join))
def test_plain_properties_are_those_that_would_be_encoded_again(text: str) -> None:
    stored = text.encode()
    found = _properties_of(stored)
    parsed = records.parse_properties(stored)
    if found is None:
        assert not stored.isascii() or not stored or records.format_properties(parsed) != stored
    else:
        assert found == parsed
        assert records.format_properties(found) == stored
