"""Reads and writes `config/timercheck` (TimerCheckpoint)."""

from __future__ import annotations

import os
from pathlib import Path

from epochmq_formats.timer_checkpoint import CHECKPOINT_BYTES, FILE_BYTES, TimerCheckpoint
from epochmq_protocol.durable_files import sync_directory


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
