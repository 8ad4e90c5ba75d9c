# pure: bytes in, faults out
"""Checks the records of a commit log one by one: where they begin, and whether they are whole.

A record is whole if its magic, its sizes, its physical offset and the checksum of its body agree. In a
DLedger log each record follows the header of its entry, which must agree, too. Of that header, index and term
say nothing by themselves.
"""

from __future__ import annotations

from typing import Final

from epochmq_formats.dledger_log import ENTRY_HEADER, ENTRY_HEADER_SIZE, FILLER, FILLER_MAGIC
from epochmq_protocol.checksum import CRC_MASK, crc32
from epochmq_protocol.dledger import ENTRY_MAGIC, MEMBERS_CHANNEL
from epochmq_protocol.message_const import BLANK_MAGIC, MAGIC_V1, MAGIC_V2, TOPIC_BYTES_MAX_V1
from epochmq_protocol.record_layout import (
    BLANK_BYTES,
    BODY_CRC,
    BODY_SIZE,
    HEAD_V4,
    HEADS_BY_FLAG,
    HOSTS_V6,
    INT,
    LENGTH,
    LONG,
    PHYSICAL_OFFSET_AT,
    SIZE_AND_MAGIC,
    SYS_FLAG,
)
from epochmq_store.record import is_intact

_START_BYTES: Final = PHYSICAL_OFFSET_AT + LONG.size
_RECORD_MAGICS: Final = tuple(INT.pack(magic) for magic in (MAGIC_V1, MAGIC_V2))
_BLANK_MAGIC: Final = INT.pack(BLANK_MAGIC)


class PlainRecords:
    """The records of a plain commit log. `offset` is always the log offset of the record, `space` the number
    of bytes from there to the end of its file."""

    start_bytes: int = _START_BYTES
    """The first bytes of a record, by which it is recognized."""

    def size(self, buffer: bytes, position: int) -> int:
        """The size that the record at this position claims to have."""
        size: int
        size, _ = SIZE_AND_MAGIC.unpack_from(buffer, position)
        return size

    def is_blank(self, buffer: bytes, position: int) -> bool:
        """Whether the unused end of a file is marked here."""
        _, magic = SIZE_AND_MAGIC.unpack_from(buffer, position)
        return bool(magic == BLANK_MAGIC)

    def blank_size(self, buffer: bytes, position: int) -> int:
        """The size of the unused end that is marked here."""
        return self.size(buffer, position)

    def start_fault(self, buffer: bytes, position: int, offset: int, space: int) -> str:
        """What is wrong with the first `start_bytes` of a record; empty if nothing is."""
        if len(buffer) - position < _START_BYTES:
            return f"no record fits into the last {space} bytes of the file"
        size, magic = SIZE_AND_MAGIC.unpack_from(buffer, position)
        if magic not in (MAGIC_V1, MAGIC_V2):
            return f"a record has the magic {magic & 0xFFFF_FFFF:#010x}"
        if not HEAD_V4.size + 3 <= size <= space:
            return f"a record has the size {size}, {space} bytes are left"
        (physical,) = LONG.unpack_from(buffer, position + PHYSICAL_OFFSET_AT)
        return "" if physical == offset else f"a record has the physical offset {physical}"

    def content_fault(self, buffer: bytes, position: int, size: int) -> str:
        """What is wrong with the lengths and the body of a record whose first bytes are right."""
        return _content_fault(buffer, position, size)

    def starts(self, buffer: bytes, position: int) -> list[int]:
        """The positions in the buffer from `position` on where a record, or a blank one, may begin,
        ascending."""
        found = self._positions_of(_BLANK_MAGIC, buffer, position, INT.size, BLANK_BYTES)
        for magic in _RECORD_MAGICS:
            found += self._positions_of(magic, buffer, position, INT.size, self.start_bytes)
        return sorted(found)

    @staticmethod
    def _positions_of(magic: bytes, buffer: bytes, position: int, before: int, needed: int) -> list[int]:
        """Where this magic stands `before` bytes behind a position from which `needed` bytes are there."""
        found = []
        at = buffer.find(magic, position + before)
        while at >= 0:
            if at - before + needed <= len(buffer):
                found.append(at - before)
            at = buffer.find(magic, at + 1)
        return found

    def begins(self, buffer: bytes, position: int, offset: int, space: int) -> bool:
        """Whether a record, or a blank one, begins at this position."""
        if len(buffer) - position < BLANK_BYTES:
            return False
        if self.is_blank(buffer, position):
            return self.blank_size(buffer, position) == space
        return not self.start_fault(buffer, position, offset, space)


class DLedgerEntries(PlainRecords):
    """The entries of a DLedger log, each with a record."""

    start_bytes = ENTRY_HEADER_SIZE + _START_BYTES

    def size(self, buffer: bytes, position: int) -> int:
        size: int
        _, size = FILLER.unpack_from(buffer, position)
        return size

    def is_blank(self, buffer: bytes, position: int) -> bool:
        magic, _ = FILLER.unpack_from(buffer, position)
        return bool(magic == FILLER_MAGIC)

    def start_fault(self, buffer: bytes, position: int, offset: int, space: int) -> str:
        if len(buffer) - position < self.start_bytes:
            return f"no entry fits into the last {space} bytes of the file"
        magic, size, _, _, at, _, _, _, body_size = ENTRY_HEADER.unpack_from(buffer, position)
        if magic != ENTRY_MAGIC or at != offset or size != ENTRY_HEADER_SIZE + body_size or size > space:
            return f"an entry has the magic {magic}, the position {at} and the size {size}"
        record_at = position + ENTRY_HEADER_SIZE
        fault = super().start_fault(buffer, record_at, offset + ENTRY_HEADER_SIZE, body_size)
        if not fault and SIZE_AND_MAGIC.unpack_from(buffer, record_at)[0] != body_size:
            return f"an entry of {size} bytes has a record of another size"
        return fault

    def content_fault(self, buffer: bytes, position: int, size: int) -> str:
        *_, channel, chain_crc, body_crc, _ = ENTRY_HEADER.unpack_from(buffer, position)
        if channel not in (0, MEMBERS_CHANNEL) or chain_crc or body_crc:
            return (
                f"an entry has the channel {channel} and the checksums {chain_crc} and {body_crc}, which no "
                "peer writes into a commit log"
            )
        return _content_fault(buffer, position + ENTRY_HEADER_SIZE, size - ENTRY_HEADER_SIZE)

    def starts(self, buffer: bytes, position: int) -> list[int]:
        """A filler is not looked for: its magic is -1."""
        found = []
        before = ENTRY_HEADER_SIZE + INT.size
        for magic in _RECORD_MAGICS:
            found += self._positions_of(magic, buffer, position, before, self.start_bytes)
        return sorted(found)


PLAIN: Final = PlainRecords()
ENTRIES: Final = DLedgerEntries()


def check_records(data: bytes, start: int, file_end: int, records: PlainRecords = PLAIN) -> str:
    """What is wrong with the bytes of [start, start + len(data)) of a log: empty if they are whole records,
    perhaps with the start of a blank record, whose file ends at `file_end`."""
    position = 0
    while position < len(data):
        left = len(data) - position
        if left < BLANK_BYTES:
            return f"the bytes end within a record, {left} bytes are left"
        at = start + position
        if records.is_blank(data, position):
            size = records.blank_size(data, position)
            whole = size == file_end - at and left in (BLANK_BYTES, size)
            return "" if whole else f"a blank record of {size} bytes does not end with the file"
        if left < HEAD_V4.size:
            return "the bytes end within a record"
        size = records.size(data, position)
        fault = records.start_fault(data, position, at, left) or records.content_fault(data, position, size)
        if fault:
            return fault
        position += size
    return ""


def record_bounds(data: bytes, start: int, records: PlainRecords = PLAIN) -> list[int]:
    """The log offsets at which the records in `data` begin, and the offset of its end. The bytes are whole
    records, and begin at the log offset `start`."""
    found, position = [], 0
    while position < len(data):
        found.append(start + position)
        if records.is_blank(data, position):
            break
        position += records.size(data, position)
    return [*found, start + len(data)]


def only_headers_differ(own: bytes, theirs: bytes) -> bool:
    """Whether two runs of whole entries of a DLedger log, of equal length, have the same records, and differ
    only in the headers of the entries."""
    position = 0
    while position < len(own):
        if ENTRIES.is_blank(own, position):
            return own[position:] == theirs[position:]
        at, end = position + ENTRY_HEADER_SIZE, position + ENTRIES.size(own, position)
        if own[at:end] != theirs[at:end]:
            return False
        position = end
    return True


def shows_rot(own: bytes, theirs: bytes, records: PlainRecords = PLAIN) -> bool:
    """Whether two runs of whole records, of equal length, differ only in records whose property `__CRC32#`
    says that theirs are right, and not that the own ones are. It covers the whole record before it."""
    position = 0
    skipped = ENTRY_HEADER_SIZE if records is ENTRIES else 0
    while position < len(theirs):
        if records.is_blank(theirs, position):
            return own[position:] == theirs[position:]
        end = position + records.size(theirs, position)
        at = position + skipped
        if own[position:end] != theirs[position:end]:
            is_proven = own[position:at] == theirs[position:at] and is_intact(theirs, at, end - at)
            if not is_proven or is_intact(own, at, end - at):
                return False
        position = end
    return own != theirs


def _content_fault(buffer: bytes, position: int, size: int) -> str:
    """What is wrong with the lengths and the body of a record whose first fields are right."""
    fields = HEAD_V4.unpack_from(buffer, position)
    head = HEAD_V4
    flags = fields[SYS_FLAG] & HOSTS_V6
    if flags:
        head = HEADS_BY_FLAG[flags]
        if size < head.size + 3:
            return f"a record of {size} bytes is shorter than its head"
        fields = head.unpack_from(buffer, position)
    body_size = fields[BODY_SIZE]
    limit = position + size
    at = position + head.size
    if not 0 <= body_size <= limit - at - 3:
        return f"a record of {size} bytes has a body of {body_size}"
    if body_size and crc32(buffer[at : at + body_size]) & CRC_MASK != fields[BODY_CRC]:
        return "the checksum of a body is wrong"
    at += body_size
    (_, magic) = SIZE_AND_MAGIC.unpack_from(buffer, position)
    if magic == MAGIC_V1:
        topic_size, at = buffer[at], at + 1
    else:
        topic_size, at = LENGTH.unpack_from(buffer, at)[0], at + 2
    most = TOPIC_BYTES_MAX_V1 if magic == MAGIC_V1 else size
    if not 0 <= topic_size <= min(limit - at - 2, most):
        return f"a record of {size} bytes has a topic of {topic_size}"
    at += topic_size
    properties_size = LENGTH.unpack_from(buffer, at)[0]
    if at + 2 + max(properties_size, 0) != limit:
        return f"a record of {size} bytes has properties of {properties_size}"
    return ""
