"""`logDoubt.json`: what a broker may not rely on of its own log, kept over restarts (`log_doubt.LogDoubt`).

The file exists only while something is to be kept. One that cannot be read counts as the worst case."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from epochmq_broker.ha.log_doubt import LogDoubt
from epochmq_protocol.durable_files import replace_file, sync_directory

log = logging.getLogger(__name__)

FILE = "logDoubt.json"


class DoubtFile:
    """The file of one store. `now` is what it holds. Reading and writing block on the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = LogDoubt()

    def load(self) -> None:
        """Reads the file. OSError."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            self.now = LogDoubt()
            return
        try:
            self.now = msgspec.json.decode(data, type=LogDoubt)
        except msgspec.MsgspecError as error:
            log.error("%s cannot be read (%s): the log is taken to lack messages", self.path, error)
            self.now = LogDoubt(in_doubt=True, gives_up=True, verify_all=True)

    def save(self, doubt: LogDoubt) -> None:
        """Keeps it, durably. OSError, and then nothing has changed."""
        if doubt == self.now:
            return
        if doubt == LogDoubt():
            self.path.unlink(missing_ok=True)
            sync_directory(self.path.parent)
        else:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, msgspec.json.encode(doubt))
        self.now = doubt
