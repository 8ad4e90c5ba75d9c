"""Reads the old files of the log in the background, and reports records that are broken on the disk.

The scrub reads only whole files below the confirmed offset, never the newest one. All its reads together stay
below `scrubBytesPerSecond`. It reads on a thread of its own, and keeps the page cache as it was.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.replication.scrub.schedule import (
    PassEnd,
    ReadBudget,
    ScrubSchedule,
    ScrubUnit,
    scrub_limit,
)
from epochmq_store.files.mapped_file import MappedFile
from epochmq_store.log.damaged_ranges import DamagedRange
from epochmq_store.log.record_scan import READ_BYTES, RecordScan, ScannedUnit
from epochmq_store.message_store import MessageStore

log = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 1.0
"""How often a change of the settings is noticed while there is nothing to read."""
ERROR_PAUSE_S: Final = 10.0
NAMED_MAX: Final = 20
"""The most damaged ranges that the log, or the state, names at a time."""
DEFAULT_RATE: Final = 4 << 20

Result = TypeVar("Result")


class LogScrub:
    """The scrub of one broker's log. Counts since the start."""

    def __init__(
        self, live: LiveConfig, store: MessageStore, *, confirmed: Callable[[], int], scans: bool = True
    ) -> None:
        """`confirmed`: up to where the log is the group's. `scans`: whether the files hold plain records."""
        self._live = live
        self._store = store
        self._confirmed = confirmed
        self._scans = scans
        self._executor: ThreadPoolExecutor | None = None
        self._task: asyncio.Task[None] | None = None
        self._schedule = ScrubSchedule(0.0)
        self.budget = ReadBudget()
        self.started_s = time.monotonic()
        self.scrubbed_bytes = 0
        self.passes = 0
        self.found = 0
        """Damaged ranges that were found, those that were repaired included."""
        store.on_expire.append(store.damage.forget_before)
        store.on_truncate.append(store.damage.forget_from)

    # Start and stop

    def start(self) -> None:
        """Starts the scrub; needs a running loop and an open store."""
        self.started_s = time.monotonic()
        first_s = self.started_s + self._live.current.scrub_first_delay_ms / 1000
        self._schedule = ScrubSchedule(first_s)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="store-scrub")
        if self._scans:
            self._task = asyncio.create_task(self._run(), name="scrub the commit log")

    async def stop(self) -> None:
        """Ends the scrub after the present read, at which it continues nowhere: the next start begins a new
        pass."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)

    @property
    def rate(self) -> int:
        """Bytes per second that all reads together may take. A broker whose own scrub is off still answers
        the others."""
        return self._live.current.scrub_bytes_per_second or DEFAULT_RATE

    async def on_thread(self, function: Callable[[], Result]) -> Result:
        """Runs a function on the scrub's thread."""
        if self._executor is None:
            raise RuntimeError("the scrub is not running")
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    async def pause_after(self, size: int) -> None:
        """Waits after a read of `size` bytes."""
        await asyncio.sleep(self.budget.pause_s(time.monotonic(), size, self.rate))

    # The passes

    async def _run(self) -> None:
        while True:
            try:
                await self._step()
            except FileNotFoundError:
                await asyncio.sleep(CHECK_INTERVAL_S)  # the file has expired
            except Exception:
                log.exception("the scrub of the log failed; it continues in %d s", ERROR_PAUSE_S)
                await asyncio.sleep(ERROR_PAUSE_S)

    async def _step(self) -> None:
        config, store = self._live.current, self._store
        rate = config.scrub_bytes_per_second
        if rate == 0:
            await asyncio.sleep(CHECK_INTERVAL_S)
            return
        step = self._schedule.next_step(
            time.monotonic(),
            first=max(store.min_phy_offset, 0),
            limit=self.limit,
            rate=rate,
            interval_s=config.scrub_pass_interval_ms / 1000,
        )
        if isinstance(step, ScrubUnit):
            await self._scrub(step)
        elif step is PassEnd.ENDED:
            self._pass_ended()
        else:
            await asyncio.sleep(min(step, CHECK_INTERVAL_S))

    @property
    def limit(self) -> int:
        """Up to which offset the log may be scrubbed now."""
        store = self._store
        files = store.log.files
        durable = min(self._confirmed(), store.flushed_where)
        return scrub_limit([file.start for file in files.files], files.file_size, durable)

    async def _scrub(self, wanted: ScrubUnit) -> None:
        """Reads one unit and reports what is damaged in it."""
        file = self._store.log.files.find(wanted.start)
        if file is None:
            return  # it has expired since
        unit = await self.scan(file, wanted.start, min(wanted.until, file.start + file.size))
        if unit is None:
            return
        self._report(unit, file)
        self._schedule.unit_done(unit.end)

    async def scan(self, file: MappedFile, start: int, until: int) -> ScannedUnit | None:
        """Reads records on the thread, with pauses. None if the log was truncated below their end
        meanwhile."""
        scan = RecordScan(file.path, file.start, file.size, start, until)
        try:
            while (unit := await self.on_thread(scan.step)) is None:
                await self._count(READ_BYTES)
            await self._count(min(READ_BYTES, unit.end - unit.start))
        finally:
            scan.close()
        return unit if self._store.log.files.find(start) is file and unit.end <= self.limit else None

    async def _count(self, size: int) -> None:
        self.scrubbed_bytes += size
        await self.pause_after(size)

    def _report(self, unit: ScannedUnit, file: MappedFile) -> None:
        new = self._store.damage.replace_within(unit.start, unit.end, unit.damaged)
        self.found += len(new)
        for one in new[:NAMED_MAX]:
            log.error("%s: %s", file.path, damage_text(one))
        if len(new) > NAMED_MAX:
            log.error("%s has %d more damaged ranges", file.path, len(new) - NAMED_MAX)

    def _pass_ended(self) -> None:
        self.passes += 1
        damaged = self._store.damage.total_bytes
        level = logging.ERROR if damaged else logging.INFO
        log.log(level, "the scrub has read the log up to %d: %d bytes are damaged", self.limit, damaged)

    # Status

    def damage_texts(self) -> list[str]:
        """The first damaged ranges that are known now, one sentence each."""
        return [damage_text(one) for one in self._store.damage.ranges[:NAMED_MAX]]

    def metric_values(self) -> dict[str, float]:
        """Metric name → value. The age of the last whole pass counts from the start while there was none."""
        ended_s = self._schedule.last_pass_ended_s
        since_s = self.started_s if ended_s is None else ended_s
        return {
            "broker_scrubbed_bytes_total": float(self.scrubbed_bytes),
            "broker_damaged_ranges_found_total": float(self.found),
            "broker_damaged_bytes": float(self._store.damage.total_bytes),
            "broker_scrub_age_seconds": time.monotonic() - since_s,
        }


def damage_text(damaged: DamagedRange) -> str:
    """A damaged range in a sentence."""
    return f"the log is damaged from offset {damaged.start} to {damaged.end}: {damaged.fault}"
