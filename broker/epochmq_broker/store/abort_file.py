"""The store's `abort` file: it exists while a store is open, and records what a start after a crash must know
of the life that left it (`tail_state.py`). RocketMQ looks only at whether it exists.

The file is written in place by one write of less than a sector, so that an update needs no space on a full
disk and no descriptor when none is left, and its identity (inode and generation) stays the same. A copy of
the directory has another identity, and that is how a restored store is recognised.

A failed flush is recorded at once, on the thread that saw it. The record need not reach the disk to be of
use. After a restart of the process it is read from the same page cache whose other pages it warns of. After a
restart of the machine that page cache is gone, and all that was reported as flushed is on disk. Where the
file system refuses the write (it was remounted read-only), a mark in memory (`/dev/shm`) stands in.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import struct
import threading
import time
from pathlib import Path
from typing import Final

import msgspec

from epochmq_broker.store.mapped_file import as_disk_full
from epochmq_broker.store.tail_state import (
    CLEAN_TAIL,
    AbortRecord,
    FileIdentity,
    LogTail,
    TailState,
    assess_tail,
    decode,
    encode,
)
from epochmq_protocol.durable_files import sync_directory

log = logging.getLogger(__name__)

RECORD_BYTES: Final = 512  # one sector: a write of it is whole or absent
MARK_DIRECTORY: Final = Path("/dev/shm")  # in memory, and gone with the boot; see `_marked`
_FS_IOC_GETVERSION: Final = 0x80087601  # the inode's generation: ext4, xfs, btrfs


class AbortFile:
    """The abort file of one store. `begin` makes it, `remove` ends a clean life. `flush_failed` and
    `acknowledges_unflushed` may be called on any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._lock = threading.Lock()
        self._record = AbortRecord(boot_id="", identity=None, acknowledged_unflushed=False)
        self._mark: Path | None = None
        self._clean_before = False

    def look(self) -> LogTail:
        """What the life before left. Raises OSError."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return assess_tail(None, boot_id(), None)
        try:
            left = decode(os.pread(fd, RECORD_BYTES, 0))
            present = identity_of(fd)
        finally:
            os.close(fd)
        if _marked(flush_failure_mark(present)):
            left = msgspec.structs.replace(left, flush_failed=True)
        return assess_tail(left, boot_id(), present)

    def begin(self, tail: LogTail, *, acknowledges_unflushed: bool) -> None:
        """Records a new life, durably. What it inherits goes on until `clear_inherited`. Raises DiskFullError
        or OSError."""
        try:
            self._fd = fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise as_disk_full(error) from error
        self._clean_before = tail is CLEAN_TAIL
        identity = identity_of(fd)
        inherited_unflushed = tail.acknowledged_unflushed and tail.state is not TailState.INTACT
        self._record = AbortRecord(
            boot_id=boot_id(),
            identity=identity,
            acknowledged_unflushed=acknowledges_unflushed or inherited_unflushed,
            inherited=tail.state,
            # Until the suspect bytes are on disk (`flushes_again`) this life has the failure of the last.
            flush_failed=tail.cache_suspect,
            recovering=tail is not CLEAN_TAIL and not tail.only_killed,
        )
        self._mark = flush_failure_mark(identity)
        try:
            with self._lock:
                self._write()
                os.fdatasync(fd)
            sync_directory(self._path.parent)
        except OSError as error:
            raise as_disk_full(error) from error

    def flush_failed(self) -> None:
        """Records that an fsync failed. Raises nothing."""
        with self._lock:
            self._record = msgspec.structs.replace(self._record, flush_failed=True)
            if self._fd < 0:
                return
            try:
                self._write()
            except OSError as error:
                log.error("%s cannot record the failed flush: %s", self._path, error)
                self._set_mark()
            with contextlib.suppress(OSError):
                os.fdatasync(self._fd)

    def flushes_again(self) -> None:
        """The suspect bytes of the life before have been written again and are on disk. Raises OSError."""
        with self._lock:
            self._record = msgspec.structs.replace(self._record, flush_failed=False)
            self._write()
            os.fdatasync(self._fd)
        if self._mark is not None:
            self._mark.unlink(missing_ok=True)

    def recovered(self) -> None:
        """The files are repaired: a kill from now on leaves nothing else to repair. Raises OSError."""
        with self._lock:
            if self._record.recovering:
                self._record = msgspec.structs.replace(self._record, recovering=False)
                self._write()

    def acknowledges_unflushed(self) -> bool:
        """Records that messages are acknowledged before they are flushed from now on; False when that is
        known. The record is in the page cache; `sync` makes it durable. Raises OSError."""
        with self._lock:
            if self._record.acknowledged_unflushed:
                return False
            self._record = msgspec.structs.replace(self._record, acknowledged_unflushed=True)
            self._write()
        return True

    def clear_inherited(self) -> None:
        """What the log lacked when it was opened is there again, or is known to be nobody's. Blocks on the
        disk. Raises OSError."""
        with self._lock:
            self._record = msgspec.structs.replace(self._record, inherited=TailState.INTACT)
            self._write()
            os.fdatasync(self._fd)

    def sync(self) -> None:
        """Makes the record durable; on any thread. Raises OSError."""
        with self._lock:
            if self._fd >= 0:
                os.fdatasync(self._fd)

    def abandon(self) -> None:
        """The start has failed. After a clean stop it counts as clean still, unless a flush failed: what a
        start changes can be done again. Raises nothing."""
        begun = self._fd >= 0
        self.close()
        if begun and self._clean_before and not self._record.flush_failed:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Leaves the file for the next start to find."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def remove(self) -> None:
        """The life has ended cleanly. Raises OSError."""
        self.close()
        self._path.unlink(missing_ok=True)
        sync_directory(self._path.parent)

    def _write(self) -> None:
        data = encode(os.getpid(), self._record).ljust(RECORD_BYTES, b"\n")
        if os.pwrite(self._fd, data, 0) != len(data):
            raise OSError(f"{self._path} was written in part")

    def _set_mark(self) -> None:
        if self._mark is None:
            return
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(self._mark, flags, 0o600))
        except OSError as error:
            log.error("%s cannot record the failed flush either: %s", self._mark, error)


def identity_of(fd: int) -> FileIdentity:
    """Which file an open descriptor is. Raises OSError."""
    status = os.fstat(fd)
    generation = 0
    with contextlib.suppress(OSError):
        (generation,) = struct.unpack("=i", fcntl.ioctl(fd, _FS_IOC_GETVERSION, bytes(8))[:4])
    return FileIdentity(status.st_ino, generation, status.st_dev)


def flush_failure_mark(identity: FileIdentity) -> Path:
    """The mark in memory that stands in for the record of a failed flush."""
    name = f"epochmq-flush-failed-{identity.device}-{identity.inode}-{identity.generation}"
    return MARK_DIRECTORY / name


def _marked(mark: Path) -> bool:
    """Whether the mark is there and was made by this user: everybody may write into the directory."""
    try:
        return mark.lstat().st_uid == os.geteuid()
    except OSError:
        return False


def boot_id() -> str:
    """Tells this run of the machine from every other. A name of its own when the kernel does not say."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"unknown-{os.getpid()}-{time.monotonic_ns()}"
