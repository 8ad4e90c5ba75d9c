"""Reads and writes `logDoubt.json`, which keeps a broker's `LogDoubt` over restarts.

The file exists only while there is a doubt to keep. A file that cannot be decoded counts as the worst case.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from epochmq_broker.replication.ha.log_doubt import LogDoubt
from epochmq_protocol.durable_files import replace_file, sync_directory

log = logging.getLogger(__name__)

FILE = "logDoubt.json"


class LogDoubtFile:
    """The file of one store. `content` is its present content. `load` and `save` block on the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content = LogDoubt()

    def load(self) -> None:
        """Reads the file. Raises OSError."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            self.content = LogDoubt()
            return
        try:
            self.content = msgspec.json.decode(data, type=LogDoubt)
        except msgspec.MsgspecError as error:
            log.error(
                "%s cannot be decoded (%s): the broker assumes that its log lacks acknowledged messages",
                self.path,
                error,
            )
            self.content = LogDoubt(in_doubt=True, gives_up=True, verify_all=True)

    def save(self, doubt: LogDoubt) -> None:
        """Writes the doubt durably. Raises OSError; the file and `content` are then unchanged."""
        if doubt == self.content:
            return
        if doubt == LogDoubt():
            self.path.unlink(missing_ok=True)
            sync_directory(self.path.parent)
        else:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, msgspec.json.encode(doubt))
        self.content = doubt
