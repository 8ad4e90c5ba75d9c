"""Reads ranges of the log and computes their checksums, on a thread of its own, for comparisons between a
replica and its master (`comparison.py`)."""

from __future__ import annotations

import asyncio
import os
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from epochmq_broker.ha.comparison import LogRange
from epochmq_broker.store.commit_log import CommitLog

WAITING_MAX: Final = 4
"""Ranges that may wait for the thread."""
READ_BYTES: Final = 64 * 1024


class ChecksumsBusyError(Exception):
    """Too many ranges wait."""


class LogChecksums:
    """Of one log."""

    def __init__(self, commit_log: CommitLog) -> None:
        self._log = commit_log
        self._executor: ThreadPoolExecutor | None = None
        self._waiting = 0

    async def of(self, wanted: LogRange) -> bytes:
        """The CRC-32 of each chunk, four bytes each, big-endian. ValueError when the log lacks a part of the
        range, OSError when it cannot be read, ChecksumsBusyError."""
        if self._waiting >= WAITING_MAX:
            raise ChecksumsBusyError
        pieces = self._pieces(wanted)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="ha-compare")
        self._waiting += 1
        try:
            # The files may expire, and their numbers go to others, meanwhile: these are the thread's own, and
            # it closes them whether anybody still waits or not.
            job = self._executor.submit(_checksums, pieces, wanted.chunk)
            return await asyncio.shield(asyncio.wrap_future(job))
        finally:
            self._waiting -= 1

    def stop(self) -> None:
        """Ends the thread when what it does now is done."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None

    def _pieces(self, wanted: LogRange) -> list[tuple[int, int, int]]:
        """(descriptor, position, bytes) of each file that the range lies in."""
        pieces: list[tuple[int, int, int]] = []
        try:
            position = wanted.start
            while position < wanted.end:
                file = self._log.files.find(position)
                if file is None or position >= file.start + file.wrote:
                    raise ValueError(f"the log has no byte at {position}")
                size = min(file.start + file.wrote, wanted.end) - position
                pieces.append((os.dup(file.fd), position - file.start, size))
                position += size
        except BaseException:
            for descriptor, _, _ in pieces:
                os.close(descriptor)
            raise
        return pieces


def _checksums(pieces: list[tuple[int, int, int]], chunk: int) -> bytes:
    """On the thread: reads and sums up; chunks go over the ends of files."""
    found: list[int] = []
    crc = filled = 0
    try:
        for descriptor, at, left in pieces:
            while left:
                data = os.pread(descriptor, min(left, READ_BYTES), at)
                if not data:
                    raise OSError(f"a file of the log ends at {at}, {left} bytes short")
                at += len(data)
                left -= len(data)
                view = memoryview(data)
                while view:
                    part = view[: chunk - filled]
                    crc = zlib.crc32(part, crc)
                    filled += len(part)
                    view = view[len(part) :]
                    if filled == chunk:
                        found.append(crc)
                        crc = filled = 0
        if filled:
            found.append(crc)
    finally:
        for descriptor, _, _ in pieces:
            os.close(descriptor)
    return struct.pack(f">{len(found)}I", *found)
