"""Computes the checksums of log ranges on a thread of its own, for comparisons between a replica and its
master (`checksum_comparison`)."""

from __future__ import annotations

import asyncio
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from epochmq_broker.replication.ha.checksum_comparison import LogRange
from epochmq_protocol.checksum import crc32
from epochmq_store.log.commit_log import CommitLog

WAITING_MAX: Final = 4
"""The most ranges that may wait for the thread."""
READ_BYTES: Final = 64 * 1024


class ChecksumsBusyError(Exception):
    """Too many ranges wait for their checksums; the caller may try again later."""


class LogChecksums:
    """The checksums of one commit log."""

    def __init__(self, commit_log: CommitLog) -> None:
        self._log = commit_log
        self._executor: ThreadPoolExecutor | None = None
        self._waiting = 0

    async def of(self, log_range: LogRange) -> bytes:
        """The CRC-32 of each chunk of the range, four bytes each, big-endian. Raises ValueError if the log
        lacks a part of the range, OSError if it cannot be read, and ChecksumsBusyError."""
        if self._waiting >= WAITING_MAX:
            raise ChecksumsBusyError
        pieces = self._pieces(log_range)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="ha-compare")
        self._waiting += 1
        try:
            # The files may expire meanwhile, and their descriptors be reused. These are duplicates for the
            # thread, which closes them even if the caller was cancelled.
            job = self._executor.submit(_checksums, pieces, log_range.chunk)
            return await asyncio.shield(asyncio.wrap_future(job))
        finally:
            self._waiting -= 1

    def stop(self) -> None:
        """Ends the thread after the range that it reads now."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None

    def _pieces(self, wanted: LogRange) -> list[tuple[int, int, int]]:
        """(descriptor, position in the file, bytes) of each file that the range touches."""
        pieces: list[tuple[int, int, int]] = []
        try:
            position = wanted.start
            while position < wanted.end:
                file = self._log.files.find(position)
                if file is None or position >= file.start + file.wrote:
                    raise ValueError(f"the log has no byte at offset {position}")
                size = min(file.start + file.wrote, wanted.end) - position
                pieces.append((os.dup(file.fd), position - file.start, size))
                position += size
        except BaseException:
            for descriptor, _, _ in pieces:
                os.close(descriptor)
            raise
        return pieces


def _checksums(pieces: list[tuple[int, int, int]], chunk: int) -> bytes:
    """Reads the pieces and computes the checksums; runs on the thread. A chunk may cross the end of a
    file."""
    checksums: list[int] = []
    crc = filled = 0
    try:
        for descriptor, at, left in pieces:
            while left:
                data = os.pread(descriptor, min(left, READ_BYTES), at)
                if not data:
                    raise OSError(f"a commit log file ends at {at}, {left} bytes too early")
                at += len(data)
                left -= len(data)
                view = memoryview(data)
                while view:
                    part = view[: chunk - filled]
                    crc = crc32(part, crc)
                    filled += len(part)
                    view = view[len(part) :]
                    if filled == chunk:
                        checksums.append(crc)
                        crc = filled = 0
        if filled:
            checksums.append(crc)
    finally:
        for descriptor, _, _ in pieces:
            os.close(descriptor)
    return struct.pack(f">{len(checksums)}I", *checksums)
