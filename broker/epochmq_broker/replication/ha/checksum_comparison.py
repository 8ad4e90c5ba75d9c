# pure: whether two logs have the same bytes
"""Finds the first byte at which a replica's log differs from its master's, by checksums of ranges.

Epochs say which master wrote which part of a log. Equal epochs imply equal bytes only if no disk has lost
any. A replica therefore compares everything that it does not know to be equal, and with every new connection
the last `TAIL_BYTES`: two logs of one epoch that have diverged differ up to the end of the shorter one. If
nothing was lost, no other range is read. The steps:

1. Compare ranges forward to the end, in chunks of 64 KiB, up to the first chunk that differs.
2. If that is the first chunk compared, compare ranges backward, of growing size, until one begins equal.
3. Compare the first differing chunk in ever smaller chunks, down to one byte.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from epochmq_protocol.errors import RemoteProtocolError

RANGE_MAX: Final = 32 << 20
"""The most bytes that one request covers."""
CHUNKS_MAX: Final = 1 << 16
"""The most checksums that one response holds."""
TAIL_BYTES: Final = 1 << 20
CHUNKS: Final = (64 * 1024, 1024, 16, 1)
CRC_BYTES: Final = 4


class LogRange(Struct, frozen=True):
    """A range of log offsets, and how many bytes (`chunk`) each checksum covers; the last chunk may be
    shorter."""

    start: int
    end: int
    chunk: int

    @property
    def is_reasonable(self) -> bool:
        """Whether the range is valid and within the limits of one request."""
        size = self.end - self.start
        return self.start >= 0 and 0 < size <= RANGE_MAX and self.chunk > 0 and self.count <= CHUNKS_MAX

    @property
    def count(self) -> int:
        """How many checksums the range has."""
        return -(-(self.end - self.start) // self.chunk)


class LogComparison:
    """Compares two logs up to the offset `end`. `difference` is the offset of the first byte that differs,
    None while none was found."""

    def __init__(self, first: int, verified: int, end: int) -> None:
        """`first` is the log's first offset. Up to `verified` the log is known to be equal to the
        master's."""
        self.difference: int | None = None
        self._first = min(first, end)
        self._compared_from = max(self._first, min(verified, end - TAIL_BYTES))
        self._position = self._compared_from
        self._end = end
        self._back_bytes = TAIL_BYTES
        self._is_backward = False
        self._differing_range: LogRange | None = None
        """The smallest range known to hold the first difference, with the chunk size that found it."""

    def next_range(self) -> LogRange | None:
        """The range to compare next; None when the comparison is complete."""
        if self.difference is not None:
            return None
        if self._is_backward:
            start = max(self._first, self._compared_from - self._back_bytes)
            return LogRange(start, self._compared_from, CHUNKS[0])
        if self._differing_range is not None:
            log_range = self._differing_range
            finer = next(one for one in CHUNKS if one < log_range.chunk)
            return LogRange(log_range.start, log_range.end, finer)
        if self._position >= self._end:
            return None
        return LogRange(self._position, min(self._position + RANGE_MAX, self._end), CHUNKS[0])

    def limit_to_master_start(self, first: int) -> None:
        """The master's log begins at `first`: earlier bytes cannot be compared."""
        self._first = min(max(self._first, first), self._end)
        self._compared_from = max(self._compared_from, self._first)
        self._position = max(self._position, self._first)
        if self._is_backward and self._compared_from <= self._first:
            self._is_backward = False

    def add_checksums(self, own: bytes, theirs: bytes) -> None:
        """Takes the checksums of the range of `next_range` in both logs. Raises RemoteProtocolError if their
        number is wrong or the master's bytes have changed since."""
        log_range = self.next_range()
        assert log_range is not None
        if not len(own) == len(theirs) == log_range.count * CRC_BYTES:
            raise RemoteProtocolError(
                f"the master sent {len(theirs) // CRC_BYTES} checksums, expected {log_range.count}"
            )
        at = _first_difference(own, theirs)
        if self._is_backward:
            self._add_backward_checksums(log_range, at)
        elif at is not None:
            self._narrow_to(log_range, at)
            if at == 0 and log_range.start == self._compared_from > self._first:
                self._is_backward = True
        elif self._differing_range is not None:
            raise RemoteProtocolError(
                f"the log bytes from {log_range.start} to {log_range.end} changed during the comparison"
            )
        else:
            self._position = log_range.end

    def _add_backward_checksums(self, log_range: LogRange, at: int | None) -> None:
        self._compared_from = log_range.start
        self._back_bytes = min(self._back_bytes * 4, RANGE_MAX)
        if at is not None:
            self._narrow_to(log_range, at)
        self._is_backward = at == 0 and self._compared_from > self._first

    def _narrow_to(self, log_range: LogRange, at: int) -> None:
        start = log_range.start + at * log_range.chunk
        self._differing_range = LogRange(start, min(start + log_range.chunk, log_range.end), log_range.chunk)
        if log_range.chunk == 1:
            self.difference = start


def _first_difference(own: bytes, theirs: bytes) -> int | None:
    """The index of the first checksum that differs; None if all are equal."""
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
    """Whether a replica may truncate its log at `difference`. A difference below the confirmed offset means
    that one of the two logs has lost confirmed bytes; an administrator has to compare them."""
    return difference >= confirmed
