# pure: bytes of a log to the bounds of its records
"""Follows the records of a commit log from one to the next, and checks each: its sizes, its place, and the
checksum of its body."""

from __future__ import annotations

from msgspec import Struct

from epochmq_protocol.record_layout import (
    BLANK_BYTES,
    HEADS_BY_FLAG,
    HOSTS_V6,
    INT,
    LONG,
    STORE_TIMESTAMP,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
)
from epochmq_store.backups.backup_errors import BackupError
from epochmq_store.log.record_checks import PLAIN


class BrokenRecordError(BackupError):
    """There is no whole record at an offset below the cut."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"the log has no whole record at offset {offset}: {why}")
        self.offset = offset
        self.why = why

    def __reduce__(self) -> tuple[type[BrokenRecordError], tuple[int, str]]:
        return type(self), (self.offset, self.why)


class WalkedRecords(Struct, frozen=True):
    """Whole records in a row. `size` is that of all of them, in bytes. `stored_ms` and `last_stored_ms` are
    the least and the greatest store time of their messages, 0 without messages. `needed` are the bytes of the
    next record, if the buffer has only its beginning; 0 if that is unknown. `ends`: the file of the log ends
    behind them."""

    size: int
    stored_ms: int
    last_stored_ms: int
    needed: int = 0
    ends: bool = False


def walk(buffer: bytes, offset: int, room: int, stored_until_ms: int | None = None) -> WalkedRecords:
    """The whole records at the start of a buffer, which is at this offset of the log and has `room` bytes to
    the end of its file. With `stored_until_ms` it ends before the first message that was stored later. Raises
    BrokenRecordError."""
    at, least, greatest, length = 0, 0, 0, len(buffer)
    while at < length:
        if length - at < BLANK_BYTES:
            return WalkedRecords(at, least, greatest)
        size = PLAIN.size(buffer, at)
        if PLAIN.is_blank(buffer, at):
            if size != room - at:
                raise BrokenRecordError(offset + at, f"a blank of {size} bytes, expected {room - at}")
            if size > length - at:
                return WalkedRecords(at, least, greatest, needed=size)
            return WalkedRecords(at + size, least, greatest, ends=True)
        if length - at < PLAIN.start_bytes:
            return WalkedRecords(at, least, greatest, needed=PLAIN.start_bytes)
        fault = PLAIN.start_fault(buffer, at, offset + at, room - at)
        if not fault and size > length - at:
            return WalkedRecords(at, least, greatest, needed=size)
        fault = fault or PLAIN.content_fault(buffer, at, size)
        if fault:
            raise BrokenRecordError(offset + at, fault)
        stored = _store_time(buffer, at)
        if stored_until_ms is not None and stored > stored_until_ms:
            return WalkedRecords(at, least, greatest, ends=True)
        least = stored if not least else min(least, stored)
        greatest = max(greatest, stored)
        at += size
    return WalkedRecords(at, least, greatest, ends=at == room)


def _store_time(buffer: bytes, at: int) -> int:
    """The store time of a record, which is whole; 0 if it is negative."""
    (flag,) = INT.unpack_from(buffer, at + SYS_FLAG_AT)
    if flag & HOSTS_V6:
        return max(int(HEADS_BY_FLAG[flag & HOSTS_V6].unpack_from(buffer, at)[STORE_TIMESTAMP]), 0)
    (stored,) = LONG.unpack_from(buffer, at + STORE_TIMESTAMP_AT)
    return max(int(stored), 0)
