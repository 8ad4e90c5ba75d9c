"""Reads and writes `epochFileCheckpoint`, the epochs of a log on disk (RocketMQ's `CheckpointFile`).

The file is replaced as a whole and durably, and the former content is kept as `.bak`. An epoch is on disk
before any byte written in it is served. As in RocketMQ, an empty list is never written, because RocketMQ
takes an empty file for a broken one. When the last epoch is removed it therefore stays in the file, and the
next handshake compares it again.
"""

from __future__ import annotations

import logging
from pathlib import Path

from epochmq_broker.replication.ha.epochs import Epochs
from epochmq_protocol.durable_files import backup_of, make_directory, replace_file
from epochmq_protocol.epoch_entries import EpochEntry, format_epoch_file, parse_epoch_file
from epochmq_protocol.errors import RemoteProtocolError
from epochmq_store.log.damaged_ranges import REFILL

log = logging.getLogger(__name__)


class EpochFile:
    """The epochs of one log and the file that keeps them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.epochs = Epochs()

    def load(self) -> None:
        """Reads the file, or its `.bak` if the file is missing, empty or broken. Raises RemoteProtocolError
        if neither can be read and one is broken: the epochs must not be guessed."""
        broken: RemoteProtocolError | None = None
        for candidate in (self.path, backup_of(self.path)):
            if not candidate.exists():
                continue
            text = candidate.read_text(encoding="utf-8", errors="replace")
            if not text.strip():
                continue
            try:
                self.epochs = Epochs(parse_epoch_file(text))
                return
            except RemoteProtocolError as error:
                log.error("%s: %s", candidate, error)
                broken = RemoteProtocolError(
                    f"{candidate}: {error}. Restore the file from a copy of this store, or {REFILL}"
                )
        if broken is not None:
            raise broken

    def append(self, entry: EpochEntry) -> bool:
        """Appends an epoch and saves the file; False if the epoch is not greater than the last one. Raises
        OSError; the epoch is then neither saved nor in memory."""
        if not self.epochs.append(entry):
            return False
        try:
            self._save()
        except OSError:
            self.epochs.truncate_epochs_from(entry.epoch)
            raise
        return True

    def truncate_suffix(self, offset: int) -> None:
        """Removes the epochs that start at or after `offset`."""
        if self.epochs.truncate_suffix(offset):
            self._save()

    def truncate_epochs_from(self, epoch: int) -> None:
        """Removes this epoch and newer ones."""
        if self.epochs.truncate_epochs_from(epoch):
            self._save()

    def truncate_prefix(self, offset: int) -> None:
        """Removes the epochs that end at or before `offset`."""
        if self.epochs.truncate_prefix(offset):
            self._save()

    def _save(self) -> None:
        entries = self.epochs.entries
        if not entries:
            return
        make_directory(self.path.parent)
        replace_file(self.path, format_epoch_file(entries).encode(), keep_backup=True)
