"""Counts the half messages without an end, by topic (RocketMQ's TransactionMetrics).

The file is `config/transactionMetrics`. As in RocketMQ, replicas do not copy it, and the count of a topic is
that of this broker: it becomes negative if another broker stored the half messages that this one ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from epochmq_broker.config.clock import now_ms
from epochmq_protocol import fastjson
from epochmq_protocol.bodies import from_json
from epochmq_protocol.integers import Long
from epochmq_protocol.topics import DataVersion
from epochmq_store.state_files.state_file_io import StateFileDamagedError, read_state_file, write_state_file

log = logging.getLogger(__name__)

FILE = "transactionMetrics"


class HalfMessageCount(msgspec.Struct, rename="camel"):
    """The half messages of one topic, and when the count changed last, as epoch ms."""

    count: Long = 0
    time_stamp: Long = 0


class _MetricsFile(msgspec.Struct, rename="camel"):
    data_version: DataVersion | None = None
    transaction_count: dict[str, HalfMessageCount] = {}


class TransactionMetrics:
    """Topic -> its number of half messages."""

    def __init__(self, directory: Path, write_file: Callable[[Path, bytes], None] = write_state_file) -> None:
        """`write_file` replaces the content of a state file durably."""
        self.counts: dict[str, HalfMessageCount] = {}
        self._write_file = write_file
        self._path = directory / FILE
        self._data_version = DataVersion(timestamp=now_ms())
        self._changes = self._written = 0

    def load(self) -> None:
        """Reads the file, or its backup. If both are damaged, the counts begin at 0: only metrics use
        them."""
        try:
            loaded = read_state_file(self._path, lambda data: from_json(_MetricsFile, data))
        except StateFileDamagedError as error:
            log.error("the numbers of half messages begin at 0: %s", error)
            return
        if loaded is not None:
            self.counts.update(loaded.transaction_count)
            if loaded.data_version is not None:
                self._data_version = loaded.data_version

    def add(self, topic: str, number: int) -> None:
        """Adds to the count of a topic."""
        count = self.counts.get(topic)
        if count is None:
            count = self.counts[topic] = HalfMessageCount()
        count.count += number
        count.time_stamp = now_ms()
        self._changes += 1

    def persist(self) -> None:
        """Writes the file if a count has changed. Raises OSError."""
        if self._changes == self._written:
            return
        version = self._data_version
        self._data_version = DataVersion(
            state_version=version.state_version,
            timestamp=now_ms(),
            counter=version.counter + self._changes - self._written,
        )
        self._written = self._changes
        self._write_file(self._path, fastjson.dumps(_MetricsFile(self._data_version, self.counts)))
