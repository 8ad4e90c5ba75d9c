# pure: bytes of entries
"""Encodes and checks blocks: the bytes of consecutive entries in one data file, with their index units.

A commit log has an entry for each message, so it handles entries as blocks: there is no object for each
entry. The two checksum fields of the header stay 0, as in DLedger, so that the data files of all replicas
are equal. The owner of the log checks the bodies (`BodyCheck`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from epochmq_dledger.core.raft_log import next_pos
from epochmq_dledger.store.entry_encoding import BodyCheck, crc_of, is_valid_header
from epochmq_formats.dledger_log import (
    ENTRY_HEADER,
    ENTRY_HEADER_SIZE,
    FILLER_SIZE_MIN,
    INDEX_UNIT,
    encode_entry,
    encode_index_unit,
)
from epochmq_protocol.dledger import ENTRY_MAGIC, MEMBERS_CHANNEL, DLedgerEntry
from epochmq_protocol.record_layout import LONG

ENTRY_BYTES_MAX = 4 << 20
"""The largest entry, header included, that a peer of DLedger can encode
(`DLedgerMmapFileStore.localEntryBuffer`)."""


class EntryBlock(NamedTuple):
    """Consecutive entries. `term` is that of the last one, `pos` the position of the first one. `members` are
    the indexes of the membership entries, if the block was received or recovered."""

    first_index: int
    entry_count: int
    term: int
    pos: int
    data: bytes | bytearray
    units: bytes
    members: tuple[int, ...] = ()

    @property
    def end_pos(self) -> int:
        """The position after the last entry."""
        return self.pos + len(self.data)


def blocks_of(
    entries: Sequence[DLedgerEntry],
    file_size: int,
    encode: Callable[[DLedgerEntry], bytes | bytearray] = encode_entry,
) -> list[EntryBlock]:
    """The blocks of entries that follow each other: each block lies in one data file."""
    starts = [0]
    starts += [at for at, entry in enumerate(entries) if at and entry.pos % file_size == 0]
    blocks: list[EntryBlock] = []
    for at, end in zip(starts, [*starts[1:], len(entries)], strict=True):
        run = entries[at:end]
        if run:
            data = b"".join([encode(entry) for entry in run])
            units = b"".join([encode_index_unit(entry) for entry in run])
            blocks.append(EntryBlock(run[0].index, len(run), run[-1].term, run[0].pos, data, units))
    return blocks


def body_sizes(file_size: int, position_at: int | None) -> range:
    """The sizes in bytes that a body may have: it fits into an entry and a file, and has a place for its
    position."""
    size_max = min(ENTRY_BYTES_MAX, file_size - FILLER_SIZE_MIN) - ENTRY_HEADER_SIZE
    return range(0 if position_at is None else position_at + LONG.size, size_max + 1)


def encode_blocks(
    bodies: Sequence[bytes],
    *,
    first_index: int,
    term: int,
    end_pos: int,
    file_size: int,
    position_at: int | None = None,
    channel: int = 0,
) -> list[EntryBlock]:
    """The blocks of new entries, one for each data file, after a log that ends at `end_pos`
    (`DLedgerMmapFileStore.appendAsLeader`). With `position_at` the position of each body in the log is
    written into the body there, as 8 bytes (`AppendHook`). ValueError: a body does not fit into an entry or
    a file, or has no place for its position."""
    sizes = body_sizes(file_size, position_at)
    blocks: list[EntryBlock] = []
    parts: list[bytes] = []
    units: list[bytes] = []
    index = start_index = first_index
    pos = start = next_pos(end_pos, ENTRY_HEADER_SIZE + len(bodies[0]), file_size) if bodies else end_pos
    for body in bodies:
        length = len(body)
        if length not in sizes:
            raise ValueError(f"a body of {length} bytes, expected {sizes.start} to {sizes.stop - 1}")
        size = ENTRY_HEADER_SIZE + length
        at = next_pos(pos, size, file_size)
        if at != pos:
            blocks.append(_block(start_index, term, start, parts, units, position_at))
            parts, units, start_index, start = [], [], index, at
        parts += (ENTRY_HEADER.pack(ENTRY_MAGIC, size, index, term, at, channel, 0, 0, length), body)
        units.append(INDEX_UNIT.pack(ENTRY_MAGIC, at, size, index, term))
        pos = at + size
        index += 1
    if parts:
        blocks.append(_block(start_index, term, start, parts, units, position_at))
    return blocks


def _block(
    first_index: int,
    term: int,
    pos: int,
    parts: list[bytes],
    units: list[bytes],
    position_at: int | None,
) -> EntryBlock:
    data = bytearray().join(parts)
    if position_at is not None:
        at = 0
        for body in parts[1::2]:
            at += ENTRY_HEADER_SIZE
            LONG.pack_into(data, at + position_at, pos + at)
            at += len(body)
    return EntryBlock(first_index, len(units), term, pos, data, b"".join(units))


def leading_entries(
    data: bytes,
    pos: int,
    file_size: int,
    *,
    index: int | None,
    term: int,
    check: BodyCheck | None = None,
) -> EntryBlock:
    """The block of the whole entries at the start of `data`, which lies at byte `pos`; empty without any. It
    ends before an entry that is not whole, does not have the next index (`index` for the first one, None for
    any), or has a lower term than the one before (`term` before the first one)."""
    at, length = 0, len(data)
    first = -1 if index is None else index
    expected = first
    units: list[bytes] = []
    members: list[int] = []
    while length - at >= ENTRY_HEADER_SIZE:
        fields = ENTRY_HEADER.unpack_from(data, at)
        magic, size, entry_index, entry_term, entry_pos, channel, chain, crc, body_size = fields
        if (
            magic != ENTRY_MAGIC
            or entry_pos != pos + at
            or not 0 <= body_size == size - ENTRY_HEADER_SIZE
            or at + size > length
            or (pos + at) % file_size + size > file_size
            or entry_term < term
            or entry_index < 0
            or (expected >= 0 and entry_index != expected)
        ):
            break
        body_at = at + ENTRY_HEADER_SIZE
        if chain and not is_valid_header(data[at:body_at], entry_pos, size):
            break
        if crc and crc_of(data[body_at : at + size]) != crc:
            break
        if check is not None and not check(data, body_at, body_size, entry_pos + ENTRY_HEADER_SIZE):
            break
        if first < 0:
            first = entry_index
        if channel == MEMBERS_CHANNEL:
            members.append(entry_index)
        units.append(INDEX_UNIT.pack(magic, entry_pos, size, entry_index, entry_term))
        expected, term = entry_index + 1, entry_term
        at += size
    return EntryBlock(first, len(units), term, pos, data[:at], b"".join(units), tuple(members))
