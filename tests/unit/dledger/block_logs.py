"""Logs of a Raft peer that hold blocks of entries."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

from epochmq_dledger.core.raft_log import MemoryLog, make_entry
from epochmq_dledger.store.block_log import BlockLog
from epochmq_formats.dledger_log import (
    ENTRY_HEADER_SIZE,
)
from epochmq_protocol.dledger import DLedgerEntry
from tests.unit.dledger.file_logs import FILE_SIZE, INDEX_FILE_SIZE

POSITION_AT = 4


def body(rng: random.Random) -> bytes:
    """A checksum of what follows the position, the place of the position, and random bytes."""
    rest = rng.randbytes(rng.randint(0, 250))
    return zlib.crc32(rest).to_bytes(4, "big") + bytes(8) + rest


def is_whole(data: bytes, at: int, size: int, position: int) -> bool:
    crc, own = struct.unpack_from(">Iq", data, at)
    return own == position and zlib.crc32(data[at + 12 : at + size]) == crc


def new_log(folder: Path) -> BlockLog:
    return BlockLog(folder, FILE_SIZE, INDEX_FILE_SIZE, position_at=POSITION_AT, check=is_whole)


def opened(folder: Path, committed_index: int | None = None) -> BlockLog:
    log = new_log(folder)
    log.open(committed_index)
    return log


def grow(
    rng: random.Random, model: MemoryLog, count: int, term: int
) -> tuple[list[bytes], list[DLedgerEntry]]:
    """New bodies, and the entries that a log has after it has appended them."""
    bodies, entries = [], []
    end_index, end_pos = model.end_index, model.end_pos
    for _ in range(count):
        made = body(rng)
        bodies.append(made)
        end_index += 1
        entry = make_entry(end_index, term, made, end_pos, FILE_SIZE)
        patched = made[:4] + (entry.pos + ENTRY_HEADER_SIZE).to_bytes(8, "big") + made[12:]
        entries.append(make_entry(end_index, term, patched, end_pos, FILE_SIZE))
        end_pos = entry.pos + entry.size
    return bodies, entries


def filled(folder: Path, count: int, seed: int = 1) -> tuple[BlockLog, MemoryLog]:
    log, model = opened(folder), MemoryLog()
    bodies, entries = grow(random.Random(seed), model, count, 1)
    log.append_bodies(1, bodies)
    model.append(entries)
    return log, model
