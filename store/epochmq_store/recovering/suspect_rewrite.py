"""Rewrites the bytes that a failed fsync may have lost.

After a failed write-back the kernel keeps the pages in the page cache and marks them clean. They can be read,
no later fsync writes them, and they are lost when the cache evicts them. A process that restarts in the same
boot of the machine sees that cache. So every page that the failure may concern is read and written back,
which makes it dirty. Then it is synced and dropped from the cache, so that recovery reads and checks the
bytes on the disk.

The log is suspect from the file at which recovery starts; according to the checkpoint everything before was
flushed. All other files are rewritten entirely.

A failed write-back that no sync has reported yet fails the next fsync of the file and the next `syncfs`,
although the disk works again. So every file is synced once before it is opened, without regard to errors.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from epochmq_protocol.durable_files import sync_directory, sync_file
from epochmq_store.files.file_system_sync import skip_errors_of_file_system
from epochmq_store.files.mapped_file import data_ranges
from epochmq_store.log.commit_log import CommitLog
from epochmq_store.recovering.recovery import crash_recovery_start
from epochmq_store.state_files.checkpoint import Checkpoint
from epochmq_store.store_config import StoreConfig

OTHER_FOLDERS: Final = (
    "consumequeue",
    "consumequeue_ext",
    "batchconsumequeue",
    "index",
    "timerlog",
    "compaction",
)
OTHER_FILES: Final = ("checkpoint", "timerwheel")
_CHUNK_BYTES = 1 << 20


def skip_earlier_errors(config: StoreConfig) -> None:
    """Lets the kernel report the failed write-backs so far, which later descriptors do not report again. No
    file is open."""
    for path in (*_files(config.commit_log_dirs), *_other_files(config)):
        with contextlib.suppress(OSError):
            sync_file(path)
    skip_errors_of_file_system(config.root)


def rewrite_suspect_files(config: StoreConfig, log: CommitLog, checkpoint: Checkpoint) -> None:
    """Rewrites and syncs every suspect file. Nothing was read through a mapping before, because the cache
    does not drop mapped pages. Raises OSError if the disk still fails; the store must not open then."""
    for path in suspect_files(config, log, checkpoint):
        _rewrite(path)
    for directory in _directories(config):
        sync_directory(directory)


def suspect_files(config: StoreConfig, log: CommitLog, checkpoint: Checkpoint) -> Iterator[Path]:
    """The files to rewrite."""
    if log.files.files:
        first = crash_recovery_start(config, log, checkpoint)
        yield from (file.path for file in log.files.files if file.start >= first.start)
    yield from _other_files(config)


def _other_files(config: StoreConfig) -> Iterator[Path]:
    yield from _files(config.root / folder for folder in OTHER_FOLDERS)
    yield from (path for path in (config.root / name for name in OTHER_FILES) if path.is_file())


def _files(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        yield from (path for path in sorted(folder.rglob("*")) if path.is_file())


def _rewrite(path: Path) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        for start, end in data_ranges(fd, 0, os.fstat(fd).st_size):
            while start < end:
                chunk = os.pread(fd, min(end - start, _CHUNK_BYTES), start)
                if not chunk:
                    break
                start += _write(fd, chunk, start)
        os.fsync(fd)
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _write(fd: int, chunk: bytes, at: int) -> int:
    view = memoryview(chunk)
    while view:
        done = os.pwrite(fd, view, at)
        view, at = view[done:], at + done
    return len(chunk)


def _directories(config: StoreConfig) -> Iterator[Path]:
    log_folders = (*config.commit_log_dirs, *config.read_only_log_dirs)
    for folder in (*log_folders, *(config.root / name for name in OTHER_FOLDERS)):
        if folder.is_dir():
            yield folder
            yield from (path for path in sorted(folder.rglob("*")) if path.is_dir())
    yield config.root
