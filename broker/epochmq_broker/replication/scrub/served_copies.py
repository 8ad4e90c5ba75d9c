"""Serves this broker's copy of parts of the log to the scrubs of the other replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from epochmq_broker.replication.scrub.comparison import PARTS_MAX
from epochmq_broker.replication.scrub.paced_reads import PacedReads

WAITING_MAX: Final = 4
"""Requests that are served at a time, one read after the other."""
SUMMED_BYTES_MAX: Final = 96 << 20
SENT_BYTES_MAX: Final = 2 << 20


class CopiesBusyError(Exception):
    """Too many requests wait for reads; the other replica may ask again later."""


class ServedCopies:
    """The copy of one broker. Its reads share the rate of the scrub."""

    def __init__(self, reads: PacedReads, *, served: Callable[[], tuple[int, int]]) -> None:
        """`served`: the first offset and the end of what may be served now."""
        self._reads = reads
        self._served = served
        self._waiting = 0

    async def checksums(self, parts: Sequence[tuple[int, int]]) -> list[int]:
        """The CRC-32 of each part [start, end) of the log. Raises ValueError for parts that this broker does
        not serve, OSError, and CopiesBusyError."""
        self._check(parts, SUMMED_BYTES_MAX)
        self._begin()
        try:
            return [await self._reads.checksum(start, end) for start, end in parts]
        finally:
            self._waiting -= 1

    async def data(self, start: int, end: int) -> bytes:
        """The bytes [start, end) of the log. Raises as `checksums`."""
        self._check([(start, end)], SENT_BYTES_MAX)
        self._begin()
        try:
            return await self._reads.data(start, end)
        finally:
            self._waiting -= 1

    def _begin(self) -> None:
        if self._waiting >= WAITING_MAX:
            raise CopiesBusyError
        self._waiting += 1

    def _check(self, parts: Sequence[tuple[int, int]], size_max: int) -> None:
        first, limit = self._served()
        for start, end in parts:
            if not first <= start < end <= limit:
                raise ValueError(f"the bytes from {start} to {end} are not between {first} and {limit}")
        if len(parts) > PARTS_MAX:
            raise ValueError(f"{len(parts)} parts are more than {PARTS_MAX}")
        size = sum(end - start for start, end in parts)
        if size > size_max:
            raise ValueError(f"{size} bytes are more than {size_max}")
