"""Syncs many written files together."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from epochmq_protocol.durable_files import sync_directory
from epochmq_store.files.queue_files import QueueFile

FILES_MAX: Final = 64
"""Beyond so many files the whole file system is synced: one journal commit and one flush of the disk for all
files, instead of one for each."""


class FileSystemSync:
    """Syncs the files of one file system. A descriptor of it stays open, so that `syncfs` reports all errors
    since it was opened."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError."""
        self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self._fd)

    def sync(self, files: Iterable[QueueFile]) -> None:
        """Syncs files, and the directory entries of new ones. Skips deleted files. Raises OSError."""
        distinct = dict.fromkeys(files)
        if len(distinct) > FILES_MAX and has_reliable_syncfs():
            _sync_file_system(self._fd)
        else:
            _sync_each(distinct)
        for file in distinct:
            file.unsynced_parent_dirs = 0


def skip_errors_of_file_system(folder: Path) -> None:
    """Syncs a file system without raising its errors. The kernel reports a failed write-back to the next sync
    of the whole file system, even of a process that is started later, but to no descriptor that is opened
    after such a report."""
    if not has_reliable_syncfs():
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            _sync_file_system(fd)
    finally:
        os.close(fd)


def _sync_file_system(fd: int) -> None:
    assert _SYNCFS is not None
    if _SYNCFS(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _sync_each(files: Iterable[QueueFile]) -> None:
    folders: dict[Path, None] = {}
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            file.sync()
            folders.update(dict.fromkeys(list(file.path.parents)[: file.unsynced_parent_dirs]))
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):
            sync_directory(folder)


def has_reliable_syncfs() -> bool:
    """Whether `syncfs` reports pages that could not be written, as it does since Linux 5.8."""
    release = os.uname().release.split(".")
    try:
        return _SYNCFS is not None and (int(release[0]), int(release[1])) >= (5, 8)
    except (IndexError, ValueError):
        return False


_SYNCFS: Final = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
