"""Opens the files of a store that is to be backed up, while its broker may be writing.

Files of the log and other files that only grow stay open, so that those which the broker deletes meanwhile
can still be read. Small files are copied."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from epochmq_formats.pending_file import PENDING_SUFFIX
from epochmq_store.backups.backup_errors import BackupError
from epochmq_store.backups.backup_plan import is_progress
from epochmq_store.log.log_paths import LOG_PATHS_FILE
from epochmq_store.state_files.pending_file import read_pending

READ_BYTES = 4 << 20
COPIED_BYTES_MAX = 64 << 20
FILES_MAX = 100_000
CONFIG = "config"
_GROWING = ("timerlog", "compaction")
"""Directories with files that only grow, or are replaced."""
_LOG_FILE = re.compile(r"\d{20}")
_PARTIAL = re.compile(r".*\.(bak|tmp|pending)|\.unfinished.*")


class OpenFile:
    """A file of a store, open for reading. `size` is its size when it was opened."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self.size = os.fstat(self._descriptor).st_size

    def read(self, at: int, count: int) -> bytes:
        """Bytes at a position; fewer at the end. Raises OSError."""
        return os.pread(self._descriptor, count, at)

    def parts(self, start: int, end: int) -> Iterator[bytes]:
        """A range in parts. Raises BackupError if the file is shorter, and OSError."""
        while start < end:
            part = self.read(start, min(end - start, READ_BYTES))
            if not part:
                raise BackupError(f"{self.path} ends at {start}, before {end}")
            yield part
            start += len(part)

    def close(self) -> None:
        """Closes the file."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


class CopiedFile:
    """The content of a small file."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def parts(self, start: int, end: int) -> Iterator[bytes]:
        """A range, in one part."""
        yield self._data[start:end]

    def close(self) -> None:
        """Nothing is open."""


StateFile = OpenFile | CopiedFile


class OpenLog:
    """The open files of a log, by the offset of their first byte. Use it as a context."""

    def __init__(self, store: Path) -> None:
        """Opens all files. Raises BackupError if this is not a plain log without gaps, and OSError."""
        self.files: dict[int, OpenFile] = {}
        if any(store.glob("dledger-*")):
            raise BackupError(
                f"{store} has a DLedger log, of which no backup can be taken; back up the volumes of its "
                "stopped brokers instead"
            )
        try:
            for directory in _log_directories(store):
                for path in sorted(directory.iterdir()) if directory.is_dir() else ():
                    if _LOG_FILE.fullmatch(path.name):
                        self._open(path)
            self._check(store)
        except BaseException:
            self.close()
            raise

    def _open(self, path: Path) -> None:
        if len(self.files) >= FILES_MAX:
            raise BackupError(f"{path.parent} has more than {FILES_MAX} files")
        start = int(path.name)
        if start in self.files:
            raise BackupError(f"{path} and {self.files[start].path} are the same part of the log")
        with contextlib.suppress(FileNotFoundError):  # it has just expired
            self.files[start] = OpenFile(path)

    def _check(self, store: Path) -> None:
        self.files = dict(sorted(self.files.items()))
        starts = list(self.files)
        self.segment_bytes = self.files[starts[0]].size if starts else 0
        for at, start in enumerate(starts):
            size = self.files[start].size
            if size != self.segment_bytes or size == 0:
                raise BackupError(
                    f"{self.files[start].path} has {size} bytes, expected {self.segment_bytes} as the others"
                )
            if start != starts[0] + at * size:
                raise BackupError(f"{store}: the file of the log before {start} is missing")

    @property
    def start(self) -> int:
        """The offset of the first byte; 0 of an empty log."""
        return next(iter(self.files), 0)

    def file_at(self, offset: int) -> tuple[int, OpenFile] | None:
        """The start of the file that has this offset, and the file; None if there is none."""
        if not self.segment_bytes:
            return None
        start = offset - offset % self.segment_bytes
        file = self.files.get(start)
        return None if file is None else (start, file)

    def parts(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes of a range inside one file. Raises BackupError and OSError."""
        found = self.file_at(start)
        if found is None:
            raise BackupError(f"the log has no file at offset {start}")
        begins, file = found
        yield from file.parts(start - begins, end - begins)

    def close(self) -> None:
        """Closes all files."""
        for file in self.files.values():
            file.close()
        self.files = {}

    def __enter__(self) -> OpenLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _log_directories(store: Path) -> list[Path]:
    try:
        recorded = msgspec.json.decode((store / LOG_PATHS_FILE).read_bytes(), type=list[str])
    except FileNotFoundError:
        return [store / "commitlog"]
    except msgspec.MsgspecError as error:
        raise BackupError(f"{store / LOG_PATHS_FILE}: {error}, expected a list of directories") from None
    return [store / name for name in recorded]


def definition_files(store: Path) -> dict[str, StateFile]:
    """The state files that define topics, groups, users and the like, by their path. Raises BackupError and
    OSError."""
    return _config_files(store, progress=False)


def progress_files(store: Path) -> dict[str, StateFile]:
    """The state files that say how far messages were processed, by their path. Raises BackupError and
    OSError."""
    found = _config_files(store, progress=True)  # the timer's checkpoint before its log
    for folder in _GROWING:
        for path in sorted((store / folder).rglob("*")):
            name = path.relative_to(store).as_posix()
            if len(found) >= FILES_MAX:
                raise BackupError(f"{store / folder} has more than {FILES_MAX} files")
            if path.is_file() and not path.is_symlink() and not _PARTIAL.fullmatch(path.name):
                with contextlib.suppress(FileNotFoundError):
                    found[name] = OpenFile(path)
    return found


def _config_files(store: Path, *, progress: bool) -> dict[str, StateFile]:
    found: dict[str, StateFile] = {}
    folder = store / CONFIG
    names = (
        {path.name.removesuffix(PENDING_SUFFIX) for path in folder.iterdir()} if folder.is_dir() else set()
    )
    for name in sorted(names):
        path = folder / name
        if _PARTIAL.fullmatch(name) or path.is_dir() or is_progress(f"{CONFIG}/{name}") != progress:
            continue
        data = read_pending(path)
        if data is None:
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_size > COPIED_BYTES_MAX:
                    raise BackupError(f"{path} has more than {COPIED_BYTES_MAX} bytes")
                data = path.read_bytes()
        if data is not None:
            found[f"{CONFIG}/{name}"] = CopiedFile(data)
    return found


def measured(file: StateFile) -> tuple[int, str]:
    """The bytes of a file up to the zeros at its end, and their SHA-256. Raises BackupError and OSError."""
    length = at = 0
    for part in file.parts(0, file.size):
        used = len(part.rstrip(b"\0"))
        if used:
            length = at + used
        at += len(part)
    digest = hashlib.sha256()
    for part in file.parts(0, length):
        digest.update(part)
    return length, digest.hexdigest()
