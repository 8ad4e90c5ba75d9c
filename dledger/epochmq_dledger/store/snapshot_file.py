"""Stores a peer's latest snapshot: one file beside the log, replaced as a whole.
`epochmq_formats.dledger_peer_files` defines the format.

Java peers of DLedger 0.3.1 ignore the file. Those of 0.3.2, which RocketMQ 5.5 has, make a directory of that
name at their start, and leave it empty. A group with a Java peer takes no snapshots.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from epochmq_dledger.core.types import Snapshot
from epochmq_dledger.store.file_log import FileLog
from epochmq_formats.dledger_peer_files import (
    SNAPSHOT_HEADER_BYTES_MAX,
    SNAPSHOT_START_BYTES,
    decode_snapshot_start,
    encode_snapshot_header,
)
from epochmq_protocol.checksum import crc32
from epochmq_protocol.durable_files import sync_directory

log = logging.getLogger(__name__)


class SnapshotFile:
    """The snapshot file of one directory. `current` describes the snapshot in it, None without one."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "snapshot"
        self.current: Snapshot | None = None
        self._fd = -1
        self._data_at = 0

    def open(self) -> None:
        """Reads and checks the file. ValueError if it is damaged: the log may lack the entries that the
        snapshot covers, so an administrator must decide. The empty directory of a Java peer is removed."""
        if self.path.is_dir():
            self._remove_directory()
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            found = decode_snapshot_start(file.read(SNAPSHOT_START_BYTES))
            if found is None:
                raise ValueError(f"{self.path} is no snapshot of this version")
            size, crc = found
            header = file.read(min(size, SNAPSHOT_HEADER_BYTES_MAX))
            if len(header) != size or crc32(header) != crc:
                raise ValueError(f"{self.path} has a damaged header (CRC-32 or size)")
            snapshot = msgspec.json.decode(header, type=Snapshot)
            total = 0
            crc = 0
            while piece := file.read(1 << 20):
                total, crc = total + len(piece), crc32(piece, crc)
            if (total, crc) != (snapshot.size, snapshot.crc):
                raise ValueError(f"{self.path} has damaged data (CRC-32 or size)")
        self.set_current(snapshot, os.open(self.path, os.O_RDONLY))

    def _remove_directory(self) -> None:
        """Removes the directory that a Java peer has made. ValueError if there is something in it."""
        try:
            self.path.rmdir()
        except OSError as error:
            raise ValueError(
                f"{self.path} is a directory ({error.strerror}): expected a snapshot of EpochMQ, or "
                "the empty directory that a peer of RocketMQ 5.5 makes"
            ) from error
        sync_directory(self.path.parent)

    def save(self, snapshot: Snapshot, data: bytes) -> int:
        """Replaces the file durably, on a worker thread. Returns a descriptor for `set_current`. OSError: the
        file has not changed."""
        header = msgspec.json.encode(snapshot)
        temporary = self.path.with_name(self.path.name + ".tmp")
        with temporary.open("wb") as file:
            file.write(encode_snapshot_header(header))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        descriptor = os.open(temporary, os.O_RDONLY)
        temporary.replace(self.path)
        sync_directory(self.path.parent)
        return descriptor

    def set_current(self, snapshot: Snapshot, descriptor: int) -> None:
        """Makes the snapshot that `save` has written the current one, on the event loop's thread."""
        self.close()
        self._fd = descriptor
        self._data_at = os.fstat(descriptor).st_size - snapshot.size
        self.current = snapshot

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of the current snapshot's data."""
        return os.pread(self._fd, size, self._data_at + offset)

    def close(self) -> None:
        """Closes the file."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self.current = -1, None


def open_snapshot(log_file: FileLog, file: SnapshotFile, *, has_state_machine: bool) -> Snapshot | None:
    """Opens the snapshot beside an opened log. Resets a log that lacks the snapshot's last entry: a crash may
    have happened while a snapshot was installed. ValueError if entries are missing in both, and the peer has
    a state machine, which needs them; without one a log may begin at any entry."""
    begin = log_file.begin_index
    try:
        file.open()
    except ValueError as error:
        if begin > 0:
            raise
        log.warning("%s; the log has all entries and is replayed instead", error)
    snapshot = file.current
    if snapshot is None and begin > 0 and has_state_machine:
        raise ValueError(
            f"the log begins at entry {begin}, and {file.path} with the earlier entries is missing"
        )
    if snapshot is None:
        return None
    if begin > snapshot.index:
        raise ValueError(f"the log begins at entry {begin}, but {file.path} ends at {snapshot.index}")
    if log_file.entry(snapshot.index) != snapshot.entry:
        log_file.reset(snapshot.entry)
        log_file.erase_now()
    return snapshot
