# pure: whether two logs are one
"""Compares a replica's log with its master's by checksums of ranges: which to ask for next, and where the
first byte differs.

Epochs say who wrote from where; that the bytes are the same follows only while no disk has lost any. So a
replica compares what it does not know to be the group's, and at every meeting the last `TAIL_BYTES`: where
two logs of one epoch have parted, they differ up to the shorter one's end. After a clean history nothing else
is read. The steps:

1. ranges forward to the end, in chunks of 64 KiB, up to the first chunk that differs;
2. when that is the first one that was looked at, ranges backward, of growing size, until one begins equal;
3. the chunk that differs first in smaller and smaller chunks, down to one byte.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from epochmq_protocol.errors import RemoteProtocolError

RANGE_MAX: Final = 32 << 20
"""Bytes that one request covers."""
CHUNKS_MAX: Final = 1 << 16
"""Checksums that one answer holds."""
TAIL_BYTES: Final = 1 << 20
CHUNKS: Final = (64 * 1024, 1024, 16, 1)
CRC_BYTES: Final = 4


class LogRange(Struct, frozen=True):
    """Bytes of a log, and how many of them a checksum covers; the last chunk may be shorter."""

    start: int
    end: int
    chunk: int

    @property
    def is_reasonable(self) -> bool:
        """Whether a peer may ask for it."""
        size = self.end - self.start
        return self.start >= 0 and 0 < size <= RANGE_MAX and self.chunk > 0 and self.count <= CHUNKS_MAX

    @property
    def count(self) -> int:
        """How many checksums it has."""
        return -(-(self.end - self.start) // self.chunk)


class Comparison:
    """One comparison of two logs up to `end`. `difference` is the offset of the first byte that differs, None
    while there is none."""

    def __init__(self, first: int, verified: int, end: int) -> None:
        """`first` is where the log begins, `verified` up to where it is known to be the master's."""
        self.difference: int | None = None
        self._first = min(first, end)
        self._from = max(self._first, min(verified, end - TAIL_BYTES))
        self._position = self._from
        self._end = end
        self._back_bytes = TAIL_BYTES
        self._looks_back = False
        self._differs: LogRange | None = None
        """The first piece known to differ, with the size of its chunks."""

    def next(self) -> LogRange | None:
        """What to compare next; None when all is known."""
        if self.difference is not None:
            return None
        if self._looks_back:
            start = max(self._first, self._from - self._back_bytes)
            return LogRange(start, self._from, CHUNKS[0])
        if self._differs is not None:
            piece = self._differs
            finer = next(one for one in CHUNKS if one < piece.chunk)
            return LogRange(piece.start, piece.end, finer)
        if self._position >= self._end:
            return None
        return LogRange(self._position, min(self._position + RANGE_MAX, self._end), CHUNKS[0])

    def begins(self, first: int) -> None:
        """The master's log begins only here: what is before it cannot be compared."""
        self._first = min(max(self._first, first), self._end)
        self._from = max(self._from, self._first)
        self._position = max(self._position, self._first)
        if self._looks_back and self._from <= self._first:
            self._looks_back = False

    def answered(self, own: bytes, theirs: bytes) -> None:
        """The checksums of what `next` asked for, of both logs. RemoteProtocolError when they cannot be."""
        piece = self.next()
        assert piece is not None
        if not len(own) == len(theirs) == piece.count * CRC_BYTES:
            raise RemoteProtocolError(f"{len(theirs) // CRC_BYTES} checksums of {piece.count}")
        at = _first_difference(own, theirs)
        if self._looks_back:
            self._answered_back(piece, at)
        elif at is not None:
            self._found(piece, at)
            if at == 0 and piece.start == self._from > self._first:
                self._looks_back = True
        elif self._differs is not None:
            raise RemoteProtocolError(f"the bytes from {piece.start} to {piece.end} changed meanwhile")
        else:
            self._position = piece.end

    def _answered_back(self, piece: LogRange, at: int | None) -> None:
        self._from = piece.start
        self._back_bytes = min(self._back_bytes * 4, RANGE_MAX)
        if at is not None:
            self._found(piece, at)
        self._looks_back = at == 0 and self._from > self._first

    def _found(self, piece: LogRange, at: int) -> None:
        start = piece.start + at * piece.chunk
        self._differs = LogRange(start, min(start + piece.chunk, piece.end), piece.chunk)
        if piece.chunk == 1:
            self.difference = start


def _first_difference(own: bytes, theirs: bytes) -> int | None:
    """Which checksum differs first."""
    if own == theirs:
        return None
    low, high = 0, len(own) // CRC_BYTES
    while high - low > 1:
        middle = (low + high) // 2
        if own[: middle * CRC_BYTES] == theirs[: middle * CRC_BYTES]:
            low = middle
        else:
            high = middle
    return low


def may_truncate(difference: int, confirmed: int) -> bool:
    """Whether what differs may be cut: nobody was told that it is safe. Below the confirmed offset one of the
    two logs has lost what the group promised to keep, and a person has to see both."""
    return difference >= confirmed
