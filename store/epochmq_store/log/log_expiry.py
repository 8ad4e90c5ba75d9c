"""Decides which log files expire, by age and by disk usage (CleanCommitLogService).

Whole files expire, oldest first, and never the one that is written:

- in the hours of `deleteWhen`, files older than `fileReservedTime`;
- above `diskMaxUsedSpaceRatio`, the same files at any hour;
- above `diskSpaceCleanForciblyRatio`, files of any age.

Above `diskSpaceWarningLevelRatio` the store rejects messages. Queues and index follow the log.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from epochmq_store.files.mapped_file import MappedFile
from epochmq_store.log.commit_log import CommitLog
from epochmq_store.log.log_paths import MultiPathMappedFileQueue
from epochmq_store.store_config import StoreConfig

MANUAL_EXPIRY_TICKS = 20  # a request to delete expired files is in force for so many ticks
_HOUR_MS = 3_600_000


class DiskUse(Struct, frozen=True):
    """Used share of the disks of log and queues, 0 to 1; -1 for a missing path. With several paths of the log
    `log` is that of the least used."""

    log: float
    queues: float
    log_paths: tuple[tuple[Path, float], ...] = ()


def disk_used(path: Path) -> float:
    """Used share of a disk, rounded up to whole percent (UtilAll.getDiskPartitionSpaceUsedPercent)."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return -1.0
    used = disk.f_blocks - disk.f_bfree
    entire = used + disk.f_bavail
    return -(-used * 100 // entire) / 100 if entire else -1.0


class LogExpiry:
    """Decides which log files expire; the store deletes them and expires queues and index."""

    def __init__(
        self,
        log: CommitLog,
        config: StoreConfig,
        *,
        used: Callable[[Path], float] = disk_used,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._log = log
        self._config = config
        self._used = used
        self._now = now
        self._manual = 0
        self._durable_offset: Callable[[], int] | None = None
        self.use = DiskUse(0.0, 0.0)

    def configure(self, config: StoreConfig) -> None:
        """Applies ratios and times."""
        self._config = config

    def keep_after(self, durable_offset: Callable[[], int]) -> None:
        """Keeps the file at `durable_offset()`, the last offset of the log that survives a power failure, and
        all later ones. Without this call any file may expire."""
        self._durable_offset = durable_offset

    def request_expiry(self) -> None:
        """Expires old files at the next ticks at any hour (DELETE_EXPIRED_COMMITLOG)."""
        self._manual = MANUAL_EXPIRY_TICKS

    def measure(self) -> DiskUse:
        """Measures the usage of the disks."""
        paths = tuple((path, self._used(path)) for path in self._config.commit_log_dirs)
        self.use = DiskUse(min(used for _, used in paths), self._used(self._config.root), paths)
        files = self._log.files
        if isinstance(files, MultiPathMappedFileQueue):
            files.full = frozenset(path for path, used in paths if used > self._forcible_ratio)
        return self.use

    @property
    def _forcible_ratio(self) -> float:
        return min(max(self._config.disk_space_clean_forcibly_ratio / 100, 0.30), 0.85)

    @property
    def is_full(self) -> bool:
        """Whether messages are rejected, according to the last measurement."""
        limit = min(max(self._config.disk_space_warning_level_ratio / 100, 0.35), 0.90)
        return max(self.use.log, self.use.queues) > limit

    def take_expired(self) -> list[MappedFile]:
        """Removes the files that expire now from the log, at most deleteFileBatchMax, according to the last
        measurement. The caller deletes them."""
        config = self._config
        used = max(self.use.log, self.use.queues)
        forcibly = used > self._forcible_ratio
        crowded = (
            forcibly
            or used > config.disk_max_used_space_ratio / 100
            or min(self.use.log, self.use.queues) < 0
        )
        if not crowded and not self._manual and not self._is_time():
            return []
        self._manual = max(self._manual - 1, 0)
        at_once = forcibly and config.clean_file_forcibly_enable
        oldest_ms = self._now() * 1000 - config.file_reserved_time * _HOUR_MS
        files = self._log.files.files
        expired: list[MappedFile] = []
        durable = self._durable_offset() if self._durable_offset is not None else None
        while len(files) > 1 and len(expired) < config.delete_file_batch_max:
            if durable is not None and files[1].start > durable:
                break
            if not at_once and files[0].modified_ms() > oldest_ms:
                break
            expired.append(files.pop(0))
        return expired

    def _is_time(self) -> bool:
        hour = time.localtime(self._now()).tm_hour
        return any(int(word) == hour for word in self._config.delete_when.split(";") if word.strip())
