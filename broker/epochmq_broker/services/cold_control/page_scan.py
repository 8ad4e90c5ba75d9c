"""Samples which pages of the commit log are in the page cache (RocketMQ's ColdDataCheckService).

With `coldDataScanEnable` a worker thread looks at all pages of the log every `timerColdDataCheckIntervalMs`,
and every `sampleSteps`-th page is kept. Without, every message far behind the end of the log counts as cold.
"""

from __future__ import annotations

import asyncio
import logging

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_protocol.memory_limit import memory_bytes
from epochmq_store.files.mapped_file import PAGE_BYTES
from epochmq_store.files.page_residency import resident_pages
from epochmq_store.message_store import MessageStore

log = logging.getLogger(__name__)


class PageScan:
    """Tells whether a byte of the log is cold."""

    def __init__(self, live: LiveConfig, store: MessageStore) -> None:
        self._live = live
        self._store = store
        self._memory_bytes = memory_bytes()
        self._samples: dict[int, bytes] = {}
        self._steps = live.current.sample_steps if live.current.sample_steps > 0 else 32
        self._running: asyncio.Task[None] | None = None

    def start_scan(self) -> None:
        """Starts a scan, unless one runs or scans are off."""
        config = self._live.current
        if not (config.cold_data_flow_control_enable and config.cold_data_scan_enable):
            self._samples = {}
        elif self._running is None or self._running.done():
            self._running = asyncio.create_task(self._scan(), name="scan the page cache")

    def stop(self) -> None:
        """Cancels the present scan."""
        if self._running is not None:
            self._running.cancel()

    async def _scan(self) -> None:
        samples: dict[int, bytes] = {}
        for file in list(self._store.log.files.files):
            pages = await asyncio.to_thread(resident_pages, file)
            samples[file.start] = pages[:: self._steps]
        self._samples = samples

    def is_far_behind(self, physical: int) -> bool:
        """Whether a record lies further behind the end of the log than `accessMessageInMemoryHotRatio` of the
        memory."""
        hot = self._memory_bytes * self._live.current.access_message_in_memory_hot_ratio // 100
        return self._store.max_phy_offset - physical > hot

    def is_cold(self, physical: int) -> bool:
        """Whether the record at this physical offset is cold: far behind, and not in the page cache if scans
        are on."""
        if not self.is_far_behind(physical):
            return False
        if not self._live.current.cold_data_scan_enable:
            return True
        size = self._live.current.mapped_file_size_commit_log
        sample = self._samples.get(physical - physical % size)
        if sample is None:
            return False
        index = physical % size // PAGE_BYTES // self._steps
        return index >= len(sample) or not sample[index]
