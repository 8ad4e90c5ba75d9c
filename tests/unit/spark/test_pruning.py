"""Tests that a query with filters finds what a read of the whole log finds, and reads less."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from epochmq_formats.queue_unit import UNIT, UNIT_BYTES
from epochmq_protocol import message
from epochmq_protocol.message_const import BLANK_MAGIC
from epochmq_spark.sources.commitlog import CommitLogReader, FilteringCommitLogReader
from epochmq_spark.sources.topic_ranges import PlacedRange
from epochmq_spark.store_layout import AuditedReplica
from tests.spark import damage
from tests.unit.spark import inprocess
from tests.unit.spark.conftest import Group

Row = dict[str, Any]
SEGMENT = 8192
START_MS = 1_700_000_000_000
TOPICS = ("rare", "orders", "größe")
FILTERS: dict[str, tuple[list[Filter], Callable[[Row], bool]]] = {
    "topic": ([EqualTo(("topic",), "rare")], lambda row: row["topic"] == "rare"),
    "not null": (
        [IsNotNull(("topic",)), EqualTo(("topic",), "größe")],
        lambda row: row["topic"] == "größe",
    ),
    "topics": ([In(("topic",), ("rare", "größe", "none"))], lambda row: row["topic"] in ("rare", "größe")),
    "no topic": ([EqualTo(("topic",), "none")], lambda row: False),
    "two topics at once": (
        [EqualTo(("topic",), "rare"), In(("topic",), ("orders",))],
        lambda row: False,
    ),
    "another topic": ([Not(EqualTo(("topic",), "rare"))], lambda row: row["topic"] not in ("rare", None)),
    "queue": (
        [EqualTo(("topic",), "rare"), In(("queue_id",), (1, 7))],
        lambda row: row["topic"] == "rare" and row["queue_id"] == 1,
    ),
    "offsets": (
        [
            EqualTo(("topic",), "rare"),
            GreaterThan(("physical_offset",), 3000),
            LessThan(("physical_offset",), 21_000),
        ],
        lambda row: row["topic"] == "rare" and 3000 < row["physical_offset"] < 21_000,
    ),
    "some offsets": ([In(("physical_offset",), (0, 9000))], lambda row: row["physical_offset"] in (0, 9000)),
    "times": (
        [
            GreaterThanOrEqual(("store_timestamp",), START_MS + 30),
            LessThan(("store_timestamp",), START_MS + 60),
        ],
        lambda row: (
            row["store_timestamp"] is not None and START_MS + 30 <= row["store_timestamp"] < START_MS + 60
        ),
    ),
    "time": (
        [
            GreaterThan(
                ("store_time",), datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(microseconds=29_500)
            ),
            LessThanOrEqual(
                ("store_time",), datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(milliseconds=50)
            ),
        ],
        lambda row: (
            row["store_timestamp"] is not None and START_MS + 30 <= row["store_timestamp"] <= START_MS + 50
        ),
    ),
    "a number for a topic": ([EqualTo(("topic",), 7)], lambda row: False),
    "kind": ([EqualTo(("kind",), "blank")], lambda row: row["kind"] == "blank"),
}


class Log:
    """A store that is written message by message, with any queue offsets and any units."""

    def __init__(self, root: Path, start: int = 0) -> None:
        self.root, self.start = root, start
        self.data = bytearray()
        self.units: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        self.number = 0

    def add(self, topic: str, queue_id: int, queue_offset: int, size: int = 60) -> None:
        record = self._record(topic, queue_id, queue_offset, size)
        left = SEGMENT - len(self.data) % SEGMENT
        if len(record) + 8 > left:
            self.data += (
                left.to_bytes(4, "big") + (BLANK_MAGIC & 0xFFFFFFFF).to_bytes(4, "big") + bytes(left - 8)
            )
            record = self._record(topic, queue_id, queue_offset, size)
        unit = (queue_offset, self.start + len(self.data), len(record))
        self.units.setdefault((topic, queue_id), []).append(unit)
        self.data += record
        self.number += 1

    def _record(self, topic: str, queue_id: int, queue_offset: int, size: int) -> bytes:
        return message.encode_record(
            message.MessageExt(
                topic,
                bytes([self.number % 251]) * size,
                b"KEYS\x01k\x02",
                queue_id=queue_id,
                queue_offset=queue_offset,
                physical_offset=self.start + len(self.data),
                store_timestamp=START_MS + self.number,
            )
        )

    def write(self) -> Path:
        folder = self.root / "commitlog"
        folder.mkdir(parents=True)
        for at in range(0, len(self.data), SEGMENT):
            name = f"{self.start + at:020}"
            (folder / name).write_bytes(bytes(self.data[at : at + SEGMENT]).ljust(SEGMENT, b"\0"))
        for (topic, queue_id), units in self.units.items():
            queue = self.root / "consumequeue" / topic / str(queue_id)
            queue.mkdir(parents=True)
            first = units[0][0]
            for at in range(first // 20, units[-1][0] // 20 + 1):
                of_file = bytearray(20 * UNIT_BYTES)
                for offset, physical, size in units:
                    if offset // 20 == at:
                        place = offset % 20 * UNIT_BYTES
                        of_file[place : place + UNIT_BYTES] = UNIT.pack(physical, size, 0)
                (queue / f"{at * 20 * UNIT_BYTES:020}").write_bytes(of_file)
        write_topics(self.root, dict.fromkeys(TOPICS, 2))
        return self.root


def write_topics(root: Path, counts: dict[str, int]) -> None:
    (root / "config").mkdir(exist_ok=True)
    table = {name: {"topicName": name, "readQueueNums": n, "writeQueueNums": n} for name, n in counts.items()}
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))


def healthy(root: Path, count: int = 200, start: int = 0, first: int = 0) -> Log:
    """Two queues of each of three topics. One message in ten is of the topics `rare` and `größe`."""
    log, ends = Log(root, start), Counter[tuple[str, int]]()
    for number in range(count):
        topic = "rare" if number % 20 < 2 else "größe" if number % 20 in (5, 6) else "orders"
        queue = topic, number % 2
        log.add(*queue, first + ends[queue], 30 + number % 7 * 30)
        ends[queue] += 1
    return log


def reader_of(
    stores: Sequence[Path], filters: list[Filter], **options: str
) -> tuple[FilteringCommitLogReader, list[Filter]]:
    replicas = [AuditedReplica("g", path.name, str(path)) for path in stores]
    reader = FilteringCommitLogReader(replicas, {"body": "true", "partitionBytes": "3000", **options})
    return reader, list(reader.pushFilters(filters))


def check(stores: Sequence[Path], names: Sequence[str] = tuple(FILTERS), **options: str) -> None:
    """Every filter finds what a filtered read of everything finds."""
    replicas = [AuditedReplica("g", path.name, str(path)) for path in stores]
    whole = inprocess.rows(CommitLogReader(replicas, {"body": "true"}))
    for name in names:
        filters, is_wanted = FILTERS[name]
        reader, rest = reader_of(stores, filters, **options)
        found = inprocess.rows(reader)
        left = [row for row in found if is_wanted(row)]  # as Spark, which applies what is in `rest`
        if not rest:
            assert left == found
        if len(filters) == 1 and filters[0] == EqualTo(("topic",), "rare"):
            by_option = CommitLogReader(
                replicas, {"body": "true", "partitionBytes": "3000", "topics": "rare", **options}
            )
            assert inprocess.rows(by_option) == found == left
        key = ("replica", "physical_offset")
        expected = [row for row in whole if is_wanted(row)]
        assert sorted(left, key=lambda row: [row[k] for k in key]) == expected, name
        assert len(found) <= len(whole)


def placed_bytes(store: Path, topic: str) -> tuple[int, int]:
    """The bytes that a query of a topic looks up, and those that it walks."""
    reader, _ = reader_of([store], [EqualTo(("topic",), topic)])
    ranges = [one for partition in reader.partitions() for one in partition.ranges]
    looked_up = sum(one.cost for one in ranges if isinstance(one, PlacedRange))
    return looked_up, sum(one.cost for one in ranges if not isinstance(one, PlacedRange))


def test_a_healthy_log_is_looked_up(tmp_path: Path) -> None:
    store = healthy(tmp_path / "r1").write()
    check([store])
    looked_up, walked = placed_bytes(store, "rare")
    assert looked_up > 1500
    assert walked < 2 * SEGMENT
    size = sum(one.stat().st_size for one in (store / "commitlog").iterdir())
    for topic in ("orders", "none"):  # most of the log, and a topic that does not exist
        assert placed_bytes(store, topic) == (0, size)


def test_a_log_whose_beginning_has_expired_is_looked_up_from_there(tmp_path: Path) -> None:
    store = healthy(tmp_path / "r1", 400).write()
    for number in range(2):
        (store / "commitlog" / f"{number * SEGMENT:020}").unlink()
    check([store])
    assert placed_bytes(store, "rare")[1] < 2 * SEGMENT
    assert placed_bytes(store, "rare")[0] > 1500


def test_several_replicas_are_read_each_by_its_own_queues(tmp_path: Path) -> None:
    stores = [healthy(tmp_path / name).write() for name in ("r1", "r2", "r3")]
    shutil.rmtree(stores[1] / "consumequeue" / "rare" / "1")
    damage_log(stores[2], random.Random(3), 6)
    check(stores)
    filters, _ = FILTERS["topic"]
    reader, rest = reader_of(stores, [*filters, In(("replica",), ("r2", "r3")), EqualTo(("group",), "g")])
    assert rest == filters
    assert {row["replica"] for row in inprocess.rows(reader)} == {"r2", "r3"}


def damage_log(store: Path, rng: random.Random, count: int) -> None:
    for _ in range(count):
        segment = rng.choice(sorted((store / "commitlog").iterdir()))
        data = bytearray(segment.read_bytes())
        at = rng.randrange(len(data))
        if rng.random() < 0.8:
            data[at] ^= 1 << rng.randrange(8)
        else:
            data[at : at + 300] = bytes(len(data[at : at + 300]))
        segment.write_bytes(data)


def queue_files(store: Path, topic: str) -> list[Path]:
    return sorted((store / "consumequeue" / topic).glob("*/*"))


def lose_the_end(store: Path) -> None:
    file = queue_files(store, "rare")[0]
    file.write_bytes(file.read_bytes()[: 5 * UNIT_BYTES].ljust(20 * UNIT_BYTES, b"\0"))


def lose_the_beginning(store: Path) -> None:
    file = queue_files(store, "rare")[0]
    file.write_bytes(bytes(4 * UNIT_BYTES) + file.read_bytes()[4 * UNIT_BYTES :])


def lose_one_unit(store: Path) -> None:
    file = queue_files(store, "rare")[0]
    data = bytearray(file.read_bytes())
    data[3 * UNIT_BYTES : 4 * UNIT_BYTES] = bytes(UNIT_BYTES)
    file.write_bytes(data)


def lose_a_file(store: Path) -> None:
    queue_files(store, "größe")[0].unlink()
    queue_files(store, "rare")[-1].unlink()


def lose_a_queue(store: Path) -> None:
    shutil.rmtree(store / "consumequeue" / "rare" / "1")


def zero_a_queue(store: Path) -> None:
    for file in queue_files(store, "rare")[1:]:
        file.write_bytes(bytes(file.stat().st_size))


def lose_all_queues(store: Path) -> None:
    shutil.rmtree(store / "consumequeue")


def lose_the_table(store: Path) -> None:
    shutil.rmtree(store / "config")


def garble_the_table(store: Path) -> None:
    (store / "config" / "topics.json").write_text('{"topicConfigTable": {"rare": {"readQueueNums": [1]}}}')


def exchange_queues(store: Path) -> None:
    folder = store / "consumequeue" / "rare"
    (folder / "0").rename(folder / "x")
    (folder / "1").rename(folder / "0")
    (folder / "x").rename(folder / "1")


def point_elsewhere(store: Path) -> None:
    file = queue_files(store, "rare")[0]
    data = bytearray(file.read_bytes())
    for number in (2, 3):
        physical, size, tags = UNIT.unpack(data[number * UNIT_BYTES : (number + 1) * UNIT_BYTES])
        data[number * UNIT_BYTES : (number + 1) * UNIT_BYTES] = UNIT.pack(physical + number, size, tags)
    file.write_bytes(data)


def point_beyond(store: Path) -> None:
    file = queue_files(store, "rare")[-1]
    data = bytearray(file.read_bytes())
    used = sum(1 for at in range(20) if any(data[at * UNIT_BYTES : (at + 1) * UNIT_BYTES]))
    data[used * UNIT_BYTES : (used + 1) * UNIT_BYTES] = UNIT.pack(1 << 40, 100, 0)
    file.write_bytes(data)


def lose_a_segment(store: Path) -> None:
    (store / "commitlog" / f"{SEGMENT:020}").unlink()


def cut_the_log(store: Path) -> None:
    sorted((store / "commitlog").iterdir())[-1].unlink()


DAMAGES = [
    lose_the_end,
    lose_the_beginning,
    lose_one_unit,
    lose_a_file,
    lose_a_queue,
    zero_a_queue,
    lose_all_queues,
    lose_the_table,
    garble_the_table,
    exchange_queues,
    point_elsewhere,
    point_beyond,
    lose_a_segment,
    cut_the_log,
]


@pytest.mark.parametrize("wreck", DAMAGES, ids=lambda wreck: wreck.__name__)
def test_a_damaged_queue_hides_no_message(wreck: Callable[[Path], None], tmp_path: Path) -> None:
    store = healthy(tmp_path / "r1").write()
    wreck(store)
    check([store], ["topic", "not null", "topics", "queue", "offsets"])


@pytest.mark.parametrize("seed", range(8))
def test_damaged_records_are_found_or_missed_as_in_a_read_of_the_log(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    start = rng.choice([0, 5 * SEGMENT])
    store = healthy(tmp_path / "r1", 160, start, first=rng.choice([0, 33])).write()
    damage_log(store, rng, rng.randrange(1, 12))
    if rng.random() < 0.5:
        rng.choice(DAMAGES[:4])(store) if not start else lose_the_end(store)
    check([store], taskBytes=rng.choice(["1", "100000"]))


def test_messages_of_a_topic_that_was_deleted_and_made_again_are_found(tmp_path: Path) -> None:
    log = healthy(tmp_path / "r1", 120)
    for key in [("rare", 0), ("rare", 1)]:
        del log.units[key]  # the deletion removes the queues; the new ones start at 0
    ends = Counter[int]()
    for number in range(120):
        if number % 10 < 2:
            log.add("rare", number % 2, ends[number % 2])
            ends[number % 2] += 1
        else:
            log.add("orders", 3, number)
    store = log.write()
    check([store], ["topic", "topics", "queue", "offsets"])
    looked_up, walked = placed_bytes(store, "rare")
    assert looked_up > 0
    assert walked > len(log.data) // 3  # where the messages of the deleted topic are


def test_seeded_groups_are_found_by_topic(group: Group, dledger_group: Group, tmp_path: Path) -> None:
    for number, paths in enumerate((group(81), dledger_group(81))):
        stores = [Path(shutil.copytree(path, tmp_path / str(number) / path.name)) for path in paths]
        for store in stores:
            write_topics(store, {"orders": 2, "payments": 2})
        replicas = [AuditedReplica("g", path.name, str(path)) for path in stores]
        whole = inprocess.rows(CommitLogReader(replicas, {}))
        for topic in ("orders", "payments"):
            reader, _ = reader_of(stores, [EqualTo(("topic",), topic)], body="false")
            found = inprocess.rows(reader)
            found.sort(key=lambda row: (row["replica"], row["physical_offset"]))
            expected = [row for row in whole if row["topic"] == topic]
            assert found == expected
            assert expected


def test_a_dledger_log_is_looked_up(
    dledger_group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epochmq_spark.sources.topic_ranges.LOG_SHARE", 1)
    store = Path(shutil.copytree(dledger_group(81)[0], tmp_path / "r1"))
    write_topics(store, {"orders": 2, "payments": 2})
    assert placed_bytes(store, "orders")[0] > 1000
    reader, _ = reader_of([store], [EqualTo(("topic",), "orders")])
    found = inprocess.rows(reader)
    whole = inprocess.rows(CommitLogReader([AuditedReplica("g", "r1", str(store))], {"body": "true"}))
    assert sorted(found, key=lambda row: row["physical_offset"]) == [
        r for r in whole if r["topic"] == "orders"
    ]
    assert all(row["term"] is not None for row in found)
    assert len(damage.records(store)) > len(found)
