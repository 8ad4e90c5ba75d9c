"""Decides whether the first unreadable byte of a log is a torn write, or damage to entries that were durable.

A power failure can leave the entries that were written but not synced in part, and in any order. So an
unreadable entry with readable ones after it may be harmless. It is damage if a later entry records that the
unreadable one was durable when the later one was written (`entry_encoding`). An entry without such a record,
by DLedger or an earlier release, counts as evidence if there is any byte but zero where the unreadable header
should be: a lost write leaves the zeros of a new file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from epochmq_dledger.store.entry_encoding import durable_index_at_write
from epochmq_dledger.store.segments import Segments
from epochmq_protocol.dledger import ENTRY_HEADER_SIZE, ENTRY_MAGIC, DLedgerEntry

_AT_ONCE = 1 << 20
_MAGIC = ENTRY_MAGIC.to_bytes(4, "big")

ReadEntry = Callable[[int], DLedgerEntry | None]


@dataclass(frozen=True)
class LogDamage:
    """A loss of durable entries. The recovered log ends before byte `pos`, with entry `end_index`."""

    pos: int
    end_index: int
    text: str


def find_lost_entry(data: Segments, read: ReadEntry, pos: int, index: int | None) -> DLedgerEntry | None:
    """Finds an entry after the unreadable one at byte `pos` that proves that the unreadable one was durable.
    None if it may be a torn write. `index` is the index of the unreadable entry, None for the first one of a
    log."""
    is_blank = not data.read(pos, ENTRY_HEADER_SIZE).strip(b"\0")
    for entry in _entries_after(data, read, pos):
        if index is None:
            index = entry.index - 1
        if entry.index < index:
            continue
        durable_index = durable_index_at_write(entry)
        if not is_blank if durable_index is None else durable_index >= index:
            return entry
    return None


def _entries_after(data: Segments, read: ReadEntry, pos: int) -> Iterator[DLedgerEntry]:
    """The readable entries at or after byte `pos`, wherever they begin."""
    for base in data.bases:
        at: int | None = max(pos, base)
        end = base + data.file_size
        while at is not None and at < end:
            at = data.next_data(at)
            if at is None:
                break
            piece = data.read(at, _AT_ONCE)
            found = piece.find(_MAGIC)
            while found >= 0:
                entry = read(at + found)
                if entry is not None:
                    yield entry
                found = piece.find(_MAGIC, found + 1)
            at += max(1, len(piece) - len(_MAGIC) + 1)
