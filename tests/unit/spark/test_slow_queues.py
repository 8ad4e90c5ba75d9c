"""Tests that a fault of a queue whose messages lie far apart is found without reading all of them again."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark import drill_down, queue_drill_down
from epochmq_spark.checks.log_extent import LogExtent
from epochmq_spark.drill_down import AuditedLog
from epochmq_spark.queue_drill_down import BucketPart, QueueRange
from epochmq_spark.sources import log_chunks
from epochmq_spark.sources.file_ranges import FileRange
from epochmq_spark.sources.summary import SummaryReader
from tests.spark import damage
from tests.unit.spark import inprocess
from tests.unit.store.support import Message, open_store, put

RANGE_BYTES = 20_000
SLOW = 40


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a message of the queue `slow` before each hundred of another topic."""
    store = open_store(
        tmp_path / "r1", mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=2000
    )
    for number in range(100 * SLOW):
        if number % 100 == 0:
            put(store, Message("slow", body=b"x", properties={"UNIQ_KEY": f"S{number}", "TAGS": "t"}))
        put(store, Message("busy", body=bytes(100)))
    store.stop()
    return tmp_path / "r1"


def audited(store: Path) -> tuple[AuditedLog, list[BucketPart]]:
    """The log of a store, and the parts of the queue `slow` in it."""
    (replica,) = inprocess.replicas_of([store])
    rows = inprocess.rows(SummaryReader([replica], {"partitionBytes": str(RANGE_BYTES)}))
    end = max(row["end"] for row in rows if row["kind"] == "span")
    parts = [
        BucketPart(row["first"], row["end"], row["count"], row["digest"])
        for row in rows
        if row["kind"] == "queue" and row["topic"] == "slow"
    ]
    return AuditedLog(replica, LogExtent(0, end, end, leading=True), end, ()), parts


def set_unit(store: Path, number: int, at: int, value: bytes) -> None:
    """Changes bytes of a unit of the queue `slow`."""
    (path,) = (store / "consumequeue" / "slow" / "0").iterdir()
    data = bytearray(path.read_bytes())
    data[number * 20 + at : number * 20 + at + len(value)] = value
    path.write_bytes(data)


@pytest.mark.parametrize("fault", ["size", "place", "missing", "tag"])
def test_only_the_part_with_the_fault_is_read(
    fault: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, parts = audited(store)
    assert len(parts) > 10
    at, value = {
        "size": (8, b"\0\0\0\7"),
        "place": (7, b"\1"),
        "missing": (0, bytes(20)),
        "tag": (15, b"\1"),
    }[fault]
    set_unit(store, 17, at, value)
    drill_down.clear_caches()
    everything = [BucketPart(one.first, one.last) for one in parts]
    expected = queue_drill_down.compare_queue_range(log, QueueRange("slow", 0, 0, everything, SLOW))
    assert {row["queue_offset"] for row in expected} == {17}
    assert [row["message_id"] for row in expected if row["kind"] == "queue.missing-unit"] == (
        ["S1700"] if fault == "missing" else []
    )
    read: list[int] = []

    def read_chunks(one: FileRange) -> object:
        read.append(one.end - one.begin)
        return log_chunks.read_chunks(one)

    monkeypatch.setattr(drill_down, "read_chunks", read_chunks)
    assert queue_drill_down.compare_queue_range(log, QueueRange("slow", 0, 0, parts, SLOW)) == expected
    assert 0 < sum(read) < 2 * RANGE_BYTES


def test_a_message_with_the_queue_offset_of_an_earlier_one_is_described_by_its_record(store: Path) -> None:
    slow = [one for one in damage.records(store) if one.message.topic == "slow"]
    data = bytearray(slow[3].path.read_bytes())
    data[slow[3].at + 20 : slow[3].at + 28] = (30).to_bytes(8, "big")
    slow[3].path.write_bytes(data)
    log, parts = audited(store)
    everything = [BucketPart(one.first, one.last) for one in parts]
    expected = queue_drill_down.compare_queue_range(log, QueueRange("slow", 0, 0, everything, SLOW))
    duplicates = [row for row in expected if row["kind"] == "queue-offset.duplicate"]
    assert [(row["message_id"], row["start_offset"]) for row in duplicates] == [("S3000", slow[30].offset)]
    assert queue_drill_down.compare_queue_range(log, QueueRange("slow", 0, 0, parts, SLOW)) == expected
