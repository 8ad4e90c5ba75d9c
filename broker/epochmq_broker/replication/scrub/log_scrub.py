"""Reads the log in the background, reports records that are broken on the disk, and has them
repaired from other replicas; and has the consume queues compared with the records.

The scrub reads up to the confirmed offset, where others still append behind it. It keeps the page cache as it
was.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.replication.scrub.damage_texts import damage_text
from epochmq_broker.replication.scrub.paced_reads import PacedReads
from epochmq_broker.replication.scrub.peer_copies import PeerCopies
from epochmq_broker.replication.scrub.queue_repair import QueueRepair
from epochmq_broker.replication.scrub.repair import LogRepair
from epochmq_broker.replication.scrub.schedule import PassEnd, ScrubSchedule, ScrubUnit, scrub_limit
from epochmq_broker.replication.scrub.served_copies import ServedCopies
from epochmq_store.files.mapped_file import MappedFile
from epochmq_store.log.damaged_ranges import DamagedRange
from epochmq_store.log.scanned_unit import ScannedUnit
from epochmq_store.message_store import MessageStore

log = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 1.0
"""How often a change of the settings is noticed while there is nothing to read."""
ERROR_PAUSE_S: Final = 10.0
RETRY_INTERVAL_S: Final = 60.0
"""How often damaged units are tried again between passes."""
RETRIED_MAX: Final = 64
NAMED_MAX: Final = 20
"""The most damaged ranges that the log, or the state, names at a time."""


class LogScrub:
    """The scrub of one broker's log. Counts since the start."""

    def __init__(
        self,
        live: LiveConfig,
        store: MessageStore,
        *,
        confirmed: Callable[[], int],
        peers: PeerCopies,
    ) -> None:
        """`confirmed`: up to where the log is the group's and on this disk."""
        self._live = live
        self._store = store
        self._confirmed = confirmed
        self._reads = PacedReads(live, store.log)
        self._repairs = LogRepair(store, self._reads, peers, limit=lambda: self.limit)
        self._queues = QueueRepair(store, self._reads, limit=lambda: self.limit)
        self.served = ServedCopies(self._reads, served=self._served_range)
        self._task: asyncio.Task[None] | None = None
        self._schedule = ScrubSchedule(0.0)
        self._damaged_units: dict[int, ScrubUnit] = {}
        self._retry_at_s = 0.0
        self._started_s = time.monotonic()
        self.passes = 0
        self.found = 0
        """Damaged ranges that were found, those that were repaired included."""
        store.on_expire.append(store.damage.forget_before)
        store.on_truncate.append(store.damage.forget_from)

    # Start and stop

    def start(self) -> None:
        """Starts the scrub; needs a running loop and an open store."""
        self._started_s = time.monotonic()
        self._schedule = ScrubSchedule(self._started_s + self._live.current.scrub_first_delay_ms / 1000)
        self._reads.start()
        self._task = asyncio.create_task(self._run(), name="scrub the commit log")

    async def stop(self) -> None:
        """Ends the scrub after the present read. The next start begins a new pass."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._reads.stop()

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
            unit = await self._scrub(step)
            if unit is None:
                await asyncio.sleep(CHECK_INTERVAL_S)
            else:
                self._schedule.unit_done(unit.end)
        elif step is PassEnd.ENDED:
            self._pass_ended()
        elif self._damaged_units and time.monotonic() >= self._retry_at_s:
            await self._retry()
        else:
            await asyncio.sleep(min(step, CHECK_INTERVAL_S))

    @property
    def limit(self) -> int:
        """Up to which offset the log may be scrubbed now."""
        store = self._store
        files = store.log.files
        durable = min(self._confirmed(), store.max_phy_offset)
        return scrub_limit([file.start for file in files.files], files.file_size, durable)

    def _served_range(self) -> tuple[int, int]:
        """What other replicas may ask for."""
        return max(self._store.min_phy_offset, 0), self.limit

    async def _scrub(self, wanted: ScrubUnit) -> ScannedUnit | None:
        """Reads one unit, compares it with the other replicas, and repairs what is broken; then the consume
        queues, by what it has read. Returns None if the log has ended before it meanwhile."""
        file = self._store.log.files.find(wanted.start)
        if file is None:
            return None
        end = min(self.limit, file.start + file.size)
        expected = self._queues.collector(self._store.log.header_bytes_at(file.start))
        unit = await self._reads.scan(file, wanted.start, min(wanted.until, end), end, expected.add)
        if not self._is_still_there(file, unit):
            return None
        damage = self._store.damage
        self._report(unit, file, [*unit.damaged, *self._differing(unit)])
        remaining = await self._repairs.run(unit, file)
        if remaining is not None and self._is_still_there(file, unit):
            self._report(unit, file, remaining)
        await self._queues.run(expected)
        if damage.first_within(unit.start, unit.end) is None:
            self._damaged_units.pop(unit.start, None)
        elif len(self._damaged_units) < RETRIED_MAX:
            self._damaged_units[unit.start] = wanted
        return unit

    def _differing(self, unit: ScannedUnit) -> list[DamagedRange]:
        """The known ranges of a unit whose records are whole, but differ elsewhere. Only a comparison tells
        whether they still do."""
        return [
            one
            for one in self._store.damage.ranges
            if not one.repairable
            and unit.start <= one.start < unit.end
            and not any(broken.start < one.end and one.start < broken.end for broken in unit.damaged)
        ]

    def _is_still_there(self, file: MappedFile, unit: ScannedUnit) -> bool:
        return self._store.log.files.find(unit.start) is file and unit.end <= self.limit

    async def _retry(self) -> None:
        """Tries again to repair what is damaged; another replica may be back."""
        self._retry_at_s = time.monotonic() + RETRY_INTERVAL_S
        for start, wanted in list(self._damaged_units.items()):
            if await self._scrub(wanted) is None:
                del self._damaged_units[start]

    def _report(self, unit: ScannedUnit, file: MappedFile, found: list[DamagedRange]) -> None:
        new = self._store.damage.replace_within(unit.start, unit.end, found)
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
        since_s = self._started_s if ended_s is None else ended_s
        return {
            "broker_scrubbed_bytes_total": float(self._reads.read_bytes),
            "broker_damaged_ranges_found_total": float(self.found),
            "broker_damaged_ranges_repaired_total": float(self._repairs.repaired),
            "broker_queue_units_repaired_total": float(self._queues.repaired),
            "broker_damaged_bytes": float(self._store.damage.total_bytes),
            "broker_scrub_age_seconds": time.monotonic() - since_s,
        }
