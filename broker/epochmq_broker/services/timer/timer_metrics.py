"""Counts the pending timer messages of each topic, and keeps them in `config/timermetrics` (TimerMetrics).
Counts also how many entered and left the wheel since the start (DefaultStoreMetricsManager)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from epochmq_broker.config.clock import now_ms
from epochmq_broker.tables.metric_tables import HISTOGRAMS_MAX, Histogram
from epochmq_protocol.bodies import TimerMetricsSerializeWrapper, from_json, to_json
from epochmq_protocol.bodies_admin import TimerMetricsEntry
from epochmq_protocol.topics import DataVersion
from epochmq_store.state_files.state_file_io import read_state_file

FILE_NAME: Final = "timermetrics"
DELAY_BOUNDS: Final = (60, 600, 3600, 12 * 3600, 24 * 3600, 3 * 24 * 3600)
"""Upper bounds of the delays of timer messages, in seconds (DefaultStoreMetricsManager.getMetricsView)."""
DISTRIBUTION_BOUNDS_S: Final = (5, 60, 300, 900, 3600, 14_400, 28_800, 86_400)
"""Pending messages are counted by how soon they are due (TimerMetrics.timerDist)."""


class TimerTraffic:
    """The timer messages of one topic since the start."""

    __slots__ = ("delays_s", "dequeued", "enqueued")

    def __init__(self) -> None:
        self.enqueued = 0
        """Messages that entered the wheel, or were due already."""
        self.dequeued = 0
        """Messages that were due, those that entered the wheel again included."""
        self.delays_s = Histogram(DELAY_BOUNDS)
        """The times from the birth of a message to its delivery time."""


class TimerMetrics:
    """Real topic -> number of pending messages. A message that deletes another one counts -1 until it is
    due."""

    def __init__(self, directory: Path) -> None:
        self.table: dict[str, TimerMetricsEntry] = {}
        self.traffic: dict[str, TimerTraffic] = {}
        """By real topic, of at most `HISTOGRAMS_MAX` topics."""
        self._path = directory / FILE_NAME
        self._version = DataVersion(timestamp=now_ms())
        self._changes = 0  # since `_version`
        self._changed_ms = 0
        self._written = self._version

    @property
    def data_version(self) -> DataVersion:
        """The version of the table. Every change is counted; the sum is formed when it is asked for."""
        if self._changes:
            self._version = DataVersion(self._version.counter + self._changes, 0, self._changed_ms)
            self._changes = 0
        return self._version

    def load(self) -> None:
        """Reads the file, or its backup. Raises StateFileDamagedError if both are damaged."""
        found = read_state_file(self._path, lambda data: from_json(TimerMetricsSerializeWrapper, data))
        if found is not None:
            self.replace_all(found)
            self._written = self.data_version

    def add(self, topic: str, value: int) -> None:
        """Adds to the number of a topic."""
        entry = self.table.get(topic)
        if entry is None:
            entry = self.table[topic] = TimerMetricsEntry()
        entry.count += value
        entry.time_stamp = self._changed_ms = now_ms()
        self._changes += 1

    def count_enqueued(self, topic: str, delay_ms: int, times: int = 1) -> None:
        """Counts messages that entered the wheel, or were due already, `delay_ms` after their birth."""
        traffic = self._traffic(topic)
        traffic.enqueued += times
        if delay_ms >= 0:
            traffic.delays_s.record(delay_ms // 1000, times)

    def count_dequeued(self, topic: str, times: int = 1) -> None:
        """Counts messages that were due."""
        self._traffic(topic).dequeued += times

    def _traffic(self, topic: str) -> TimerTraffic:
        found = self.traffic.get(topic)
        if found is None:
            found = TimerTraffic()
            if len(self.traffic) < HISTOGRAMS_MAX:
                self.traffic[topic] = found
        return found

    def count(self, topic: str) -> int:
        """The number of a topic."""
        entry = self.table.get(topic)
        return 0 if entry is None else entry.count

    def remove(self, topic: str) -> None:
        """Forgets a deleted topic."""
        self.table.pop(topic, None)
        self.traffic.pop(topic, None)

    def encode(self) -> bytes:
        """Encodes the table, as in the file and in the response to GET_TIMER_METRICS. Until several deletions
        of one message are due, they count more than the message, and the number is shown as 0."""
        table = {
            topic: TimerMetricsEntry(count=max(entry.count, 0), time_stamp=entry.time_stamp)
            for topic, entry in self.table.items()
        }
        return to_json(TimerMetricsSerializeWrapper(timing_count=table, data_version=self.data_version))

    def replace_all(self, copy: TimerMetricsSerializeWrapper) -> None:
        """Makes the table a copy of a master's."""
        self.table = dict(copy.timing_count)
        self._version, self._changes = copy.data_version, 0

    def persist(self, write: Callable[[Path, bytes], None]) -> None:
        """Writes the file if anything has changed. Raises what `write` raises."""
        if self.data_version != self._written:
            self._written = self.data_version
            write(self._path, self.encode())
