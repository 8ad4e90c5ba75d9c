"""Reads and writes `config/consumerFilter.json`, the expressions that consumer groups have registered."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from epochmq_broker.tables.filters.consumer_filters import ConsumerFilterTable
from epochmq_store.state_files.state_file_io import read_state_file

log = logging.getLogger(__name__)

FILE = "consumerFilter.json"


class ConsumerFilterFile:
    """The file of one table. `write` writes it; on a running event loop, through another thread."""

    def __init__(
        self, directory: Path, table: ConsumerFilterTable, write: Callable[[Path, bytes], None]
    ) -> None:
        self._path = directory / FILE
        self._table = table
        self._write = write
        self._written_changes = 0

    def load(self, now_ms: int) -> None:
        """Fills the table from the file, or from its backup. Raises if both are damaged."""

        def restore(text: bytes) -> bool:
            self._table.restore(text, now_ms)
            return True

        read_state_file(self._path, restore)
        self._written_changes = self._table.changes

    def persist(self, now_ms: int, dead_for_ms: int) -> None:
        """Removes expressions that have been dead for so long, and writes the file if the table has
        changed."""
        self._table.clean(now_ms, dead_for_ms)
        if self._table.changes != self._written_changes:
            self._written_changes = self._table.changes
            self._write(self._path, self._table.encode())
