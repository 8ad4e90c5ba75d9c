"""Tests the reading of index files in parts, and the following of their chains from part to part."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

import numpy as np

from epochmq_formats.index_file import HEADER_BYTES
from epochmq_spark import drill_down
from epochmq_spark.files_at_cut import VolumeCut
from epochmq_spark.frozen_volume import FrozenVolume
from epochmq_spark.sources import index
from epochmq_spark.sources.index import IndexFileScan

SLOTS, ENTRIES = 50, 190
Entry = tuple[int, int, int, int]


def written(path: Path, rng: random.Random, count: int = ENTRIES) -> tuple[list[Entry], list[int]]:
    """Writes a valid index as RocketMQ's `IndexFile.putKey` does; its entries and its slots."""
    heads, entries = [0] * SLOTS, [(0, 0, 0, 0)]
    for number in range(1, count):
        hashed = rng.randrange(1 << 31)
        slot = hashed % SLOTS
        entries.append((hashed, number * 100, 0, heads[slot]))
        heads[slot] = number
    write(path, entries, heads)
    return entries, heads


def write(path: Path, entries: list[Entry], heads: list[int]) -> None:
    data = struct.pack(">qqqqii", 1, 2, 100, len(entries) * 100, SLOTS, len(entries))
    data += struct.pack(f">{SLOTS}i", *heads) + b"".join(struct.pack(">iqii", *one) for one in entries)
    path.write_bytes(data.ljust(HEADER_BYTES + SLOTS * 84, b"\0"))


def found_broken(path: Path) -> set[int]:
    """Numbers of the entries that a search does not reach."""
    file = IndexFileScan(str(path), path.stat().st_size)
    broken: set[int] = set()
    for part in file.parts():
        broken |= set(part.numbers[part.broken].tolist())
    return broken | {number for number, physical in file.orphaned_heads(100) if physical == number * 100}


@pytest.mark.parametrize("part", [1, 7, 64, 1000])
@pytest.mark.parametrize("seed", range(5))
def test_a_wrong_link_is_found_wherever_parts_begin(
    seed: int, part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "PART_ENTRIES", part)
    rng, path = random.Random(seed), tmp_path / "index"
    entries, heads = written(path, rng)
    assert found_broken(path) == set()
    number = rng.randrange(1, ENTRIES)
    hashed, physical, seconds, previous = entries[number]
    write(path, [*entries[:number], (hashed, physical, seconds, previous + 1), *entries[number + 1 :]], heads)
    assert found_broken(path) == {number}
    slot = rng.choice([slot for slot, head in enumerate(heads) if head])
    write(path, entries, [*heads[:slot], 0, *heads[slot + 1 :]])
    assert found_broken(path) == {heads[slot]}


@pytest.mark.parametrize("part", [1, 7, 1000])
def test_entries_that_point_into_a_range_are_found_wherever_parts_begin(
    part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "PART_ENTRIES", part)
    drill_down.clear_caches()
    path = tmp_path / "index"
    entries, _ = written(path, random.Random(1))
    there = sorted(drill_down.read_index_entries(str(path), path.stat().st_size, 4_950, 12_000))
    assert there == sorted((hashed, physical) for hashed, physical, *_ in entries[50:120])


@pytest.mark.parametrize("end", [5_001, 1 << 40], ids=["beyond the cut", "below the cut"])
def test_an_index_that_grows_while_it_is_read_stays_as_at_the_cut(end: int, tmp_path: Path) -> None:
    store = tmp_path / "store"
    for folder in ("commitlog", "index"):
        (store / folder).mkdir(parents=True)
    path = store / "index" / "20261122000000000"
    written(path, random.Random(3), 100)
    volume = FrozenVolume(store, VolumeCut(end))
    shown = volume.content(f"index/{path.name}")
    written(path, random.Random(3), ENTRIES)
    assert volume.content(f"index/{path.name}") is shown
    data = shown.head + path.read_bytes()[len(shown.head) : shown.length]
    copy = tmp_path / "copy"
    copy.write_bytes(data.ljust(shown.size, b"\0"))
    assert IndexFileScan(str(copy), shown.size).count == min(100, 1 + end // 100)
    assert found_broken(copy) == set()


def test_the_header_of_a_reconstructed_index_does_not_cover_entries_of_truncated_records(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    for folder in ("commitlog", "index"):
        (store / folder).mkdir(parents=True)
    path = store / "index" / "20261122000000000"
    written(path, random.Random(4), 100)
    data = bytearray(path.read_bytes())
    struct.pack_into(">q", data, 24, 5_000)  # the last entries are beyond the last offset in the header
    path.write_bytes(data)
    shown = FrozenVolume(store, VolumeCut(1 << 40)).content(f"index/{path.name}")
    assert struct.unpack_from(">q", shown.head, 24) == (5_000,)


def test_an_entry_count_beyond_the_size_of_the_file_is_limited_to_the_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "index"
    entries, heads = written(path, random.Random(2))
    write(path, entries, heads)
    data = bytearray(path.read_bytes())
    struct.pack_into(">i", data, 36, 1 << 30)
    path.write_bytes(data)
    file = IndexFileScan(str(path), len(data))
    assert file.count == SLOTS * 4
    assert np.concatenate([one.numbers for one in file.parts()]).tolist() == list(range(1, SLOTS * 4))
