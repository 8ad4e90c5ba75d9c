"""Encodes the epoch entries of a replicated log and finds the offset up to which two logs are equal.

An epoch begins when a master takes over and ends where the next one begins; the last one has no end. The file
(`epochFileCheckpoint`) is text: the number of entries, a checksum of the lines below, and one line
`epoch-startOffset` for each entry, ascending (RocketMQ's `EpochFileCache`, `CheckpointFile`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from epochmq_protocol.checksum import CRC_MASK, crc32
from epochmq_protocol.errors import RemoteProtocolError

EPOCH_ENTRY_SIZE = 12
_ENTRY = struct.Struct(">iq")
OFFSET_MAX = (1 << 63) - 1
"""The end offset of the last epoch."""


class EpochEntry(msgspec.Struct, frozen=True, order=True):
    """The master of `epoch` wrote from byte `start_offset` of the log."""

    epoch: int
    start_offset: int


def encode_epoch_entries(entries: Sequence[EpochEntry]) -> bytes:
    """The entries as a handshake carries them: epoch (4 bytes) and start offset (8 bytes) each."""
    return b"".join(_ENTRY.pack(entry.epoch, entry.start_offset) for entry in entries)


def decode_epoch_entries(data: bytes | memoryview) -> list[EpochEntry]:
    """The entries of a handshake. RemoteProtocolError: incomplete, or not ascending. Two epochs may begin
    at the same offset; the first one is empty then."""
    if len(data) % EPOCH_ENTRY_SIZE:
        raise RemoteProtocolError(
            f"epoch entries of {len(data)} bytes, expected a multiple of {EPOCH_ENTRY_SIZE}"
        )
    entries = [EpochEntry(*fields) for fields in _ENTRY.iter_unpack(data)]
    _require_ascending(entries, least=0)
    return entries


def _require_ascending(entries: Sequence[EpochEntry], least: int) -> None:
    """RemoteProtocolError unless epochs and offsets ascend. `least`: the fewest bytes an epoch may have."""
    for before, after in pairwise(entries):
        if after.epoch <= before.epoch or after.start_offset < before.start_offset + least:
            raise RemoteProtocolError(f"epoch entries do not ascend: {before} before {after}")
    if entries and (entries[0].epoch < 0 or entries[0].start_offset < 0):
        raise RemoteProtocolError(f"epoch entry below zero: {entries[0]}")


def format_epoch_file(entries: Sequence[EpochEntry]) -> str:
    """The text of the epoch file, as Java writes it."""
    lines = "".join(f"{entry.epoch}-{entry.start_offset}\n" for entry in entries)
    return f"{len(entries)}\n{crc32(lines.encode()) & CRC_MASK}\n{lines}"


def parse_epoch_file(text: str) -> list[EpochEntry]:
    """The entries of an epoch file's text. RemoteProtocolError: count, checksum, a line or the order is
    wrong; read the `.bak` beside it then. A checksum of 0 is not verified."""
    lines = text.splitlines()
    try:
        count, checksum = int(lines[0]), int(lines[1])
        entries = [EpochEntry(*(int(part) for part in line.split("-"))) for line in lines[2:] if line]
    except (IndexError, TypeError, ValueError) as error:
        raise RemoteProtocolError(
            f"epoch file: {error}; expected lines with count, checksum, epoch-startOffset …"
        ) from None
    if count != len(entries):
        raise RemoteProtocolError(f"epoch file: {len(entries)} entries, but its count is {count}")
    body = "".join(f"{line}\n" for line in lines[2:] if line)
    if checksum and checksum != crc32(body.encode()) & CRC_MASK:
        raise RemoteProtocolError(f"epoch file: the lines do not match the checksum {checksum}")
    _require_ascending(entries, least=1)
    return entries


def truncation_point(
    local: Sequence[EpochEntry], local_end: int, master: Sequence[EpochEntry], master_end: int
) -> int | None:
    """The offset up to which a replica's log equals its master's: the end of the newest epoch that both
    have with the same start, the smaller of the two ends (RIP-44, `EpochFileCache.findConsistentPoint`).

    `local_end` and `master_end` are the ends of the last epochs. None: no epoch is common. The caller must
    handle an empty local history."""
    theirs = {entry: at for at, entry in enumerate(master)}
    for at in range(len(local) - 1, -1, -1):
        there = theirs.get(local[at])
        if there is None:
            continue
        own_end = local[at + 1].start_offset if at + 1 < len(local) else local_end
        master_epoch_end = master[there + 1].start_offset if there + 1 < len(master) else master_end
        return min(own_end, master_epoch_end)
    return None
