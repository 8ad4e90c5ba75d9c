"""Tests that a start after a kill keeps the index files, and repairs one that was being written."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from epochmq_store.index import index_file
from epochmq_store.index.index_file import IndexEntry, IndexFile

SLOTS, CAPACITY = 7, 400  # few slots: long chains
ALWAYS = (0, 1 << 62)


def found(file: IndexFile, hashed: int) -> list[int]:
    numbers: list[int] = []
    file.find(hashed, *ALWAYS, numbers, 1000)
    return sorted(numbers)


def entries(rng: random.Random, first: int, count: int) -> list[IndexEntry]:
    return [(rng.randint(0, 40), (first + at) * 100, 1_000_000 + (first + at) * 10) for at in range(count)]


@pytest.mark.parametrize("seed", range(30))
def test_a_kill_inside_a_put_keeps_all_older_entries(tmp_path: Path, seed: int) -> None:
    """The killed put may have written any of its slots. After the repair, each key finds exactly the entries
    that the header counts. When the lost entries are added again, they are found, too."""
    rng = random.Random(seed)
    path = tmp_path / "20261121000000000"
    file = IndexFile(path, SLOTS, CAPACITY)
    known: list[IndexEntry] = []
    for _ in range(rng.randint(1, 4)):
        batch = entries(rng, len(known) + 1, rng.randint(1, 40))
        file.put(batch, 0)
        known += batch
    lost = entries(rng, len(known) + 1, rng.randint(1, 40))
    killed_put(file, lost, rng)
    copy = tmp_path / "after" / path.name
    copy.parent.mkdir()
    shutil.copy(path, copy)
    file.close()

    again = IndexFile(copy, SLOTS, CAPACITY)
    again.undo_unfinished_put()
    for hashed in range(41):
        assert found(again, hashed) == sorted(p for h, p, _ in known if h == hashed)
    again.put(lost, 0)
    for hashed in range(41):
        assert found(again, hashed) == sorted(p for h, p, _ in [*known, *lost] if h == hashed)
    again.close()


def killed_put(file: IndexFile, batch: list[IndexEntry], rng: random.Random) -> None:
    """Simulates a killed put: its entries and some of its slots are in the file, its header is not."""
    before = {name: getattr(file, name) for name in IndexFile.__slots__ if not name.startswith("_")}
    view = file._file.map
    heads_end = index_file.HEADER_BYTES + SLOTS * index_file.SLOT_BYTES
    slots_before = view[index_file.HEADER_BYTES : heads_end]
    header_before = view[: index_file.HEADER_BYTES]
    file.put(batch, 0)
    for slot in range(SLOTS):
        at = slot * index_file.SLOT_BYTES
        if rng.random() < 0.5:
            place = index_file.HEADER_BYTES + at
            view[place : place + index_file.SLOT_BYTES] = slots_before[at : at + index_file.SLOT_BYTES]
    view[: index_file.HEADER_BYTES] = header_before
    for name, value in before.items():
        if name not in ("path", "full"):
            setattr(file, name, value)
