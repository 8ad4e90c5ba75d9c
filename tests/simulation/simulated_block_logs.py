"""The commit log of simulated brokers: `BlockLog` on a simulated disk. Files expire.

A body has the place of a record's checksum and of its physical offset: CRC-32 of the text (4 bytes), position
of the body in the log (8 bytes), text. The first entry of a term has an empty text, a membership entry the
voters.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

from epochmq_dledger.core.raft_log import LogFullError
from epochmq_dledger.store.block_log import BlockLog
from epochmq_dledger.store.entry_block import EntryBlock
from epochmq_dledger.store.file_log import FileLog
from epochmq_protocol.dledger import DLedgerEntry, decode_members_body, encode_members
from epochmq_protocol.errors import RemoteProtocolError
from tests.simulation.simulated_logs import INDEX_FILE_SIZE, StoredLog

POSITION_AT = 4
TEXT_AT = 12
UNCHECKED = (*range(16, 24), *range(32, 36))
"""The bytes of an entry's header that nothing checks: term and channel. DLedger's header has no checksum."""

INDEX = range(8, 16)
"""The index, which nothing checks in the first entry of a log."""


def body_of(text: bytes) -> bytes:
    """The body that a client proposes, without a position."""
    return crc32(text).to_bytes(4, "big") + bytes(8) + text


def text_of(entry: DLedgerEntry) -> bytes:
    """The text of an entry."""
    return entry.body[TEXT_AT:]


def members_of(body: bytes) -> dict[str, str]:
    """The voters that the body of a membership entry names."""
    return decode_members_body(body[TEXT_AT:])


def is_body(data: bytes, at: int, size: int, position: int) -> bool:
    """Whether this is a whole body at its own position, as the broker's `is_record` checks a record."""
    if size < TEXT_AT or int.from_bytes(data[at + POSITION_AT : at + TEXT_AT], "big") != position:
        return False
    return crc32(data[at + TEXT_AT : at + size]).to_bytes(4, "big") == data[at : at + POSITION_AT]


class StoredBlockLog(StoredLog):
    """The production log of a broker."""

    store: BlockLog
    begins_anew = -1
    """The first entry of a log that was reset, until it is durable."""

    def make_store(self) -> FileLog:
        return BlockLog(
            Path("/nowhere"),
            self.file_size,
            INDEX_FILE_SIZE,
            position_at=POSITION_AT,
            check=is_body,
            first_body=lambda _: body_of(b""),
            members_body=lambda _, peers: body_of(encode_members(peers)),
            members_of=members_of,
        )

    def check_readable(self, store: FileLog) -> None:
        """Nothing: the start of a broker reads only the last data files."""

    @property
    def body_log(self) -> StoredBlockLog:
        return self

    # The interface of a log of bodies -----------------------------------------------------------------------

    def first_body(self, term: int) -> bytes:
        return self.store.first_body(term)

    def read_entries(self, first_index: int, bytes_max: int) -> tuple[bytes, int]:
        return self.store.read_entries(first_index, bytes_max)

    @property
    def recovered_members(self) -> list[int]:
        return self.store.recovered_members

    def members_body(self, term: int, peers: dict[str, str]) -> bytes:
        return self.store.members_body(term, peers)

    def members_of(self, body: bytes) -> dict[str, str]:
        return self.store.members_of(body)

    def append_bodies(self, term: int, bodies: Sequence[bytes], channel: int = 0) -> None:
        self.checker.check_room()
        first, before = self.end_index + 1, self.end_term
        try:
            self.store.append_bodies(term, bodies, channel)
        except LogFullError:
            self._check_rejected()
            raise
        self._appended(first, before)

    def check_entry(self, entry: DLedgerEntry) -> None:
        self.store.check_entry(entry)

    def append_received(
        self, data: bytes, *, term_max: int | None = None, members: dict[str, str] | None = None
    ) -> EntryBlock:
        self.checker.check_room()
        first, before = self.end_index + 1, self.end_term
        try:
            block = self.store.append_received(data, term_max=term_max, members=members)
        except LogFullError:
            self._check_rejected()
            raise
        except RemoteProtocolError:
            self.world.count_event("blocks rejected")
            raise
        self.world.count_event("blocks received")
        self._appended(first, before)
        return block

    def _appended(self, first: int, before: int) -> None:
        fresh = [self.store.entry(index) for index in range(first, self.end_index + 1)]
        entries = [entry for entry in fresh if entry is not None]
        if len(entries) < len(fresh):
            self.world.fail(
                f"{self.checker.name} cannot read the entries that it has written from {first} on"
            )
        self.checking(before, entries)

    def checking(self, before: int, entries: list[DLedgerEntry]) -> None:
        super().checking(before, entries)
        for entry in entries:
            # Beside Java peers a leader can be elected twice in one term.
            if text_of(entry) and entry.term != before:
                self.world.fail(
                    f"{self.checker.name} has {entry} after term {before}: not a term's first entry"
                )
            before = entry.term

    def check_recovered(self, entries: list[DLedgerEntry]) -> None:
        if not entries or self.begin_index == 0:
            self.checker.appending(-1, entries)
            return
        first = entries[0]
        known = self.world.written.get((first.index, first.term))
        if known is None or known[0] != first:
            self.world.fail(f"{self.checker.name} begins with {first}, which no leader wrote")
        self.checker.appending(first.term, entries[1:])

    # Resets and expiry --------------------------------------------------------------------------------------

    def reset(self, entry: DLedgerEntry) -> None:
        """A follower begins with the leader's first entry: it is committed, or the first one of all."""
        if entry.index == 0:
            self.checker.resetting(self.store)
        elif self.world.committed[entry.index : entry.index + 1] != [entry]:
            self.world.fail(f"{self.checker.name} resets its log to {entry}, which is not committed")
        self.world.count_event("logs begun anew", int(entry.index > 0))
        self.store.reset(entry)
        self.durable_end = entry.index - 1
        self.begins_anew = entry.index

    def mark_synced(self, index: int, term: int) -> None:
        super().mark_synced(index, term)
        if self.durable_end >= self.begins_anew:
            self.begins_anew = -1

    def crash(self, kept: int | None) -> int:
        """Stops the machine. A log that was to begin anew may be lost whole, which looks like damage."""
        if self.begins_anew >= 0:
            self.durable_end = -1
        end = super().crash(kept)
        self.begins_anew = -1
        return end

    def expire(self, luck: float, committed_index: int) -> None:
        """Drops the files before a random one. The first entry that is left must be committed."""
        bases = self.store._files.data.bases
        if not bases:
            return
        before = self.begin_index
        self.store.expire_files(bases[int(luck * len(bases))], committed_index)
        begin = self.begin_index
        if begin == before:
            return
        self.world.count_event("files expired")
        if self.world.committed[begin : begin + 1] != [self.store.entry(begin)]:
            self.world.fail(f"{self.checker.name} drops entries up to {begin - 1}, which are not committed")

    # Damage -------------------------------------------------------------------------------------------------

    def may_rot(self, entry: DLedgerEntry, at: int) -> bool:
        """A bit may flip where a start reads: in the last three data files."""
        bases = sorted(self.folders[0].names)[-3:]
        is_first = entry.index == min(self.last_entries)
        unchecked = (*UNCHECKED, *INDEX) if is_first else UNCHECKED
        return at not in unchecked and bool(bases) and entry.pos >= int(bases[0])

    def is_proven(self, rotten: int, durable: int) -> bool:
        """Only the checkpoint proves a loss."""
        return rotten <= self.committed

    def may_look_damaged(self) -> bool:
        """The loss of a log that was about to begin anew looks like damage."""
        return self.begins_anew >= 0
