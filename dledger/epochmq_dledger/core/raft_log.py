"""What the core asks of a log, and a log in memory that answers it."""

from __future__ import annotations

from typing import Protocol

from epochmq_protocol.dledger import ENTRY_HEADER_SIZE, FILLER_SIZE_MIN, DLedgerEntry


class LogFullError(Exception):
    """The log takes no entry now: the disk is full. The log is as before."""


class RaftLog(Protocol):
    """A sequence of entries, written at once and made durable later: the driver reports that with
    `LogSynced`.

    `is_writable` is False from a cut, a reset, or an append that failed half-way on until the driver has
    erased, durably, what must not come back (`EraseDroppedEntries`, `ErasureCompleted`). Until then nothing
    may be appended, cut or reset.

    Indexes run from `begin_index` to `end_index`, both -1 while the log is empty. `end_pos` is the byte after
    the last entry.
    """

    is_writable: bool

    @property
    def begin_index(self) -> int: ...
    @property
    def end_index(self) -> int: ...
    @property
    def end_term(self) -> int: ...
    @property
    def end_pos(self) -> int: ...

    def entry(self, index: int) -> DLedgerEntry | None:
        """The entry at `index`, None where there is none."""

    def term(self, index: int) -> int:
        """The term of the entry at `index`, -1 where there is none."""

    def append(self, entries: list[DLedgerEntry]) -> None:
        """Writes entries that follow the last one, fillers before them where a file ends. LogFullError: the
        log is as before."""

    def truncate(self, end_index: int) -> None:
        """Cuts everything after `end_index`; never to come back, also not after a crash."""

    def reset(self, entry: DLedgerEntry) -> None:
        """Drops everything and begins anew with this entry at its own index and position."""

    def drop_before(self, index: int) -> None:
        """Lets go of entries before `index`, which stays; of as many as the files allow."""


def next_pos(end_pos: int, size: int, file_size: int) -> int:
    """Where an entry of `size` bytes goes when the log ends at `end_pos` (`MmapFileList.preAppend`): an entry
    and a filler's eight bytes must fit into the file's rest, else the file is closed with a filler."""
    rest = file_size - end_pos % file_size
    return end_pos if size + FILLER_SIZE_MIN <= rest else end_pos + rest


def make_entry(
    index: int, term: int, body: bytes, end_pos: int, file_size: int, channel: int = 0
) -> DLedgerEntry:
    """The entry a leader appends after a log that ends at `end_pos`."""
    size = ENTRY_HEADER_SIZE + len(body)
    return DLedgerEntry(index, term, next_pos(end_pos, size, file_size), body, size, channel=channel)


class MemoryLog:
    """A log in memory, for simulations and tests."""

    is_writable = True

    def __init__(self) -> None:
        self.entries: list[DLedgerEntry] = []

    @property
    def begin_index(self) -> int:
        return self.entries[0].index if self.entries else -1

    @property
    def end_index(self) -> int:
        return self.entries[-1].index if self.entries else -1

    @property
    def end_term(self) -> int:
        return self.entries[-1].term if self.entries else -1

    @property
    def end_pos(self) -> int:
        return self.entries[-1].pos + self.entries[-1].size if self.entries else 0

    def entry(self, index: int) -> DLedgerEntry | None:
        at = index - self.begin_index
        return self.entries[at] if self.entries and 0 <= at < len(self.entries) else None

    def term(self, index: int) -> int:
        entry = self.entry(index)
        return entry.term if entry is not None else -1

    def append(self, entries: list[DLedgerEntry]) -> None:
        self.entries.extend(entries)

    def truncate(self, end_index: int) -> None:
        if self.entries:
            del self.entries[max(0, end_index + 1 - self.begin_index) :]

    def reset(self, entry: DLedgerEntry) -> None:
        self.entries[:] = [entry]

    def drop_before(self, index: int) -> None:
        del self.entries[: max(0, index - self.begin_index)]
