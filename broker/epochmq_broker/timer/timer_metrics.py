"""Counts the pending timer messages of each topic, and keeps them in `config/timermetrics` (TimerMetrics)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from epochmq_broker.clock import now_ms
from epochmq_broker.store.config_files import read_config
from epochmq_protocol.bodies import TimerMetricsSerializeWrapper, from_json, to_json
from epochmq_protocol.bodies_admin import TimerMetricsEntry
from epochmq_protocol.topics import DataVersion

FILE_NAME: Final = "timermetrics"


class TimerMetrics:
    """Real topic -> number of pending messages. A message that deletes another one counts -1."""

    def __init__(self, directory: Path) -> None:
        self.table: dict[str, TimerMetricsEntry] = {}
        self.data_version = DataVersion(timestamp=now_ms())
        self._path = directory / FILE_NAME
        self._written = self.data_version

    def load(self) -> None:
        """Reads the file, or its backup. Raises ConfigDamagedError if both are damaged."""
        found = read_config(self._path, lambda data: from_json(TimerMetricsSerializeWrapper, data))
        if found is not None:
            self.replace_all(found)
            self._written = self.data_version

    def add(self, topic: str, value: int) -> None:
        """Adds to the number of a topic."""
        entry = self.table.get(topic)
        if entry is None:
            entry = self.table[topic] = TimerMetricsEntry()
        entry.count += value
        entry.time_stamp = now_ms()
        self.data_version = self.data_version.next(entry.time_stamp)

    def count(self, topic: str) -> int:
        """The number of a topic."""
        entry = self.table.get(topic)
        return 0 if entry is None else entry.count

    def remove(self, topic: str) -> None:
        """Forgets a deleted topic."""
        self.table.pop(topic, None)

    def encode(self) -> bytes:
        """Encodes the table, as in the file and in the response to GET_TIMER_METRICS."""
        return to_json(TimerMetricsSerializeWrapper(timing_count=self.table, data_version=self.data_version))

    def replace_all(self, copy: TimerMetricsSerializeWrapper) -> None:
        """Makes the table a copy of a master's."""
        self.table = dict(copy.timing_count)
        self.data_version = copy.data_version

    def persist(self, write: Callable[[Path, bytes], None]) -> None:
        """Writes the file if anything has changed. Raises what `write` raises."""
        if self.data_version != self._written:
            self._written = self.data_version
            write(self._path, self.encode())
