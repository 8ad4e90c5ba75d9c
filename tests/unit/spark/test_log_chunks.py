"""Tests that a range of a log is read with little beyond its end, and that all records of it are found."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

import numpy as np

from epochmq_protocol import message
from epochmq_spark.decode import walk as w
from epochmq_spark.decode.summary_rows import spans_of
from epochmq_spark.log_spans import LogSpan, join_spans
from epochmq_spark.sources.file_ranges import FileRange
from epochmq_spark.sources.log_chunks import OVERLAP_BYTES, ReadBuffer, read_chunks
from epochmq_spark.store_layout import AuditedReplica, DataFile
from tests.spark import damage, seeded_groups


def test_a_lookup_of_one_record_reads_little(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = seeded_groups.create_healthy_group(tmp_path, 43)[0]
    record = damage.records(path)[20]
    size = 64 << 20
    read: list[int] = []

    def read_range(location: str, start: int, end: int) -> object:
        read.append(end - start)
        own = record.path.read_bytes()[start:end]
        return np.frombuffer(own.ljust(end - start, b"\0"), np.uint8)

    monkeypatch.setattr("epochmq_spark.sources.log_chunks.files.read_range", read_range)
    one = FileRange("g", "r", str(record.path), record.offset - record.at, size, record.at, record.at + 1)
    rows = [row for chunk in read_chunks(one) for row in chunk.rows]
    assert [(row[w.POSITION], row[w.SIZE]) for row in rows] == [(0, record.size)]
    assert read == [1 + OVERLAP_BYTES]


def test_a_record_that_is_longer_than_the_overlap_is_read_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = seeded_groups.create_healthy_group(tmp_path, 44)[0]
    every = damage.records(path)
    whole = every[0].path.read_bytes()
    first = [one for one in every if one.path == every[0].path]
    for buffer, overlap in itertools.product((None, ReadBuffer()), (0, 7, 400)):
        monkeypatch.setattr("epochmq_spark.sources.log_chunks.OVERLAP_BYTES", overlap)
        for step in (97, 1000, 30_001):
            found = []
            for begin in range(0, len(whole), step):
                end = min(begin + step, len(whole))
                one = FileRange("g", "r", str(first[0].path), 0, len(whole), begin, end)
                found += [
                    chunk.base + int(row[w.POSITION])
                    for chunk in read_chunks(one, buffer)
                    for row in chunk.rows
                    if row[w.MAGIC] != w.BLANK
                ]
            assert found == [one.offset for one in first]


@pytest.mark.parametrize("seed", range(12))
def test_a_file_that_is_read_in_steps_has_the_records_and_gaps_of_a_mapped_one(
    seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Records are damaged, zeroed or longer than a step, and the file ends in zeros or in a blank record."""
    rng = random.Random(seed)
    data = damaged_segment(rng)
    (tmp_path / "00000000000000000000").write_bytes(data)
    monkeypatch.setattr("epochmq_spark.sources.log_chunks.OVERLAP_BYTES", rng.choice([0, 100, 5000]))
    monkeypatch.setattr("epochmq_spark.sources.log_chunks.STEP_BYTES", rng.choice([300, 2000, 10_000]))
    monkeypatch.setattr("epochmq_spark.sources.log_chunks.STEP_RECORDS", rng.choice([1, 5, 1000]))
    replica = AuditedReplica("g", "r", str(tmp_path))
    file = DataFile(str(tmp_path / "00000000000000000000"), 0, len(data))
    cuts = sorted({0, len(data), rng.randrange(len(data)), rng.randrange(len(data))})
    for begin, end in itertools.pairwise(cuts):
        one = FileRange.of(replica, file, begin, end)
        in_steps, mapped = read(one, ReadBuffer()), read(one, None)
        assert in_steps == mapped


def damaged_segment(rng: random.Random) -> bytes:
    """Records of which some are damaged."""
    data = bytearray()
    for number in range(60):
        record = bytearray(
            message.encode_record(
                message.MessageExt(
                    "orders",
                    rng.randbytes(rng.choice([0, 100, 100, 100, 1500, 12_000])),
                    message.format_properties({"UNIQ_KEY": f"K{number}"}),
                    queue_offset=number,
                    physical_offset=len(data),
                    store_timestamp=1_700_000_000_000 + number,
                )
            )
        )
        fault = rng.randrange(12)
        if fault < 4:
            record[(5, 30, 3, len(record) // 2)[fault]] ^= 1
        elif fault == 4:
            record[:] = bytes(len(record))
        data += record
    if rng.random() < 0.5:
        return bytes(data + (700).to_bytes(4, "big") + w.BLANK.to_bytes(4, "big") + bytes(692))
    return bytes(data + bytes(rng.choice([0, 1, 700, 40_000])))


def read(one: FileRange, buffer: ReadBuffer | None) -> tuple[list[tuple[int, int, int]], list[LogSpan]]:
    """Offset, size and digest of each record of a range, and the runs of records."""
    records, spans = [], []
    for chunk in read_chunks(one, buffer):
        records += [
            (chunk.base + int(row[w.POSITION]), int(row[w.SIZE]), int(row[w.DIGEST])) for row in chunk.rows
        ]
        spans += spans_of(chunk.spans, chunk.base)
    return records, join_spans(spans)
