"""A disk without space for a Raft peer."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from epochmq_protocol import durable_files


class FullDisk:
    """Rejects every replacement of a state file in one directory, until `has_space` is set."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self.has_space = False
        self.rejected = 0
        real = durable_files._write_synced

        def write(path: Path, data: bytes, mode: int) -> None:
            if path.parent == folder and not self.has_space:
                self.rejected += 1
                raise OSError(errno.ENOSPC, "No space left on device")
            real(path, data, mode)

        patch.setattr(durable_files, "_write_synced", write)
