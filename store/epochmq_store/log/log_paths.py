"""Keeps the log's files in several directories (MultiPathMappedFileQueue).

`storePathCommitLog` names them, separated by commas. Each new file goes to the next directory in turn, except
to read-only ones (`readOnlyCommitLogStorePaths`) and to those whose disk is full. If all are full, it goes to
any that is not read-only.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from epochmq_protocol.durable_files import replace_file
from epochmq_store.files.mapped_file import MappedFileQueue, StoreDamagedError, file_name

LOG_PATHS_FILE: Final = "logPaths.json"
"""A file in the store's directory that names the log's directories, for the audit: those below the store's
directory relative to it, so that they belong to a copy of it, too. RocketMQ ignores it."""
DATA_PATHS_FILE: Final = "dataPaths.json"
"""The same for the data files of a DLedger log."""


class MultiPathMappedFileQueue(MappedFileQueue):
    """The files of a log in several directories. `full` are the directories whose disk is full."""

    def __init__(
        self, paths: Iterable[Path], read_only: Iterable[Path], file_size: int, *, keep_fd: bool
    ) -> None:
        """At least one of `paths` is not in `read_only`."""
        self._paths = sorted(set(paths), key=str)
        self._read_only = set(read_only)
        super().__init__(self._paths[0], file_size, keep_fd=keep_fd)
        self.full: frozenset[Path] = frozenset()

    def directories(self) -> list[Path]:
        """All directories that may hold files."""
        return sorted({*self._paths, *self._read_only}, key=str)

    def path_of(self, start: int) -> Path:
        """The path of a new file that starts at this offset."""
        writable = [path for path in self._paths if path not in self._read_only]
        available = [path for path in writable if path not in self.full] or writable
        return available[start // self.file_size % len(available)] / file_name(start)

    def load(self) -> None:
        """Opens the files of all directories. Raises StoreDamagedError, also if two of them have the same
        file, or OSError."""
        super().load()
        self.files.sort(key=lambda file: file.start)
        for before, after in zip(self.files, self.files[1:], strict=False):
            if before.start == after.start:
                raise StoreDamagedError(
                    f"{before.path} and {after.path} are the same part of the log; move one of them away"
                )


def record_paths(root: Path, name: str, directories: list[Path]) -> None:
    """Writes the directories of a log that has several, or one outside the store's directory, durably into
    the file `name` of that directory; of any other log removes the file. Raises OSError."""
    path = root / name
    if len(directories) < 2 and all(one.absolute().is_relative_to(root.absolute()) for one in directories):
        path.unlink(missing_ok=True)
        return
    data = msgspec.json.encode([_recorded(root.absolute(), one.absolute()) for one in directories])
    if not path.exists() or path.read_bytes() != data:
        replace_file(path, data)


def _recorded(root: Path, directory: Path) -> str:
    return str(directory.relative_to(root) if directory.is_relative_to(root) else directory)
