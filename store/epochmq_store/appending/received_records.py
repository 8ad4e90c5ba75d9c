"""Checks the records of another broker's log that were appended to this one, before they are acknowledged.

A broken record that a replica acknowledged would be the only copy after the next failure. So a replica counts
only whole records whose magic, sizes, physical offset and body checksum agree: what it has checked, it can
dispatch, and what it acknowledges, it can serve.
"""

from __future__ import annotations

from epochmq_protocol.checksum import CRC_MASK, crc32
from epochmq_protocol.errors import RemoteProtocolError
from epochmq_protocol.message_const import BLANK_MAGIC, MAGIC_V1, MAGIC_V2, TOPIC_BYTES_MAX_V1
from epochmq_protocol.record_layout import (
    BLANK_BYTES,
    BODY_SIZE,
    CHECKED_HEAD,
    HEAD_BYTES,
    HEADS_BY_FLAG,
    HOSTS_V6,
    LENGTH,
    SIZE_AND_MAGIC,
)
from epochmq_store.files.mapped_file import MappedFile
from epochmq_store.log.commit_log import CommitLog


class DamagedRecordError(RemoteProtocolError):
    """A received record is damaged. `offset` is where it starts."""

    def __init__(self, offset: int, fault: str) -> None:
        super().__init__(f"the record at offset {offset} is damaged: {fault}")
        self.offset = offset


class ReceivedRecords:
    """Follows the end of a replica's log. Everything before `position` was checked: records end there, or the
    log ends there in a blank record."""

    __slots__ = ("_blank_end", "_log", "position")

    def __init__(self, log: CommitLog, position: int) -> None:
        """The log begins, or its last record ends, at `position`; an empty log may begin behind it."""
        self._log = log
        self._blank_end = 0  # end of the file whose unused end was found last
        self.position = position

    def truncate(self, offset: int) -> None:
        """The log was truncated at this offset, at the start of a record."""
        self.position = min(self.position, offset)
        self._blank_end = 0

    def advance(self, max_records: int, *, complete_until: int = -1) -> bool:
        """Checks up to `max_records` records; True if more are left. The log is known to end with a record at
        `complete_until`, -1: unknown. Raises DamagedRecordError."""
        log = self._log
        left = max_records
        while left > 0:
            end = log.max_offset
            # An empty log begins where the master's first block does, which may be its last file.
            self.position = max(self.position, log.min_offset)
            if self.position < self._blank_end:
                self.position = min(self._blank_end, end)
            file = log.files.find(self.position) if self.position < end else None
            if file is None:
                return False
            count = self._check_file(file, left)
            if count == 0:
                if self.position < min(complete_until, end):
                    raise DamagedRecordError(self.position, "it claims to be longer than the log")
                return False
            left -= count
        return True

    def _check_file(self, file: MappedFile, max_records: int) -> int:
        """Checks the next records in a file, and returns their number; 0 if only a part of one is there."""
        data, start, wrote = file.map, file.start, file.wrote
        at, count = _skip_whole_records(file, self.position - start, max_records)
        unpack, length = CHECKED_HEAD.unpack_from, LENGTH.unpack_from
        while count < max_records and wrote - at >= BLANK_BYTES:
            if wrote - at < HEAD_BYTES:
                size, magic = SIZE_AND_MAGIC.unpack_from(data, at)
                if magic != BLANK_MAGIC:
                    break
            else:
                size, magic, crc, physical, flags, body = unpack(data, at)
            if magic == BLANK_MAGIC:
                if size != file.size - at:
                    raise DamagedRecordError(start + at, f"it is blank and has {size} bytes")
                self._blank_end = start + file.size
                self.position = min(self._blank_end, start + wrote)
                return count + 1
            limit = at + size
            if (magic != MAGIC_V1 and magic != MAGIC_V2) or size <= HEAD_BYTES or limit > file.size:
                raise DamagedRecordError(start + at, f"its magic is {magic & 0xFFFFFFFF:#x}, its size {size}")
            if physical != start + at:
                raise DamagedRecordError(start + at, f"its physical offset is {physical}")
            if limit > wrote:
                break
            first = at + HEAD_BYTES
            if flags & HOSTS_V6:
                head = HEADS_BY_FLAG[flags & HOSTS_V6]
                first = at + head.size
                body = head.unpack_from(data, at)[BODY_SIZE] if first < limit else -1
            if not 0 <= body <= limit - first - 3:
                raise DamagedRecordError(start + at, f"its body has {body} of {size} bytes")
            behind = first + body
            if body and crc32(data[first:behind]) & CRC_MASK != crc:
                raise DamagedRecordError(start + at, "the checksum of its body is wrong")
            if magic == MAGIC_V1:
                topic = data[behind]
                behind += 1 + topic
                too_long = topic > TOPIC_BYTES_MAX_V1
            else:
                topic = length(data, behind)[0]
                behind += 2 + topic
                too_long = topic < 0
            if too_long or behind > limit - 2 or behind + 2 + max(length(data, behind)[0], 0) != limit:
                raise DamagedRecordError(start + at, "the lengths of its topic and its properties are wrong")
            at = limit
            count += 1
        self.position = start + at
        return count


def _skip_whole_records(file: MappedFile, at: int, max_records: int) -> tuple[int, int]:
    """Skips the whole records from this position of a file on, up to the first that is not an ordinary one:
    of MAGIC_V1, with a body, and with hosts of IPv4. Returns its position and the number of skipped records.

    This takes half the time of `_check_file`, which judges what is left. Bodies are not copied."""
    data, start, wrote = file.map, file.start, file.wrote
    count, last = 0, wrote - HEAD_BYTES
    unpack, length = CHECKED_HEAD.unpack_from, LENGTH.unpack_from
    with memoryview(data) as view:
        while at <= last and count < max_records:
            size, magic, crc, physical, flags, body = unpack(data, at)
            limit = at + size
            first = at + HEAD_BYTES
            behind = first + body
            if (
                magic != MAGIC_V1
                or physical != start + at
                or flags & HOSTS_V6
                or limit > wrote
                or body <= 0
                or behind > limit - 3
                or crc32(view[first:behind]) & CRC_MASK != crc
            ):
                break
            topic = data[behind]
            behind += 1 + topic
            if (
                topic > TOPIC_BYTES_MAX_V1
                or behind > limit - 2
                or behind + 2 + length(data, behind)[0] != limit
            ):
                break
            at = limit
            count += 1
    return at, count
