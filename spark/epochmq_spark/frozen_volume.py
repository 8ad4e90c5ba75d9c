"""A replica's volume, held still: which files there are, and how much of each counts, from one moment on.

Files stay open, so that what a broker removes meanwhile (segments that are too old) can still be read."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from epochmq_spark import cut as cuts
from epochmq_spark.cut import VolumeCut
from epochmq_spark.decode.queue_units import (
    INDEX_ENTRY_BYTES,
    INDEX_HEADER_BYTES,
    index_header,
    slot_count,
)
from epochmq_spark.files import DirectoryEntry

KEPT = ("brokerIdentity", "checkpoint", "config/consumerOffset.json")
EPOCHS = ("epochFileCheckpoint", "epochFileCheckpoint.bak")
QUEUE_ENDS = "queueEnds.json"
"""Not a broker's file: {topic: {queue: end}} as the queues are when it is read, which a consumer may have
reached."""
SMALL_BYTES_MAX = 64 * 1024 * 1024
ENTRIES_BYTES = INDEX_ENTRY_BYTES << 18  # of an index are looked at at a time
OPEN_MAX = 8192
FILES_MAX = 1_000_000


class FrozenVolumeError(OSError):
    """The directory cannot be shown."""


@dataclass(frozen=True)
class FileContent:
    """A file: `head`, then the file's own bytes up to `length`, then zeros up to `size`."""

    size: int
    length: int
    head: bytes = b""


class FrozenVolume:
    """A store's directory as it was at a cut. Paths are relative to it."""

    def __init__(self, root: Path, cut: VolumeCut) -> None:
        """Looks at the directory, first at what changes in place, then at what only grows. Raises OSError."""
        self.root, self.cut = root, cut
        self._kept: dict[str, bytes] = {}
        self._lists: dict[str, list[DirectoryEntry]] = {}
        self._open: dict[str, int] = {}
        self._contents: dict[str, FileContent] = {}
        self._lock = threading.Lock()
        self.end = self._last_record_end(cut.end)
        self._keep()
        self._walk("", 0)
        for folder, entries in list(self._lists.items()):
            if folder == "commitlog":
                self._lists[folder] = self._segments(entries)

    def close(self) -> None:
        """Lets go of all files."""
        for file in self._open.values():
            os.close(file)
        self._open.clear()

    def _last_record_end(self, end: int) -> int:
        """Where the last record below `end` ends: how far a replica is, is told in bytes. `end` itself where
        the segment's records do not lead there."""
        names = [path.name for path in (self.root / "commitlog").glob("*") if path.name.isdecimal()]
        start = max((int(name) for name in names if int(name) < end), default=None)
        if start is None:
            return end
        path = self.root / "commitlog" / f"{start:020}"
        if not path.is_file() or path.is_symlink():
            return end
        with path.open("rb") as file:
            return cuts.last_record_end(file, start, end)

    def _keep(self) -> None:
        for name in KEPT:
            if (data := self._read_small_file(name)) is not None:
                self._kept[name] = data
        for name in EPOCHS:
            if (data := self._read_small_file(name)) is not None:
                self._kept[name] = cuts.epochs(data, self.end)
        if self.cut.epochs is not None:
            self._kept[EPOCHS[0]] = cuts.epochs(self.cut.epochs, self.end)
        if "checkpoint" in self._kept:
            self._kept["checkpoint"] = cuts.checkpoint(self._kept["checkpoint"], self.end)

    def _read_small_file(self, name: str) -> bytes | None:
        try:
            with (self.root / name).open("rb") as file:
                return file.read(SMALL_BYTES_MAX)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _walk(self, folder: str, seen: int) -> int:
        found = []
        for child in sorted((self.root / folder).iterdir()):
            try:
                status = child.lstat()
            except FileNotFoundError:
                continue
            name = f"{folder}/{child.name}" if folder else child.name
            seen += 1
            if seen > FILES_MAX:
                raise FrozenVolumeError(f"{self.root}: more than {FILES_MAX} files")
            if child.is_symlink():
                continue
            if child.is_dir():
                seen = self._walk(name, seen)
            else:
                self._hold(name)
            size = len(self._kept[name]) if name in self._kept else status.st_size
            found.append(DirectoryEntry(child.name, not child.is_dir(), size))
        if not folder and EPOCHS[0] in self._kept and all(one.name != EPOCHS[0] for one in found):
            found.append(DirectoryEntry(EPOCHS[0], True, len(self._kept[EPOCHS[0]])))
        self._lists[folder] = found
        return seen

    def _hold(self, name: str) -> None:
        if len(self._open) < OPEN_MAX and name not in self._kept:
            try:
                self._open[name] = os.open(self.root / name, os.O_RDONLY | os.O_NOFOLLOW)
            except OSError:
                return  # whoever asks for it is told

    def _segments(self, entries: list[DirectoryEntry]) -> list[DirectoryEntry]:
        """Without those that began behind the cut; the first stays, or there would be no log."""
        first = next((one.name for one in entries if one.name.isdecimal()), "")
        return [
            one
            for one in entries
            if not one.name.isdecimal() or one.name == first or int(one.name) < self.end
        ]

    def entries(self, folder: str) -> list[DirectoryEntry]:
        """What is in a folder. Raises FileNotFoundError, NotADirectoryError."""
        found = self._lists.get(folder)
        if found is None:
            raise FileNotFoundError(2, "no such directory", folder)
        return found

    def content(self, name: str) -> FileContent:
        """What counts of a file. Raises OSError."""
        if name == QUEUE_ENDS:
            data = json.dumps(self._queue_ends()).encode()
            return FileContent(len(data), len(data), data)
        kept = self._kept.get(name)
        if kept is not None:
            return FileContent(len(kept), len(kept), kept)
        path = PurePosixPath(name)
        parent = "" if len(path.parts) == 1 else str(path.parent)
        entry = next((one for one in self._lists.get(parent, ()) if one.name == path.name), None)
        if entry is None or not entry.is_file:
            raise FileNotFoundError(2, "no such file", name)
        with self._lock:
            if name not in self._contents:
                self._contents[name] = self._cut(name, path, entry.size)
            return self._contents[name]

    def _cut(self, name: str, path: PurePosixPath, size: int) -> FileContent:
        top = path.parts[0]
        if top == "commitlog" and path.name.isdecimal():
            return FileContent(size, max(min(size, self.end - int(path.name)), 0))
        if top == "consumequeue" and path.name.isdecimal():
            return FileContent(size, cuts.queue_bytes_below(self.bytes_of(name, 0, size), self.end))
        slots = slot_count(size) if top == "index" else None
        return self._index(name, path, size, slots) if slots is not None else FileContent(size, size)

    def _index(self, name: str, path: PurePosixPath, size: int, slots: int) -> FileContent:
        """Of an index file that goes beyond the cut, or may grow while it is read: how it was, or is now."""
        header = self.bytes_of(name, 0, INDEX_HEADER_BYTES)
        grows = path.name == max(one.name for one in self._lists["index"])
        if len(header) < INDEX_HEADER_BYTES or not (grows or index_header(header)[1] >= self.end):
            return FileContent(size, size)
        heads = np.frombuffer(self.bytes_of(name, INDEX_HEADER_BYTES, slots * 4), ">i4")
        *_, count = index_header(self.bytes_of(name, 0, INDEX_HEADER_BYTES))
        start = INDEX_HEADER_BYTES + slots * 4
        stop = min(start + count * INDEX_ENTRY_BYTES, size)

        def entries() -> Iterator[bytes]:
            for at in range(start, stop, ENTRIES_BYTES):
                yield self.bytes_of(name, at, min(stop - at, ENTRIES_BYTES))

        head, length = cuts.index(header, heads, entries, self.end)
        return FileContent(size, min(length, size), head)

    def _queue_ends(self) -> dict[str, dict[str, int]]:
        """How far each queue is by now, by its last file."""
        found: dict[str, dict[str, int]] = {}
        folder = self.root / "consumequeue"
        for topic in sorted(folder.iterdir()) if folder.is_dir() else ():
            for queue in sorted(topic.iterdir()) if topic.is_dir() else ():
                files = sorted(one for one in queue.iterdir() if one.name.isdecimal())
                for file in reversed(files):
                    units = cuts.queue_end(file.read_bytes())
                    if units or file is files[0]:
                        found.setdefault(topic.name, {})[queue.name] = int(file.name) // 20 + units
                        break
        return found

    def open(self, name: str) -> int:
        """A descriptor of the file, to be closed by the caller. Raises OSError."""
        held = self._open.get(name)
        return os.dup(held) if held is not None else os.open(self.root / name, os.O_RDONLY | os.O_NOFOLLOW)

    def bytes_of(self, name: str, start: int, count: int) -> bytes:
        """Bytes of the file as it is. Raises OSError."""
        file = self.open(name)
        try:
            parts = []
            while count > 0 and (part := os.pread(file, min(count, 1 << 24), start)):
                parts.append(part)
                start, count = start + len(part), count - len(part)
            return b"".join(parts)
        finally:
            os.close(file)
