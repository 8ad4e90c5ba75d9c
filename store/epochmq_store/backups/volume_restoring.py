"""Restores a store to the root of a volume, which cannot be renamed as a directory can.

The store is written to a directory of the volume that gets its name, `STAGED`, when it is complete. Then its
entries are moved to the root, the file `restoredFrom.json` last. A restore that was killed is carried on by
the next one: an incomplete store is removed, a complete one is moved on. A volume with any other file is
never written to."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import msgspec

from epochmq_formats import restored_store
from epochmq_formats.restored_store import RestoredStore
from epochmq_protocol.durable_files import sync_directory
from epochmq_store.backups import restoring
from epochmq_store.backups.backup_errors import BackupError
from epochmq_store.backups.backup_plan import RestorePoint
from epochmq_store.backups.object_storage import ObjectStorage
from epochmq_store.backups.restoring import ReportProgress

STAGED: Final = ".restored"
OF_FILE_SYSTEMS: Final = frozenset({"lost+found"})
"""The names that a new file system may have."""


def restore_volume(
    storage: ObjectStorage,
    volume: Path,
    *,
    order: str,
    backup: str,
    point: RestorePoint,
    report: ReportProgress = lambda text: None,
) -> RestoredStore:
    """Restores a backup to an empty volume. `order` names who restores: if the volume has a store of the same
    order and backup, nothing is left to do. Raises BackupError and OSError; the volume has no store then, and
    the same call may be repeated."""
    staged = volume / STAGED
    if not staged.exists():
        present = _restored(volume)
        if present is not None:
            return _checked(present, volume, order, backup)
        _remove_unfinished(volume, staged)
        _check_empty(volume)
        restoring.restore(storage, [staged], backup=backup, point=point, order=order, report=report)
    complete = _restored(staged)
    if complete is None and _restored(volume) is None:
        raise BackupError(f"{staged} has no {restored_store.FILE_NAME}: {_new_volume(volume)}")
    if complete is not None:
        _checked(complete, volume, order, backup)
        _move(staged, volume)
    staged.rmdir()
    sync_directory(volume)
    moved = _restored(volume)
    assert moved is not None
    return _checked(moved, volume, order, backup)


def _restored(store: Path) -> RestoredStore | None:
    """What the store was restored from; None if it is no restored store."""
    path = store / restored_store.FILE_NAME
    try:
        return restored_store.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise BackupError(f"{path} is damaged ({error}): {_new_volume(store)}") from None


def _checked(found: RestoredStore, volume: Path, order: str, backup: str) -> RestoredStore:
    """The restored store, if it is of this order. Raises BackupError."""
    if (found.order, found.backup) != (order, backup):
        raise BackupError(
            f"{volume} has a store that another order restored from backup {found.backup}, expected none, or "
            f"the one of backup {backup}: {_new_volume(volume)}"
        )
    return found


def _check_empty(volume: Path) -> None:
    names = sorted(one.name for one in volume.iterdir() if one.name not in OF_FILE_SYSTEMS)
    if names:
        raise BackupError(f"{volume} is not empty, it has {', '.join(names[:5])}: {_new_volume(volume)}")


def _new_volume(volume: Path) -> str:
    return f"it stays as it is; a restore needs a new volume at {volume}"


def _remove_unfinished(volume: Path, staged: Path) -> None:
    for path in volume.glob(f"{restoring.unfinished_prefix(staged)}*"):
        shutil.rmtree(path)


def _move(staged: Path, volume: Path) -> None:
    """Moves the entries of a complete store to the root of the volume. A start after each of the moves finds
    the rest; the store is complete with the last one."""
    entries = sorted(staged.iterdir(), key=lambda one: (one.name == restored_store.FILE_NAME, one.name))
    for path in entries:
        target = volume / path.name
        if target.exists():
            raise BackupError(f"{target} exists already: {_new_volume(volume)}")
        if path.name == restored_store.FILE_NAME:
            sync_directory(volume)
        path.rename(target)
    sync_directory(volume)
    sync_directory(staged)
