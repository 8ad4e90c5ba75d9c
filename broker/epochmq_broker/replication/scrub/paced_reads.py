"""Reads the log for the scrub on a thread of its own, no faster than `scrubBytesPerSecond`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from typing import Final, TypeVar

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.replication.scrub.schedule import ReadBudget
from epochmq_protocol.checksum import crc32
from epochmq_store.files.mapped_file import MappedFile
from epochmq_store.log.commit_log import CommitLog
from epochmq_store.log.quiet_reader import QuietReader
from epochmq_store.log.record_checks import ENTRIES, PLAIN, PlainRecords
from epochmq_store.log.record_scan import READ_BYTES, RecordScan
from epochmq_store.log.scanned_unit import ScannedUnit

DEFAULT_RATE: Final = 4 << 20

Result = TypeVar("Result")


class PacedReads:
    """The reads of one broker: its own scrub's, and those for other replicas. They share one rate."""

    def __init__(self, live: LiveConfig, log: CommitLog) -> None:
        self._live = live
        self._log = log
        self._executor: ThreadPoolExecutor | None = None
        self._budget = ReadBudget()
        self.read_bytes = 0

    def start(self) -> None:
        """Starts the thread."""
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="store-scrub")

    def stop(self) -> None:
        """Ends the thread after the present read."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False)

    async def on_thread(self, function: Callable[[], Result]) -> Result:
        """Runs a function on the thread. Raises OSError if the reads have ended."""
        if self._executor is None:
            raise OSError("the broker is stopping")
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    async def checked(self, function: Callable[[], Result], size: int) -> Result:
        """Runs a function that reads so many bytes on the thread."""
        result = await self.on_thread(function)
        await self._pause_after(size)
        return result

    async def scan(
        self,
        file: MappedFile,
        start: int,
        until: int,
        end: int,
        on_record: Callable[[bytes, int, int, int], None] | None = None,
    ) -> ScannedUnit:
        """Checks the records of a file from the log offset `start` on, up to the first that ends at or after
        `until`, and none that ends after `end`. `on_record` gets each whole one, on the thread. Raises
        OSError if the file cannot be opened."""
        records = self.records_of(file)
        scan = RecordScan(
            file.path, file.start, file.size, start, until, records, end=end, on_record=on_record
        )
        try:
            while (unit := await self.on_thread(scan.step)) is None:
                await self._pause_after(READ_BYTES)
            await self._pause_after(min(READ_BYTES, unit.end - unit.start))
        finally:
            self._close_later(scan.close)
        return unit

    def records_of(self, file: MappedFile) -> PlainRecords:
        """What the records of a file of the log are: entries of a DLedger log, or plain ones."""
        return ENTRIES if self._log.header_bytes_at(file.start) else PLAIN

    async def checksum(self, start: int, end: int) -> int:
        """The CRC-32 of the log's bytes [start, end), which are in one file. Raises OSError."""
        crc = 0
        async with aclosing(self._chunks(start, end)) as chunks:
            async for chunk in chunks:
                crc = crc32(chunk, crc)
        return crc

    async def data(self, start: int, end: int) -> bytes:
        """The log's bytes [start, end), which are in one file. Raises OSError."""
        async with aclosing(self._chunks(start, end)) as chunks:
            return b"".join([chunk async for chunk in chunks])

    async def _chunks(self, start: int, end: int) -> AsyncGenerator[bytes]:
        file = self._log.files.find(start)
        if file is None or end > file.start + file.size:
            raise OSError(f"the log has no bytes from {start} to {end} in one file")
        reader = QuietReader(file.path)
        try:
            while start < end:
                size = min(end - start, READ_BYTES)
                chunk = await self.on_thread(partial(reader.read, start - file.start, size))
                yield chunk
                await self._pause_after(size)
                start += size
        finally:
            self._close_later(reader.close)

    def _close_later(self, close: Callable[[], None]) -> None:
        """Closes a file after the read that may run on the thread, although its caller was cancelled."""
        if self._executor is None:
            close()
        else:
            self._executor.submit(close)

    async def _pause_after(self, size: int) -> None:
        self.read_bytes += size
        # A broker whose own scrub is off still answers the others.
        rate = self._live.current.scrub_bytes_per_second or DEFAULT_RATE
        await asyncio.sleep(self._budget.pause_s(time.monotonic(), size, rate))
