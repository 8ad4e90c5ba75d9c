"""Replaces small files so that they survive a crash of the process or the machine, and a power loss.

Every state file of the project is written by `replace_file`, in a directory that `make_directory` creates.
The order of the steps of `replace_file` makes it safe:

1. the new content is written in full under a temporary name and synced;
2. with `keep_backup`, the present file becomes `NAME.bak` (a second name for the same content, so that `NAME`
   never disappears);
3. the temporary file is renamed to `NAME`;
4. the directory is synced.

A crash before step 3 leaves the old content, a crash after step 4 the new content. A crash in between leaves
one of them, always complete. All functions block on the disk: beside an event loop, call them on a worker
thread.

`write_new_file` writes a large file in parts, for callers that name it when it is complete.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

BACKUP_SUFFIX = ".bak"
TEMPORARY_SUFFIX = ".tmp"


PRIVATE_MODE = 0o600
"""The permissions of a file that may hold passwords: only its owner can read it."""
PUBLIC_MODE = 0o644


def replace_file(path: Path, data: bytes, *, keep_backup: bool = False, mode: int | None = None) -> None:
    """Makes `data` the durable content of `path`, whose directory must exist. `keep_backup` keeps the
    former content in `NAME.bak` (RocketMQ's `MixAll.string2File`). The file gets the permissions `mode`, also
    if it and its backup had others; without `mode` it keeps those that it has, and a new file gets
    PUBLIC_MODE. OSError: `path` has its old content, or the new one if only the last sync failed; then
    neither is known to be durable."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        _write_synced(temporary, data, _mode_of(path) if mode is None else mode)
        if keep_backup:
            _keep_backup(path, mode)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def backup_of(path: Path) -> Path:
    """The file in which `replace_file` keeps the former content."""
    return path.with_name(path.name + BACKUP_SUFFIX)


def make_directory(path: Path) -> None:
    """Creates a directory with the parents that it lacks, durably: a power loss that keeps a synced file
    keeps the directories above it. Only the directories that this call creates are synced into their parents.
    OSError: some of them may exist."""
    missing = []
    directory = path
    while not directory.exists():
        missing.append(directory)
        directory = directory.parent
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)
    path.mkdir(exist_ok=True)  # FileExistsError for a file in its place


def sync_directory(path: Path) -> None:
    """Makes entries durable that were added to a directory, renamed in it or removed from it. OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Syncs a file, including what other processes have written to it. OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_fully(descriptor: int, data: bytes) -> None:
    """Writes all of `data` at the file's position: one `write` may take only a part. OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_new_file(path: Path, parts: Iterable[bytes], mode: int, size: int | None = None) -> None:
    """Writes a file that must not exist, and syncs it; with a `size`, zeros follow up to it. The caller syncs
    the directory. OSError; then, and if `parts` raises, a part of the file may be left."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        for part in parts:
            write_fully(descriptor, part)
        if size is not None:
            os.ftruncate(descriptor, size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _mode_of(path: Path) -> int:
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        return PUBLIC_MODE


def _write_synced(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        if os.fstat(descriptor).st_mode & 0o777 & ~mode:  # the file was there, for more readers
            os.fchmod(descriptor, mode)
        write_fully(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _keep_backup(path: Path, mode: int | None) -> None:
    backup = backup_of(path)
    link = backup.with_name(backup.name + TEMPORARY_SUFFIX)
    link.unlink(missing_ok=True)
    try:
        os.link(path, link)
    except FileNotFoundError:
        return  # there is no former content
    except OSError:  # a file system without hard links
        _write_synced(link, path.read_bytes(), path.stat().st_mode & 0o777)
    if mode is not None and link.stat().st_mode & 0o777 & ~mode:
        link.chmod(mode)
    link.replace(backup)
