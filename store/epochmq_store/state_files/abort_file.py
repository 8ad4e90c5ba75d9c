"""Reads and writes the store's `abort` file. The file exists while a store is open, and records what a start
after a crash must know about the run that left it (`tail_state.py`). RocketMQ checks only whether it exists.

The file is overwritten in place by one write of a sector. So an update needs no disk space and no further
descriptor, and the identity of the file (inode and generation) stays the same. A copy of the directory has
another identity, which is how a start recognises a restored store.

A failed flush is recorded at once, on the thread that saw it. The record need not reach the disk. After a
restart of the process it is read from the same page cache whose other pages it warns of. After a restart of
the machine that page cache is gone, and all bytes that were reported as flushed are on disk. If the file
system rejects the write (it was remounted read-only), a mark in memory (`/dev/shm`) replaces the record.
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

from epochmq_formats.abort_file import (
    RECORD_BYTES,
    AbortRecord,
    FileIdentity,
    StoragePlace,
    TailState,
    decode,
    encode,
)
from epochmq_protocol.durable_files import sync_directory
from epochmq_store.files.mapped_file import as_disk_full
from epochmq_store.state_files.tail_state import CLEAN_TAIL, LogTail, assess_tail

log = logging.getLogger(__name__)

MARK_DIRECTORY: Final = Path("/dev/shm")  # in memory: its files do not survive a reboot
MACHINE_ID: Final = Path("/etc/machine-id")
DEVICES: Final = Path("/sys/dev/block")
VOLUME_NAMES: Final = ("dm/uuid", "wwid", "device/wwid", "serial", "device/serial")
"""The files of a block device that name a volume. A disk without any of them has no name."""
_FS_IOC_GETVERSION: Final = 0x80087601  # reads the inode's generation on ext4, xfs and btrfs


class AbortFile:
    """The abort file of one store. `begin` creates it, `remove` ends a run cleanly. `record_flush_failure`
    and `record_unflushed_acknowledgements` may be called on any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._lock = threading.Lock()
        self._record = AbortRecord(boot_id="", identity=None, acknowledged_unflushed=False)
        self._mark: Path | None = None
        self._previous_stop_was_clean = False

    def read_tail(self) -> LogTail:
        """The state in which the previous run left the end of the log. Raises OSError."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return assess_tail(None, boot_id(), None)
        try:
            left = decode(os.pread(fd, RECORD_BYTES, 0))
            present = identity_of(fd)
        finally:
            os.close(fd)
        if _is_own_mark(flush_failure_mark(present)):
            left = msgspec.structs.replace(left, flush_failed=True)
        return assess_tail(left, boot_id(), present, place_of(present.device))

    def begin(self, tail: LogTail, *, acknowledges_unflushed: bool) -> None:
        """Records a new run durably. It inherits the state of `tail` until `clear_inherited`. Raises
        DiskFullError or OSError."""
        try:
            self._fd = fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise as_disk_full(error) from error
        self._previous_stop_was_clean = tail is CLEAN_TAIL
        identity = identity_of(fd)
        inherited_unflushed = tail.acknowledged_unflushed and tail.state is not TailState.INTACT
        self._record = AbortRecord(
            boot_id=boot_id(),
            identity=identity,
            acknowledged_unflushed=acknowledges_unflushed or inherited_unflushed,
            inherited=tail.state,
            # The failure of the previous run counts until the suspect bytes are on disk (`record_rewritten`).
            flush_failed=tail.cache_suspect,
            recovering=tail is not CLEAN_TAIL and not tail.only_killed,
            dispatched_until=tail.dispatched_until,
            place=place_of(identity.device),
        )
        self._mark = flush_failure_mark(identity)
        try:
            with self._lock:
                self._write()
                os.fdatasync(fd)
            sync_directory(self._path.parent)
        except OSError as error:
            raise as_disk_full(error) from error

    def record_flush_failure(self) -> None:
        """Records a failed fsync. Raises nothing."""
        with self._lock:
            self._record = msgspec.structs.replace(self._record, flush_failed=True)
            if self._fd < 0:
                return
            try:
                self._write()
            except OSError as error:
                log.error("the failed fsync cannot be recorded in %s: %s", self._path, error)
                self._set_mark()
            with contextlib.suppress(OSError):
                os.fdatasync(self._fd)

    def record_rewritten(self) -> None:
        """Records that the suspect bytes of the previous run were rewritten and are on disk. Raises
        OSError."""
        with self._lock:
            self._record = msgspec.structs.replace(self._record, flush_failed=False)
            self._write()
            os.fdatasync(self._fd)
        if self._mark is not None:
            self._mark.unlink(missing_ok=True)

    def record_recovered(self) -> None:
        """Records the end of recovery: a later kill leaves nothing else to repair. Raises OSError."""
        with self._lock:
            if self._record.recovering:
                self._record = msgspec.structs.replace(self._record, recovering=False)
                self._write()

    def record_dispatched(self, offset: int) -> None:
        """Records that the files of queues and index have all messages before the one at this physical
        offset. The record is in the page cache, like those files; it counts after a kill only. On any thread.
        Raises OSError."""
        with self._lock:
            if self._fd >= 0:
                self._record = msgspec.structs.replace(self._record, dispatched_until=offset)
                self._write()

    def note_truncation(self, offset: int) -> None:
        """Withdraws `record_dispatched` before the log is truncated at `offset`, unless it is about earlier
        messages. Raises OSError."""
        if self._record.dispatched_until >= offset:
            self.record_dispatched(-1)

    def record_unflushed_acknowledgements(self) -> bool:
        """Records that messages are acknowledged before their flush from now on. False when the record says
        so already. The record is in the page cache; `sync` makes it durable. Raises OSError."""
        with self._lock:
            if self._record.acknowledged_unflushed:
                return False
            self._record = msgspec.structs.replace(self._record, acknowledged_unflushed=True)
            self._write()
        return True

    def clear_inherited(self) -> None:
        """Clears the inherited state: the bytes that the log lacked are restored, or no acknowledged message
        was among them. Blocks on the disk. Raises OSError."""
        with self._lock:
            self._record = msgspec.structs.replace(self._record, inherited=TailState.INTACT)
            self._write()
            os.fdatasync(self._fd)

    def sync(self) -> None:
        """Syncs the record to disk; on any thread. Raises OSError."""
        with self._lock:
            if self._fd >= 0:
                os.fdatasync(self._fd)

    def abandon(self) -> None:
        """Ends a failed start. If the previous stop was clean and no fsync failed, the next start finds a
        clean stop again, because the changes of a start can be repeated. Raises nothing."""
        begun = self._fd >= 0
        self.close()
        if begun and self._previous_stop_was_clean and not self._record.flush_failed:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Closes the file and leaves it for the next start."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def remove(self) -> None:
        """Removes the file after a clean stop. Raises OSError."""
        self.close()
        self._path.unlink(missing_ok=True)
        sync_directory(self._path.parent)

    def _write(self) -> None:
        data = encode(os.getpid(), self._record).ljust(RECORD_BYTES, b"\n")
        if os.pwrite(self._fd, data, 0) != len(data):
            raise OSError(f"{self._path}: short write")

    def _set_mark(self) -> None:
        if self._mark is None:
            return
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(self._mark, flags, 0o600))
        except OSError as error:
            log.error("the failed fsync cannot be recorded in %s either: %s", self._mark, error)


def identity_of(fd: int) -> FileIdentity:
    """The identity of an open file. Raises OSError."""
    status = os.fstat(fd)
    generation = 0
    with contextlib.suppress(OSError):
        (generation,) = struct.unpack("=i", fcntl.ioctl(fd, _FS_IOC_GETVERSION, bytes(8))[:4])
    return FileIdentity(status.st_ino, generation, status.st_dev)


def flush_failure_mark(identity: FileIdentity) -> Path:
    """The path of the mark that replaces the record of a failed fsync."""
    name = f"epochmq-flush-failed-{identity.device}-{identity.inode}-{identity.generation}"
    return MARK_DIRECTORY / name


def _is_own_mark(mark: Path) -> bool:
    """Whether the mark exists and belongs to this user: every user may write into the directory."""
    try:
        return mark.lstat().st_uid == os.geteuid()
    except OSError:
        return False


def place_of(device: int) -> StoragePlace:
    """The place of the store on this device: what the machine and the kernel tell of it."""
    machine = _short_line(MACHINE_ID)
    block = DEVICES / f"{os.major(device)}:{os.minor(device)}"
    # Of a partition, the disk is the directory above.
    disks = [block, block.resolve().parent] if block.exists() else []
    names = (_short_line(disk / name) for disk in disks for name in VOLUME_NAMES)
    return StoragePlace(machine, next((name for name in names if name), ""))


def _short_line(path: Path) -> str:
    """The printable text in the first line of a file, 64 characters at most; empty without one."""
    try:
        lines = path.read_bytes()[:256].decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "".join(filter(str.isprintable, lines[0] if lines else "")).strip()[:64]


def boot_id() -> str:
    """The kernel's id of this boot; a unique name if the kernel does not provide one."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"unknown-{os.getpid()}-{time.monotonic_ns()}"
