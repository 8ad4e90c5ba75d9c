"""A peer's latest snapshot: one file beside the log, replaced as a whole.

    magic          19 bytes, b"epochmq snapshot 1\\n"
    header size    4, big-endian
    header CRC-32  4, big-endian
    header         JSON of `Snapshot`: last entry included, size and CRC-32 of the data, voters
    data           what the state machine wrote

Java peers do not look at it, and a group with a Java peer writes none.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from pathlib import Path

import msgspec

from epochmq_dledger.core.types import Snapshot
from epochmq_dledger.store.file_log import FileLog
from epochmq_protocol.durable_files import sync_directory

log = logging.getLogger(__name__)

MAGIC = b"epochmq snapshot 1\n"
_SIZES = struct.Struct(">II")
HEADER_MAX = 1 << 24


class SnapshotFile:
    """The snapshot of one folder. `current` is the one in the file, None where there is none."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "snapshot"
        self.current: Snapshot | None = None
        self._fd = -1
        self._data_at = 0

    def open(self) -> None:
        """Reads what is there. ValueError when it is not what was written: the log may have no other
        beginning, so it is for a person to decide what now."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            start = file.read(len(MAGIC) + _SIZES.size)
            if len(start) < len(MAGIC) + _SIZES.size or not start.startswith(MAGIC):
                raise ValueError(f"{self.path}: no snapshot of this version")
            size, crc = _SIZES.unpack_from(start, len(MAGIC))
            header = file.read(min(size, HEADER_MAX))
            if len(header) != size or zlib.crc32(header) != crc:
                raise ValueError(f"{self.path}: its header is garbled")
            found = msgspec.json.decode(header, type=Snapshot)
            total = 0
            crc = 0
            while piece := file.read(1 << 20):
                total, crc = total + len(piece), zlib.crc32(piece, crc)
            if (total, crc) != (found.size, found.crc):
                raise ValueError(f"{self.path}: its data is garbled")
        self.set_current(found, os.open(self.path, os.O_RDONLY))

    def save(self, snapshot: Snapshot, data: bytes) -> int:
        """Makes a snapshot durable in the place of the one before; for a worker thread. The value, a
        descriptor, is to be handed to `saved`. OSError: the one before is as it was."""
        header = msgspec.json.encode(snapshot)
        temporary = self.path.with_name(self.path.name + ".tmp")
        with temporary.open("wb") as file:
            file.write(MAGIC + _SIZES.pack(len(header), zlib.crc32(header)) + header)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        found = os.open(temporary, os.O_RDONLY)
        temporary.replace(self.path)
        sync_directory(self.path.parent)
        return found

    def set_current(self, snapshot: Snapshot, descriptor: int) -> None:
        """What `save` did is known to the loop's thread from here on."""
        self.close()
        self._fd = descriptor
        self._data_at = os.fstat(descriptor).st_size - snapshot.size
        self.current = snapshot

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of the current snapshot's data."""
        return os.pread(self._fd, size, self._data_at + offset)

    def close(self) -> None:
        """Lets go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self.current = -1, None


def open_snapshot(entries: FileLog, snapshots: SnapshotFile, *, is_needed: bool) -> Snapshot | None:
    """Opens the snapshot beside an opened log, and makes the log fit it: a crash may have come between the
    two, when a snapshot was installed. ValueError when entries are in neither; without a state machine
    (`is_needed`) a log may begin wherever it does."""
    begin = entries.begin_index
    try:
        snapshots.open()
    except ValueError as error:
        if begin > 0:
            raise
        log.warning("%s; the log is whole and is replayed instead", error)
    snapshot = snapshots.current
    if snapshot is None and begin > 0 and is_needed:
        raise ValueError(
            f"the log begins at entry {begin}, and {snapshots.path} with what was before is missing"
        )
    if snapshot is None:
        return None
    if begin > snapshot.index:
        raise ValueError(f"the log begins at entry {begin}, but {snapshots.path} ends at {snapshot.index}")
    if entries.entry(snapshot.index) != snapshot.entry:
        entries.reset(snapshot.entry)
        entries.erase_now()
    return snapshot
