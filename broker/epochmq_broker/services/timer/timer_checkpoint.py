"""Reads and writes `config/timercheck`: how far timer messages are in the wheel, and are delivered
(TimerCheckpoint).

The first 56 bytes are in use; they are also the body of the response to GET_TIMER_CHECK_POINT.
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct
from typing import Final

from msgspec import Struct as Record

from epochmq_protocol.durable_files import sync_directory
from epochmq_protocol.topics import DataVersion

FILE_NAME: Final = "timercheck"
FILE_BYTES: Final = 4096

_FIELDS = Struct(">qqqqqqq")
CHECKPOINT_BYTES: Final = _FIELDS.size


class TimerCheckpoint(Record, kw_only=True):
    """The numbers of the checkpoint."""

    read_time_ms: int = 0
    """All messages that are due before this time, epoch ms, are delivered."""
    log_flushed: int = 0
    """The timer log is on disk up to this position, and the wheel has its units."""
    queue_offset: int = 0
    """The messages before this offset of the timer topic's queue are in this broker's wheel, or delivered."""
    master_queue_offset: int = 0
    """The same of the master."""
    data_version: DataVersion = DataVersion()

    def encode(self) -> bytes:
        """The 56 bytes."""
        version = self.data_version
        return _FIELDS.pack(
            self.read_time_ms,
            self.log_flushed,
            self.queue_offset,
            self.master_queue_offset,
            version.state_version,
            version.timestamp,
            version.counter,
        )

    @classmethod
    def decode(cls, data: bytes) -> TimerCheckpoint:
        """Decodes the bytes of a file or a response; old brokers send no data version. Raises ValueError."""
        if len(data) < 32:
            raise ValueError(f"a timer checkpoint has {CHECKPOINT_BYTES} bytes, not {len(data)}")
        fields = _FIELDS.unpack(data[:CHECKPOINT_BYTES].ljust(CHECKPOINT_BYTES, b"\0"))
        return cls(
            read_time_ms=fields[0],
            log_flushed=fields[1],
            queue_offset=fields[2],
            master_queue_offset=fields[3],
            data_version=DataVersion(state_version=fields[4], timestamp=fields[5], counter=fields[6]),
        )


def read_checkpoint(path: Path) -> TimerCheckpoint:
    """The checkpoint in the file; zeros without one. Raises OSError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return TimerCheckpoint()
    return TimerCheckpoint.decode(data[:CHECKPOINT_BYTES].ljust(CHECKPOINT_BYTES, b"\0"))


def write_checkpoint(path: Path, data: bytes) -> None:
    """Writes an encoded checkpoint durably; on any thread. It lies in one sector, so that a power loss leaves
    the old one or the new one. Raises OSError."""
    is_new = not path.exists()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(fd).st_size < FILE_BYTES:
            os.ftruncate(fd, FILE_BYTES)
        os.pwrite(fd, data, 0)
        os.fdatasync(fd)
    finally:
        os.close(fd)
    if is_new:
        sync_directory(path.parent)
