"""Decides whether the first unreadable byte of a log is a torn write, or damage to entries that were durable.

After a power failure, any subset of the entries that were written and not yet synced may be on the disk. So
an unreadable entry with readable ones after it may be harmless. It is damage if a later entry proves that the
unreadable one was durable. An entry of this release records up to which index the log was durable when the
entry was written (`entry_encoding`). An entry of DLedger or of an earlier release has no such record. It is a
proof if there is any byte but zero where the unreadable header should be: a lost write leaves the zeros of a
new file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from epochmq_dledger.store.entry_encoding import durable_index_at_write
from epochmq_dledger.store.segments import Segments
from epochmq_formats.dledger_log import ENTRY_HEADER_SIZE
from epochmq_protocol.dledger import ENTRY_MAGIC, DLedgerEntry

_READ_BYTES = 1 << 20
_MAGIC = ENTRY_MAGIC.to_bytes(4, "big")

ReadEntry = Callable[[int], DLedgerEntry | None]


@dataclass(frozen=True)
class LogDamage:
    """A loss of durable entries, as `file_log` finds it at a start. The recovered log ends before byte `pos`,
    with entry `end_index`."""

    pos: int
    end_index: int
    text: str


def find_proof_of_loss(data: Segments, read: ReadEntry, pos: int, index: int | None) -> DLedgerEntry | None:
    """Finds a later entry that proves that the unreadable entry at byte `pos` was durable. Returns None if
    the unreadable entry may be a torn write. `index` is the index of the unreadable entry, None for the first
    one of a log."""
    was_written = any(data.read(pos, ENTRY_HEADER_SIZE))
    for entry in _entries_after(data, read, pos):
        if index is None:
            index = entry.index - 1
        if entry.index < index:
            continue
        durable_index = durable_index_at_write(entry)
        if was_written if durable_index is None else durable_index >= index:
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
            piece = data.read(at, _READ_BYTES)
            found = piece.find(_MAGIC)
            while found >= 0:
                entry = read(at + found)
                if entry is not None:
                    yield entry
                found = piece.find(_MAGIC, found + 1)
            at += max(1, len(piece) - len(_MAGIC) + 1)
