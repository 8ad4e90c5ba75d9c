"""Keeps the objects of backups: in a directory of this machine, or, through Arrow, in an object storage.

An object has a key, such as `manifests/ID.json`, and is written once. It exists as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from epochmq_protocol.durable_files import PRIVATE_MODE, make_directory, sync_directory, write_new_file
from epochmq_store.backups.backup_errors import BackupStorageError, BrokenBackupError

READ_BYTES = 4 << 20
KEYS_MAX = 10_000_000
_UNFINISHED = ".unfinished-"


class ObjectStorage(Protocol):
    """The objects of one URL. All methods block; several threads may call them. They raise BackupStorageError
    unless they say otherwise."""

    url: str

    def write(self, key: str, parts: Iterable[bytes]) -> None:
        """Writes an object durably. An error of `parts` leaves no object."""

    def read(self, key: str) -> Iterator[bytes]:
        """The content of an object in parts. Raises BrokenBackupError if it is missing."""

    def keys(self, folder: str) -> Iterator[tuple[str, float]]:
        """(key, time of the last change in seconds since 1970) of all objects below a folder."""

    def delete(self, key: str) -> None:
        """Deletes an object; none if it does not exist."""

    def is_there(self) -> bool:
        """Whether the directory or the bucket exists."""


class DirectoryObjects:
    """Objects as files below a directory. Only its owner can read them: they may hold passwords."""

    def __init__(self, root: Path, url: str) -> None:
        self.url = url
        self._root = root

    def is_there(self) -> bool:
        return self._root.is_dir()

    def write(self, key: str, parts: Iterable[bytes]) -> None:
        path = self._root / key
        unfinished = path.with_name(_UNFINISHED + secrets.token_hex(8))
        try:
            make_directory(path.parent)
            write_new_file(unfinished, parts, PRIVATE_MODE)
            unfinished.rename(path)
            sync_directory(path.parent)
        except BaseException as error:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise _failed("write", path, error) from None
            raise

    def read(self, key: str) -> Iterator[bytes]:
        path = self._root / key
        try:
            with path.open("rb", buffering=0) as file:
                while part := file.read(READ_BYTES):
                    yield part
        except (FileNotFoundError, NotADirectoryError):
            raise missing(str(path)) from None
        except OSError as error:
            raise _failed("read", path, error) from None

    def keys(self, folder: str) -> Iterator[tuple[str, float]]:
        try:
            for directory, _, names in os.walk(self._root / folder, onerror=_raise):
                for name in sorted(names):
                    path = Path(directory, name)
                    if not name.startswith(_UNFINISHED):
                        yield path.relative_to(self._root).as_posix(), path.stat().st_mtime
        except FileNotFoundError:
            return
        except OSError as error:
            raise _failed("list", self._root / folder, error) from None

    def delete(self, key: str) -> None:
        path = self._root / key
        try:
            path.unlink(missing_ok=True)
            for parent in path.relative_to(self._root).parents:
                if parent == Path():
                    break
                with contextlib.suppress(OSError):  # it has other objects
                    (self._root / parent).rmdir()
        except OSError as error:
            raise _failed("delete", path, error) from None


def _raise(error: OSError) -> None:
    raise error


def _failed(verb: str, path: Path, error: OSError) -> BackupStorageError:
    return BackupStorageError(f"cannot {verb} {path}: {error.strerror or error}")


def missing(place: str) -> BrokenBackupError:
    """The error for an object that a manifest names."""
    return BrokenBackupError(f"{place} is missing: the backup is incomplete")
