"""Logs of a Raft peer in files."""

from __future__ import annotations

import random
from pathlib import Path

from epochmq_dledger.core.raft_log import MemoryLog, make_entry
from epochmq_dledger.store.file_log import FileLog
from epochmq_protocol.dledger import DLedgerEntry

FILE_SIZE = 1024
INDEX_FILE_SIZE = 32 * 16


def opened(folder: Path) -> FileLog:
    log = FileLog(folder, FILE_SIZE, INDEX_FILE_SIZE)
    log.open()
    return log


def cut(log: FileLog, end_index: int) -> None:
    """Truncates the log, and waits for the erasure."""
    log.truncate(end_index)
    log.erase_now()


def same(log: FileLog, model: MemoryLog) -> None:
    assert (log.begin_index, log.end_index, log.end_term) == (
        model.begin_index,
        model.end_index,
        model.end_term,
    )
    for entry in model.entries:
        assert log.entry(entry.index) == entry
        assert log.term(entry.index) == entry.term
    assert log.entry(log.end_index + 1) is None
    if model.entries:
        assert log.end_pos == model.end_pos


def grow(rng: random.Random, model: MemoryLog, count: int, term: int) -> list[DLedgerEntry]:
    entries = []
    end_index, end_pos = model.end_index, model.end_pos
    for _ in range(count):
        end_index += 1
        entry = make_entry(end_index, term, rng.randbytes(rng.randint(0, 300)), end_pos, FILE_SIZE)
        end_pos = entry.pos + entry.size
        entries.append(entry)
    return entries


def flip(folder: Path, at: int) -> None:
    """Flips a bit of byte `at` of a log."""
    flip_bits(folder, at, 4)


def flip_bits(folder: Path, at: int, mask: int) -> None:
    """Flips these bits of byte `at` of a log."""
    with (folder / "data" / f"{at - at % FILE_SIZE:020d}").open("r+b") as file:
        file.seek(at % FILE_SIZE)
        byte = file.read(1)[0]
        file.seek(at % FILE_SIZE)
        file.write(bytes([byte ^ mask]))
