"""Small text files that survive a crash in the middle of being written (RocketMQ MixAll.string2File), and
folders that one process has for itself."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from epochmq_protocol.durable_files import backup_of, replace_file


def read_text(path: Path) -> str | None:
    """The file's text; its `.bak` when the file is missing or empty; None when there is neither."""
    for candidate in (path, backup_of(path)):
        with contextlib.suppress(FileNotFoundError):
            text = candidate.read_text(encoding="utf-8", errors="replace")
            if text.strip():
                return text
    return None


def write_text(path: Path, text: str) -> None:
    """Replaces the file in one step and keeps the former text as `.bak`. OSError when it cannot be
    written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text.encode("utf-8"), keep_backup=True)


class FolderLock:
    """A folder that this process has for itself while it lives, however it ends: a file `lock` in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._handle: int | None = None

    def take(self) -> None:
        """Makes the folder where it is not there. OSError when it cannot be, or another process has it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            raise OSError(error.errno, "in use by another process", str(self.folder)) from None
        self._handle = handle

    def release(self) -> None:
        """Gives it up."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
