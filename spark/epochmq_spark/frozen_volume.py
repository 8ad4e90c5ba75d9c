"""Shows a replica's store directory as it was at a cut, while the broker keeps writing.

Files stay open, so that segments which the broker deletes meanwhile can still be read."""

from __future__ import annotations

import json
import os
import resource
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from epochmq_formats.dledger_log import INDEX_UNIT_SIZE
from epochmq_formats.index_file import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES
from epochmq_spark import files_at_cut as cuts
from epochmq_spark.decode.index_entries import (
    index_header,
    slot_count,
)
from epochmq_spark.decode.state_tables import without_passwords
from epochmq_spark.files import DirectoryEntry, open_regular
from epochmq_spark.files_at_cut import VolumeCut

COPIED = (
    "brokerIdentity",
    "checkpoint",
    "compaction/position-checkpoint",
    "config/consumerFilter.json",
    "config/consumerOffset.json",
    "config/consumerOrderInfo.json",
    "config/delayOffset.json",
    "config/lmqConsumerOffset.json",
    "config/messageRequestMode.json",
    "config/subscriptionGroup.json",
    "config/timercheck",
    "config/timermetrics",
    "config/topicQueueMapping.json",
    "config/topics.json",
    "config/transactionMetrics",
)
AUTH = "config/auth.json"
"""Shown without passwords. Its copies beside it are not shown."""
PEER_FILES = ("currterm", "currterm.tmp", "checkpoint", "checkpoint.tmp", "checkpoint.bak")
"""Files of a DLedger peer that it replaces."""
EPOCHS = ("epochFileCheckpoint", "epochFileCheckpoint.bak")
QUEUE_ENDS = "queueEnds.json"
"""A file that no broker writes: {topic: {queue: end}} at the moment of the request, which consumers may have
reached by then."""
SMALL_BYTES_MAX = 64 * 1024 * 1024
ENTRY_UNITS_BYTES = INDEX_UNIT_SIZE << 17  # of an index file of DLedger read at a time
ENTRIES_BYTES = ENTRY_BYTES << 18  # of an index file read at a time
OPEN_MAX = 8192  # files that are kept open, as far as the limit of the process allows
DESCRIPTORS_FREE = 256  # descriptors left for connections and for files that are not kept open
FILES_MAX = 1_000_000


class FrozenVolumeError(OSError):
    """The directory cannot be shown."""


@dataclass(frozen=True)
class FileContent:
    """A file at the cut: `head`, then the file's own bytes up to `length`, then zeros up to `size`."""

    size: int
    length: int
    head: bytes = b""


def _order(path: Path) -> tuple[bool, str]:
    """Consume queues come last: they have the most files, and a broker deletes segments of the log first."""
    return path.name.startswith("consumequeue"), path.name


class FrozenVolume:
    """A store directory at a cut. Paths are relative to it."""

    def __init__(self, root: Path, cut: VolumeCut) -> None:
        """Copies the files that change in place first, then lists the files that only grow. Raises
        OSError."""
        self.root, self.cut = root, cut
        self._copies: dict[str, bytes] = {}
        self._lists: dict[str, list[DirectoryEntry]] = {}
        self._open: dict[str, int] = {}
        self._may_open = True
        self._contents: dict[str, FileContent] = {}
        self._lock = threading.Lock()
        self._peer = next((path.name for path in sorted(root.glob("dledger-*")) if path.is_dir()), None)
        self.end = cut.end if self._peer else self._last_record_end(cut.end)
        self._copy_files()
        self._list("", 0)
        for folder, entries in list(self._lists.items()):
            if folder in ("commitlog", f"{self._peer}/data"):
                self._lists[folder] = self._segments(entries)
        self._set_committed()

    def close(self) -> None:
        """Closes all files."""
        for file in self._open.values():
            os.close(file)
        self._open.clear()

    def _last_record_end(self, end: int) -> int:
        """The end of the last record at or below `end`: a cut is a number of bytes and may lie inside a
        record. It is `end` itself if the segment's records do not lead there."""
        names = [path.name for path in (self.root / "commitlog").glob("*") if path.name.isdecimal()]
        start = max((int(name) for name in names if int(name) < end), default=None)
        if start is None:
            return end
        path = self.root / "commitlog" / f"{start:020}"
        if not path.is_file() or path.is_symlink():
            return end
        with path.open("rb") as file:
            return cuts.last_record_end(file, start, end)

    def _copy_files(self) -> None:
        for name in (*COPIED, *(f"{self._peer}/{name}" for name in PEER_FILES)):
            if (data := self._read_small_file(name)) is not None:
                self._copies[name] = data
        if (data := self._read_small_file(AUTH)) is not None:
            self._copies[AUTH] = without_passwords(data)
        for name in EPOCHS:
            if (data := self._read_small_file(name)) is not None:
                self._copies[name] = cuts.epoch_file_at(data, self.end)
        if self.cut.epochs is not None:
            self._copies[EPOCHS[0]] = cuts.epoch_file_at(self.cut.epochs, self.end)
        if "checkpoint" in self._copies:
            self._copies["checkpoint"] = cuts.checkpoint_at(self._copies["checkpoint"], self.end)

    def _set_committed(self) -> None:
        """Sets the committed index of a DLedger peer to that of the cut, if the peer has committed more."""
        index = f"{self._peer}/index"
        for name in (f"{self._peer}/{file}" for file in PEER_FILES if file.startswith("checkpoint")):
            if name in self._copies:
                files = [one.name for one in self._lists.get(index, ()) if one.name.isdecimal()]
                lengths = {int(file): self.content(f"{index}/{file}").length for file in files}
                ends = [(start + length) // INDEX_UNIT_SIZE for start, length in lengths.items() if length]
                self._copies[name] = cuts.peer_checkpoint_at(self._copies[name], max(ends, default=0) - 1)

    def _read_small_file(self, name: str) -> bytes | None:
        try:
            with os.fdopen(open_regular(self.root / name), "rb") as file:
                return file.read(SMALL_BYTES_MAX)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _list(self, folder: str, count: int) -> int:
        """Lists and opens the files below a folder; the number of files so far."""
        listed = []
        for child in sorted((self.root / folder).iterdir(), key=_order):
            try:
                status = child.lstat()
            except FileNotFoundError:
                continue
            name = f"{folder}/{child.name}" if folder else child.name
            count += 1
            if count > FILES_MAX:
                raise FrozenVolumeError(f"{self.root}: more than {FILES_MAX} files")
            if child.is_symlink() or (name.startswith(AUTH) and name not in self._copies):
                continue
            if child.is_dir():
                count = self._list(name, count)
            else:
                self._keep_open(name)
            size = len(self._copies[name]) if name in self._copies else status.st_size
            listed.append(DirectoryEntry(child.name, not child.is_dir(), size))
        if not folder and EPOCHS[0] in self._copies and all(one.name != EPOCHS[0] for one in listed):
            listed.append(DirectoryEntry(EPOCHS[0], True, len(self._copies[EPOCHS[0]])))
        self._lists[folder] = listed
        return count

    def _keep_open(self, name: str) -> None:
        """Opens a file, if enough descriptors are left."""
        if self._may_open and name not in self._copies:
            try:
                descriptor = open_regular(self.root / name, os.O_NOFOLLOW)
            except OSError:
                return  # `open` raises it again for the request that needs the file
            self._open[name] = descriptor
            # A new descriptor is the lowest free one, so it tells about how many are in use.
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - DESCRIPTORS_FREE
            self._may_open = len(self._open) < OPEN_MAX and descriptor < limit

    def _segments(self, entries: list[DirectoryEntry]) -> list[DirectoryEntry]:
        """Removes segments that began beyond the cut. The first one stays, because a store without a segment
        counts as empty."""
        first = next((one.name for one in entries if one.name.isdecimal()), "")
        return [
            one
            for one in entries
            if not one.name.isdecimal() or one.name == first or int(one.name) < self.end
        ]

    def entries(self, folder: str) -> list[DirectoryEntry]:
        """The entries of a folder. Raises FileNotFoundError, NotADirectoryError."""
        listed = self._lists.get(folder)
        if listed is None:
            raise FileNotFoundError(2, "no such directory", folder)
        return listed

    def content(self, name: str) -> FileContent:
        """The content of a file at the cut. Raises OSError."""
        if name == QUEUE_ENDS:
            data = json.dumps(self._queue_ends()).encode()
            return FileContent(len(data), len(data), data)
        copy = self._copies.get(name)
        if copy is not None:
            return FileContent(len(copy), len(copy), copy)
        path = PurePosixPath(name)
        parent = "" if len(path.parts) == 1 else str(path.parent)
        entry = next((one for one in self._lists.get(parent, ()) if one.name == path.name), None)
        if entry is None or not entry.is_file:
            raise FileNotFoundError(2, "no such file", name)
        with self._lock:
            if name not in self._contents:
                self._contents[name] = self._content_at_cut(name, path, entry.size)
            return self._contents[name]

    def _content_at_cut(self, name: str, path: PurePosixPath, size: int) -> FileContent:
        top = path.parts[0]
        if str(path.parent) == f"{self._peer}/index" and path.name.isdecimal():
            return FileContent(size, self._entry_units_below_cut(name, size))
        if str(path.parent) in ("commitlog", f"{self._peer}/data") and path.name.isdecimal():
            return FileContent(size, max(min(size, self.end - int(path.name)), 0))
        if top == "consumequeue" and path.name.isdecimal():
            return FileContent(size, cuts.queue_bytes_below(self.bytes_of(name, 0, size), self.end))
        slots = slot_count(size) if top == "index" else None
        return self._index_at_cut(name, path, size, slots) if slots is not None else FileContent(size, size)

    def _entry_units_below_cut(self, name: str, size: int) -> int:
        """The bytes of an index file of DLedger up to its last unit of an entry below the cut."""
        kept = 0
        for at in range(0, size, ENTRY_UNITS_BYTES):
            part = cuts.entry_units_below(
                self.bytes_of(name, at, min(size - at, ENTRY_UNITS_BYTES)), self.end
            )
            if not part:
                break
            kept = at + part
        return kept

    def _index_at_cut(self, name: str, path: PurePosixPath, size: int, slots: int) -> FileContent:
        """The content of an index file. It is reconstructed if the file extends beyond the cut, or if it is
        the newest one, which may grow while it is read."""
        header = self.bytes_of(name, 0, HEADER_BYTES)
        is_newest = path.name == max(one.name for one in self._lists["index"])
        if len(header) < HEADER_BYTES or not (is_newest or index_header(header)[1] >= self.end):
            return FileContent(size, size)
        heads = np.frombuffer(self.bytes_of(name, HEADER_BYTES, slots * SLOT_BYTES), ">i4")
        *_, count = index_header(self.bytes_of(name, 0, HEADER_BYTES))
        start = HEADER_BYTES + slots * SLOT_BYTES
        stop = min(start + count * ENTRY_BYTES, size)

        def entries() -> Iterator[bytes]:
            for at in range(start, stop, ENTRIES_BYTES):
                yield self.bytes_of(name, at, min(stop - at, ENTRIES_BYTES))

        head, length = cuts.index_at(header, heads, entries, self.end)
        return FileContent(size, min(length, size), head)

    def _queue_ends(self) -> dict[str, dict[str, int]]:
        """The present end of each queue, by its last file."""
        ends: dict[str, dict[str, int]] = {}
        folder = self.root / "consumequeue"
        for topic in sorted(folder.iterdir()) if folder.is_dir() else ():
            for queue in sorted(topic.iterdir()) if topic.is_dir() else ():
                files = sorted(one for one in queue.iterdir() if one.name.isdecimal())
                for file in reversed(files):
                    units = cuts.unit_count(file.read_bytes())
                    if units or file is files[0]:
                        ends.setdefault(topic.name, {})[queue.name] = int(file.name) // 20 + units
                        break
        return ends

    def open(self, name: str) -> int:
        """A descriptor of the file. The caller must close it. Raises OSError."""
        kept = self._open.get(name)
        return os.dup(kept) if kept is not None else open_regular(self.root / name, os.O_NOFOLLOW)

    def bytes_of(self, name: str, start: int, count: int) -> bytes:
        """Bytes of the file as it is now. Raises OSError."""
        file = self.open(name)
        try:
            parts = []
            while count > 0 and (part := os.pread(file, min(count, 1 << 24), start)):
                parts.append(part)
                start, count = start + len(part), count - len(part)
            return b"".join(parts)
        finally:
            os.close(file)
