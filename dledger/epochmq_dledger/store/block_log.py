"""Appends, receives and reads the entries of a `FileLog` by the block, for many small ones.

A commit log has such entries. A block exists in memory only: new entries are appended as bodies and become
blocks of bytes; a follower receives blocks, checks and appends them. Recovery reads the data files in large
pieces. The files are DLedger's in every byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from epochmq_dledger.core.membership import check_succession
from epochmq_dledger.core.raft_log import next_pos
from epochmq_dledger.store.entry_block import (
    ENTRY_BYTES_MAX,
    EntryBlock,
    blocks_of,
    body_sizes,
    encode_blocks,
    leading_entries,
)
from epochmq_dledger.store.entry_encoding import BodyCheck
from epochmq_dledger.store.file_log import INDEX_FILE_SIZE, FileLog
from epochmq_formats.dledger_log import (
    ENTRY_HEADER_SIZE,
    ENTRY_INDEX_AT,
    ENTRY_SIZE_AT,
    FILLER_SIZE_MIN,
    INDEX_UNIT_SIZE,
    decode_entry,
    decode_index_unit,
    encode_entry,
)
from epochmq_protocol.dledger import DLedgerEntry, decode_members_body, encode_members
from epochmq_protocol.errors import RemoteProtocolError

_PIECE_BYTES = 2 * ENTRY_BYTES_MAX


class BlockLog(FileLog):
    """The log of one peer. No entry is larger than `ENTRY_BYTES_MAX`."""

    def __init__(
        self,
        folder: Path,
        file_size: int,
        index_file_size: int = INDEX_FILE_SIZE,
        data_folder: Path | None = None,
        *,
        position_at: int | None = None,
        check: BodyCheck | None = None,
        first_body: Callable[[int], bytes] = lambda _: b"",
        members_body: Callable[[int, dict[str, str]], bytes] = lambda _, peers: encode_members(peers),
        members_of: Callable[[bytes], dict[str, str]] = decode_members_body,
    ) -> None:
        """`position_at`: where each body contains its own position (`encode_blocks`). `check`: recovery,
        `append` and `append_received` take no entry whose body it rejects. `first_body`: makes the body of
        the first entry of a term; `members_body`: of one that names the voters, for a term. `members_of`
        reads such a body; RemoteProtocolError: malformed."""
        super().__init__(folder, file_size, index_file_size, data_folder)
        self._position_at = position_at
        self._check = self._files.check = check
        self.first_body = first_body
        self.members_body = members_body
        self.members_of = members_of
        self.recovered_members: list[int] = []

    @property
    def body_sizes(self) -> range:
        """The sizes in bytes that the body of an entry may have."""
        return body_sizes(self._file_size, self._position_at)

    def append(self, entries: list[DLedgerEntry]) -> None:
        """Appends entries that a leader of DLedger has sent one by one. RemoteProtocolError: a body is
        damaged, and the log has not changed. Other errors as `FileLog.append`."""
        for entry in entries:
            self.check_entry(entry)
        self.append_blocks(blocks_of(entries, self._file_size, self._encoded))

    def check_entry(self, entry: DLedgerEntry) -> None:
        """RemoteProtocolError: the body of an entry that a leader has sent is damaged."""
        body, position = entry.body, entry.pos + ENTRY_HEADER_SIZE
        if self._check is not None and not self._check(body, 0, len(body), position):
            raise RemoteProtocolError(
                f"the body of entry {entry.index}, {len(body)} bytes for position {position}, is damaged"
            )

    def _encoded(self, entry: DLedgerEntry) -> bytes:
        return encode_entry(entry)

    def append_bodies(self, term: int, bodies: Sequence[bytes], channel: int = 0) -> list[EntryBlock]:
        """Appends an entry of this term for each body, as a leader does, and returns the blocks that were
        written. ValueError: a body has an invalid size, and the log has not changed. Other errors as
        `append`."""
        blocks = encode_blocks(
            bodies,
            first_index=self.end_index + 1,
            term=term,
            end_pos=self.end_pos,
            file_size=self._file_size,
            position_at=self._position_at,
            channel=channel,
        )
        self.append_blocks(blocks)
        return blocks

    def append_received(
        self, data: bytes, *, term_max: int | None = None, members: dict[str, str] | None = None
    ) -> EntryBlock:
        """Appends the entries of a block that a leader has sent, whose term is `term_max`. `members` are the
        voters before them. RemoteProtocolError: they do not follow the last entry, have a greater term, or
        are damaged, and the log has not changed. Other errors as `append`."""
        # The size in the first header says where the block belongs.
        pos = next_pos(
            self.end_pos, int.from_bytes(data[ENTRY_SIZE_AT:ENTRY_INDEX_AT], "big"), self._file_size
        )
        index, term = self.end_index + 1, self.end_term
        block = leading_entries(data, pos, self._file_size, index=index, term=term, check=self._check)
        rest = self._file_size - pos % self._file_size - len(data)
        if not block.entry_count or len(block.data) != len(data) or rest < FILLER_SIZE_MIN:
            raise RemoteProtocolError(
                f"a block of {len(data)} bytes at {pos}: the bytes from {len(block.data)} on are not entry "
                f"{index + block.entry_count}, or leave no room for a filler"
            )
        if term_max is not None and block.term > term_max:
            raise RemoteProtocolError(f"a block has an entry of term {block.term}, expected up to {term_max}")
        self._check_members(block, members)
        self.append_blocks([block])
        return block

    def _check_members(self, block: EntryBlock, before: dict[str, str] | None) -> None:
        """RemoteProtocolError: a membership entry of a block is malformed, or cannot follow the last one."""
        for index in block.members:
            at = decode_index_unit(block.units, (index - block.first_index) * INDEX_UNIT_SIZE)[1]
            after = self.members_of(decode_entry(memoryview(block.data), at - block.pos).body)
            check_succession(index, before, after)
            before = after

    def read_block(self, first_index: int, bytes_max: int) -> bytes:
        """The bytes of whole entries from `first_index` on that lie in one data file: as many as fit into
        `bytes_max`, at least one. Empty if the log does not hold the entry."""
        return self.read_entries(first_index, bytes_max)[0]

    def read_entries(self, first_index: int, bytes_max: int) -> tuple[bytes, int]:
        """What `read_block` returns, and the number of entries."""
        if not max(self.begin_index, 0) <= first_index <= self.end_index:
            return b"", 0
        first = self._files.read_index_unit(first_index)
        if first is None:
            return b"", 0
        start = first[1]
        file_end = start - start % self._file_size + self._file_size
        # Bisects for the last entry that fits; positions grow with the index.
        low, high = first_index, min(self.end_index, first_index + bytes_max // ENTRY_HEADER_SIZE)
        end = start + first[2]
        while low < high:
            middle = (low + high + 1) // 2
            unit = self._files.read_index_unit(middle)
            if unit is not None and unit[1] + unit[2] <= min(file_end, start + bytes_max):
                low, end = middle, unit[1] + unit[2]
            else:
                high = middle - 1
        return self._files.data.read(start, end - start), low - first_index + 1

    def expire_files(self, until_pos: int, committed_index: int) -> int:
        """Drops the data files that end at or before `until_pos`, as `drop_before` does. The log then begins
        with the first entry of a later file, which is committed, so that all dropped entries are, and
        durable, so that the log still has an entry after a power failure. Returns the new begin index."""
        last_index = min(committed_index, self.durable_index)
        for base in reversed(self._files.data.bases):
            first = self._files.first_entry(base) if base <= until_pos else None
            if first is not None and first.index <= last_index:
                self.drop_before(first.index)
                break
        return self.begin_index

    def _find_proof_of_loss(self, committed_index: int | None) -> DLedgerEntry | None:
        """None with a checkpoint: an entry beyond its committed index may be torn, although later ones, which
        were not durable either, are whole. The entries do not tell, because the header fields in which
        `FileLog` keeps what was durable stay 0."""
        return super()._find_proof_of_loss(committed_index) if committed_index is None else None

    def _scan(self, pos: int, end_pos: int | None) -> None:
        """Finds the end of the log in large pieces, and rebuilds the index where it differs."""
        files = self._files
        index, term = None, -1
        while end_pos is None or pos < end_pos:
            size = _PIECE_BYTES if end_pos is None else min(_PIECE_BYTES, end_pos - pos)
            piece = files.data.read(pos, size)
            block = leading_entries(piece, pos, self._file_size, index=index, term=term, check=self._check)
            if block.entry_count:
                self._check_units(block.first_index, block.units)
                self.recovered_members += block.members
                index, term, pos = block.first_index + block.entry_count, block.term, block.end_pos
                self._end, self._end_term, self._end_pos = index - 1, term, pos
                continue
            next_base = files.base_after_filler(pos)
            if next_base is None:
                return
            pos = next_base
