"""Looks behind the first unreadable byte of a log: is it where the writing stopped, or was something there
that is lost?

After a power failure the entries that were written and not synced are there in part, in any order. So an
unreadable entry with whole ones behind it may be harmless. It is not if one of those says that the unreadable
one was durable when it was written (`entry_marks`). An entry without such a mark, DLedger's or an earlier
release's, counts as evidence if there is anything at all where the unreadable header should be: a write that
was lost leaves the zeros of a new file.
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
    """What a log has lost that had been durable. The log as recovered ends before byte `pos`, with entry
    `end_index`."""

    pos: int
    end_index: int
    text: str


def find_lost_entry(data: Segments, read: ReadEntry, pos: int, index: int | None) -> DLedgerEntry | None:
    """A whole entry behind the unreadable one at byte `pos` that shows that this one was durable; None: it
    may be a write that never ended. `index` is what should stand at `pos`; None: it is the first one of the
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
    """Whole, well-placed entries at or behind byte `pos`, wherever they begin."""
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
