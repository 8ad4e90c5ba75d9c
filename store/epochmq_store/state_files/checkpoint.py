"""Reads and writes the store's checkpoint file: the store times up to which log, consume queues and index are
on disk (StoreCheckpoint)."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Final

from epochmq_formats.store_checkpoint import CHECKPOINT_BYTES, FIELDS
from epochmq_protocol.durable_files import sync_directory

MARGIN_MS: Final = 3000  # after a crash, messages of so long before the checkpoint are dispatched again


class Checkpoint:
    """Five numbers in a memory-mapped page. The attributes are the values that the next `store` writes."""

    __slots__ = (
        "_fd",
        "_map",
        "confirm_phy_offset",
        "index_msg_timestamp",
        "logics_msg_timestamp",
        "master_flushed_offset",
        "physic_msg_timestamp",
    )

    def __init__(self, path: Path) -> None:
        """Opens or creates the file. Raises OSError."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(fd).st_size < CHECKPOINT_BYTES:
                # Written, so that the page is backed by a disk block: see mapped_file.
                os.pwrite(fd, bytes(CHECKPOINT_BYTES - os.fstat(fd).st_size), os.fstat(fd).st_size)
                # A start takes a missing checkpoint beside a log for damage.
                sync_directory(path.parent)
            self._map = mmap.mmap(fd, CHECKPOINT_BYTES)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        fields: tuple[int, ...] = FIELDS.unpack_from(self._map, 0)
        self.physic_msg_timestamp, self.logics_msg_timestamp, self.index_msg_timestamp = fields[:3]
        self.master_flushed_offset, self.confirm_phy_offset = fields[3:]

    @property
    def log_timestamp(self) -> int:
        """Epoch ms. The log on disk has all messages stored before this time."""
        return max(0, self.physic_msg_timestamp - MARGIN_MS)

    @property
    def min_timestamp(self) -> int:
        """Epoch ms. Log and consume queues on disk have all messages stored before this time."""
        return max(0, min(self.physic_msg_timestamp, self.logics_msg_timestamp) - MARGIN_MS)

    @property
    def min_timestamp_index(self) -> int:
        """Epoch ms. Log, consume queues and index on disk have all messages stored before this time."""
        return min(self.min_timestamp, self.index_msg_timestamp)

    def store(self) -> bool:
        """Copies the numbers into the page; `flush` makes them durable. False when nothing changed."""
        numbers = FIELDS.pack(
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self.master_flushed_offset,
            self.confirm_phy_offset,
        )
        if self._map[: len(numbers)] == numbers:
            return False
        self._map[: len(numbers)] = numbers
        return True

    def withdraw_queues(self) -> None:
        """Writes durably that the consume queues have nothing, and keeps the attributes. If this start is
        interrupted, the next one compares the queues with the whole log. Raises OSError."""
        kept, self.logics_msg_timestamp = self.logics_msg_timestamp, 0
        if self.store():
            self.flush()
        self.logics_msg_timestamp = kept

    def flush(self) -> None:
        """Syncs the page to disk; on any thread. Raises OSError."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Stores, flushes and closes."""
        self.store()
        self.flush()
        self._map.close()
        os.close(self._fd)
