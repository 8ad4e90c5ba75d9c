"""Tests that a range of a log is read with little beyond its end, and that all records of it are found."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark.decode import walk as w
from epochmq_spark.sources.file_ranges import FileRange
from epochmq_spark.sources.log_chunks import OVERLAP_BYTES, ReadBuffer, read_chunks
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
