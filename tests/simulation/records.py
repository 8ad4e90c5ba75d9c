"""Encodes the messages of the simulated clients, and keeps a log of them. The bytes survive a kill -9; the
queues are built from them.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

HEADER = struct.Struct(">HBIII")
"""Size of the whole record, queue, queue offset, number of the message, checksum of these."""
QUEUES = 2
PADDING_MAX = 64
PADDING = [bytes([one]) * PADDING_MAX for one in range(1, 256)]
"""The bodies of messages, by their number."""


class Record(NamedTuple):
    """One message in a log."""

    queue: int
    offset: int
    number: int
    end: int


def make_record(queue: int, offset: int, number: int, padding: int) -> bytes:
    """The record's bytes."""
    size = HEADER.size + padding
    crc = zlib.crc32(struct.pack(">HBII", size, queue, offset, number))
    return HEADER.pack(size, queue, offset, number, crc) + body_of(number, padding)


def body_of(number: int, padding: int) -> bytes:
    """A message's body. It is never zeros, because a page that was not written holds zeros."""
    return PADDING[number % len(PADDING)][:padding]


def read_record(data: bytes | bytearray, at: int) -> Record | None:
    """The record at an offset; None if there is no complete and valid one."""
    if len(data) - at < HEADER.size:
        return None
    size, queue, offset, number, crc = HEADER.unpack_from(data, at)
    if len(data) - at < size or crc != zlib.crc32(struct.pack(">HBII", size, queue, offset, number)):
        return None
    if data[at + HEADER.size : at + size] != body_of(number, size - HEADER.size):
        return None  # a page of it is missing
    return Record(queue, offset, number, at + size)


class QueueOffsetError(Exception):
    """A record does not follow the last one of its queue."""


class RecordLog:
    """A commit log and its queues. `dispatched`: up to where records are in the queues."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.dispatched = 0
        self.queues: list[list[Record]] = [[] for _ in range(QUEUES)]

    @property
    def end(self) -> int:
        """Where the log ends."""
        return len(self.data)

    def sound_end(self) -> int:
        """Where the last whole record behind what is dispatched ends."""
        at = self.dispatched
        while (found := read_record(self.data, at)) is not None:
            at = found.end
        return at

    def dispatch(self, limit: int) -> None:
        """Puts records that end at or in front of `limit` into their queues. QueueOffsetError."""
        while self.dispatched < limit:
            found = read_record(self.data, self.dispatched)
            if found is None or found.end > limit:
                return
            queue = self.queues[found.queue]
            if found.offset != len(queue):
                raise QueueOffsetError(f"{found} comes after {queue[-1:]}")
            queue.append(found)
            self.dispatched = found.end

    def truncate(self, offset: int) -> None:
        """Cuts everything from a byte on."""
        del self.data[offset:]
        for queue in self.queues:
            while queue and queue[-1].end > offset:
                queue.pop()
        self.dispatched = min(self.dispatched, offset)

    def recover(self) -> None:
        """Does what a restart does: truncates an incomplete record, and builds the queues again."""
        self.dispatched = 0
        self.queues = [[] for _ in range(QUEUES)]
        self.truncate(self.sound_end())
        self.dispatch(self.end)

    def start_of_record(self, offset: int) -> int:
        """The start offset of the record that holds the byte at `offset`."""
        at = 0
        while (record := read_record(self.data, at)) is not None and record.end <= offset:
            at = record.end
        return at

    def numbers(self) -> set[int]:
        """The messages in it."""
        at, found = 0, set()
        while (record := read_record(self.data, at)) is not None:
            found.add(record.number)
            at = record.end
        return found
