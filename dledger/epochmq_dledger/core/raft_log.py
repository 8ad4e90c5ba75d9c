"""Defines the log interface that the core uses, and a log in memory that implements it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from epochmq_formats.dledger_log import ENTRY_HEADER_SIZE, FILLER_SIZE_MIN
from epochmq_protocol.dledger import DLedgerEntry
from epochmq_protocol.errors import InvariantError


class LogFullError(Exception):
    """An append failed because the disk is full. The log has not changed."""


class RaftLog(Protocol):
    """A sequence of entries. The core writes them at once; the driver makes them durable later and reports it
    with `LogSynced`.

    A truncation, a reset, or an append that fails half-way leaves bytes that must not come back after a
    crash. `is_writable` is False until the driver has erased them durably (`EraseDroppedEntries`,
    `ErasureCompleted`); until then the core must not append, truncate or reset.

    Indexes run from `begin_index` to `end_index`, both -1 while the log is empty. `end_pos` is the byte after
    the last entry.

    Invariants: -1 <= begin_index <= end_index; begin_index is -1 exactly while end_index is; terms do not
    fall along the log (Raft §5.3).
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
        """The entry at `index`, None if the log does not hold it."""

    def term(self, index: int) -> int:
        """The term of the entry at `index`, -1 if the log does not hold it."""

    def position(self, index: int) -> int:
        """The position of the entry at `index`, -1 if the log does not hold it."""

    def append(self, entries: list[DLedgerEntry]) -> None:
        """Writes entries that follow the last one, and fillers where a file ends. LogFullError: the log has
        not changed."""

    def replace_last(self, entry: DLedgerEntry) -> None:
        """Writes the last entry again, which has rotted. It has this index, term, position and size.
        LogFullError: the log may hold any part of either."""

    def truncate(self, end_index: int) -> None:
        """Truncates the log after `end_index`. The entries do not come back, not even after a crash."""

    def reset(self, entry: DLedgerEntry) -> None:
        """Drops all entries, and starts again with this entry at its own index and position."""

    def drop_before(self, index: int) -> None:
        """Drops whole files of entries before `index`. The entry at `index` stays."""


class ReceivedEntries(Protocol):
    """Entries that a leader has sent as bytes."""

    @property
    def members(self) -> tuple[int, ...]:
        """The indexes of the membership entries among them."""


class BodyLog(Protocol):
    """The part of a log that handles entries without an object for each of them (`store.block_log`)."""

    @property
    def recovered_members(self) -> Sequence[int]:
        """The indexes of the membership entries that opening the log has read: those of its last files."""

    def append_bodies(self, term: int, bodies: Sequence[bytes], channel: int = 0) -> object:
        """Appends an entry of this term and channel for each body. LogFullError: the log has not changed."""

    def first_body(self, term: int) -> bytes:
        """The body of the first entry of a term."""

    def members_body(self, term: int, peers: dict[str, str]) -> bytes:
        """The body of an entry that names the voters, address by id."""

    def members_of(self, body: bytes) -> dict[str, str]:
        """The voters that the body of a membership entry names. RemoteProtocolError: malformed."""

    def read_entries(self, first_index: int, bytes_max: int) -> tuple[bytes, int]:
        """The bytes of entries from `first_index` on that lie in one data file, at least one, and their
        number. (b"", 0) if the log does not hold the entry."""

    def check_entry(self, entry: DLedgerEntry) -> None:
        """RemoteProtocolError: the body of an entry that a leader has sent is damaged."""

    def append_received(
        self, data: bytes, *, term_max: int | None = None, members: dict[str, str] | None = None
    ) -> ReceivedEntries:
        """Appends the entries that a leader of this term has sent as bytes. `members` are the voters before
        them. RemoteProtocolError or LogFullError: the log has not changed."""


def next_pos(end_pos: int, size: int, file_size: int) -> int:
    """The position of an entry of `size` bytes after a log that ends at `end_pos` (`MmapFileList.preAppend`).
    An entry and a filler's eight bytes must fit into the rest of the file; otherwise a filler closes the
    file."""
    rest = file_size - end_pos % file_size
    return end_pos if size + FILLER_SIZE_MIN <= rest else end_pos + rest


def make_entry(
    index: int, term: int, body: bytes, end_pos: int, file_size: int, channel: int = 0
) -> DLedgerEntry:
    """Makes the entry that a leader appends after a log that ends at `end_pos`."""
    size = ENTRY_HEADER_SIZE + len(body)
    return DLedgerEntry(index, term, next_pos(end_pos, size, file_size), body, size, channel=channel)


def check_terms(log: RaftLog, first_index: int) -> None:
    """Raises InvariantError if terms fall between the entry before `first_index` and the end of the log."""
    begin = max(first_index, log.begin_index + 1)
    before = log.term(begin - 1)
    for index in range(begin, log.end_index + 1):
        term = log.term(index)
        if term < before:
            raise InvariantError(
                "RaftLog", "terms do not fall along the log", index=index, term=term, term_before=before
            )
        before = term


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

    def position(self, index: int) -> int:
        entry = self.entry(index)
        return entry.pos if entry is not None else -1

    def append(self, entries: list[DLedgerEntry]) -> None:
        self.entries.extend(entries)

    def replace_last(self, entry: DLedgerEntry) -> None:
        self.entries[-1] = entry

    def truncate(self, end_index: int) -> None:
        if self.entries:
            del self.entries[max(0, end_index + 1 - self.begin_index) :]

    def reset(self, entry: DLedgerEntry) -> None:
        self.entries[:] = [entry]

    def drop_before(self, index: int) -> None:
        del self.entries[: max(0, index - self.begin_index)]
