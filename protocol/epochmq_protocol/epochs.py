"""Epochs of a replicated log: which master wrote from where. The entries, their file, their form in a
handshake, and up to where they say that two logs are one.

An epoch begins when a master takes over and ends where the next one begins; the last one has no end. The file
(`epochFileCheckpoint`) is text: the number of entries, a checksum of the lines below, and a line
`epoch-startOffset` for each, ascending (RocketMQ's `EpochFileCache`, `CheckpointFile`).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from epochmq_protocol.errors import RemoteProtocolError

ENTRY_SIZE = 12
_ENTRY = struct.Struct(">iq")
OFFSET_MAX = (1 << 63) - 1
"""The end of an epoch that has not ended."""


class EpochEntry(msgspec.Struct, frozen=True, order=True):
    """The master of `epoch` wrote from byte `start_offset` of the log."""

    epoch: int
    start_offset: int


def encode_entries(entries: Sequence[EpochEntry]) -> bytes:
    """The entries as a handshake carries them: epoch (4), start offset (8), each."""
    return b"".join(_ENTRY.pack(entry.epoch, entry.start_offset) for entry in entries)


def decode_entries(data: bytes | memoryview) -> list[EpochEntry]:
    """The entries of a handshake. RemoteProtocolError unless they are whole and ascend; an epoch may begin
    where the one before it did, which then has no byte."""
    if len(data) % ENTRY_SIZE:
        raise RemoteProtocolError(f"epoch entries of {len(data)} bytes, expected a multiple of {ENTRY_SIZE}")
    entries = [EpochEntry(*fields) for fields in _ENTRY.iter_unpack(data)]
    _require_ascending(entries, least=0)
    return entries


def _require_ascending(entries: Sequence[EpochEntry], least: int) -> None:
    """`least`: how many bytes an epoch has at least."""
    for before, after in pairwise(entries):
        if after.epoch <= before.epoch or after.start_offset < before.start_offset + least:
            raise RemoteProtocolError(f"epoch entries do not ascend: {before} before {after}")
    if entries and (entries[0].epoch < 0 or entries[0].start_offset < 0):
        raise RemoteProtocolError(f"epoch entry below zero: {entries[0]}")


def format_file(entries: Sequence[EpochEntry]) -> str:
    """The file's text. Java reads and writes the same."""
    lines = "".join(f"{entry.epoch}-{entry.start_offset}\n" for entry in entries)
    return f"{len(entries)}\n{zlib.crc32(lines.encode()) & 0x7FFFFFFF}\n{lines}"


def parse_file(text: str) -> list[EpochEntry]:
    """The entries of a file's text. RemoteProtocolError when count, checksum, a line or the order is wrong:
    then the `.bak` beside it is to be read. A checksum of 0 is not checked."""
    lines = text.splitlines()
    try:
        count, checksum = int(lines[0]), int(lines[1])
        entries = [EpochEntry(*(int(part) for part in line.split("-"))) for line in lines[2:] if line]
    except (IndexError, TypeError, ValueError) as error:
        raise RemoteProtocolError(
            f"epoch file: {error}, expected count, checksum, epoch-startOffset …"
        ) from None
    if count != len(entries):
        raise RemoteProtocolError(f"epoch file: {len(entries)} entries, {count} announced")
    body = "".join(f"{line}\n" for line in lines[2:] if line)
    if checksum and checksum != zlib.crc32(body.encode()) & 0x7FFFFFFF:
        raise RemoteProtocolError(f"epoch file: checksum {checksum} does not fit its lines")
    _require_ascending(entries, least=1)
    return entries


def truncation_point(
    local: Sequence[EpochEntry], local_end: int, master: Sequence[EpochEntry], master_end: int
) -> int | None:
    """Up to which byte a replica's log is its master's: to the end of the newest epoch that both have with
    the same start, the smaller of its two ends (RIP-44, `EpochFileCache.findConsistentPoint`). `local_end`
    and `master_end` are where the last epochs end. None: no epoch is common, and nothing can be said. An
    empty local history is for the caller: there is nothing to compare."""
    theirs = {entry: at for at, entry in enumerate(master)}
    for at in range(len(local) - 1, -1, -1):
        there = theirs.get(local[at])
        if there is None:
            continue
        own_end = local[at + 1].start_offset if at + 1 < len(local) else local_end
        master_epoch_end = master[there + 1].start_offset if there + 1 < len(master) else master_end
        return min(own_end, master_epoch_end)
    return None
