"""Restores stores from a backup.

A store is written beside its target, synced, and renamed at the end, so that an incomplete one is never taken
for a store. It has no identity, no epochs, no consume queues and no index: its first start founds a new
group, and builds queues and index from the log."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from epochmq_formats import restored_store
from epochmq_formats.restored_store import RestoredStore
from epochmq_formats.store_checkpoint import CHECKPOINT_BYTES, FIELDS
from epochmq_protocol import fastjson, fastjson_writer
from epochmq_protocol.durable_files import (
    PRIVATE_MODE,
    PUBLIC_MODE,
    make_directory,
    sync_directory,
    write_fully,
    write_new_file,
)
from epochmq_protocol.errors import RemoteProtocolError
from epochmq_protocol.topics import CID_RMQ_SYS_PREFIX
from epochmq_store.backups import backup_plan, catalog
from epochmq_store.backups.backup_errors import BackupError
from epochmq_store.backups.backup_plan import CONSUMER_OFFSETS, RestorePoint
from epochmq_store.backups.manifest import BackupManifest, LogPiece, StoredFile
from epochmq_store.backups.object_storage import ObjectStorage
from epochmq_store.backups.record_walk import walk

PRIVATE_FILE = "config/auth.json"
WALK_BYTES = 8 << 20
TARGETS_MAX = 64

ReportProgress = Callable[[str], None]


def restore(
    storage: ObjectStorage,
    targets: Sequence[Path],
    *,
    backup: str | None = None,
    group: str | None = None,
    point: RestorePoint = RestorePoint(),  # noqa: B008  # frozen
    order: str = "",
    report: ReportProgress = lambda text: None,
) -> RestoredStore:
    """Restores the newest backup, or the one with the id `backup`, to each of the directories, which must not
    exist or must be empty. `group` is the expected brokerName; `order` is recorded in the stores. Raises
    BackupError and OSError; no target counts as restored then, unless all of them were complete."""
    if not 1 <= len(targets) <= TARGETS_MAX or len({one.absolute() for one in targets}) != len(targets):
        raise BackupError(f"{len(targets)} directories, expected 1 to {TARGETS_MAX} different ones")
    for target in targets:
        _check_target(target)
    found = catalog.existing(storage)
    chosen = catalog.choose(storage, found, backup)
    if group is not None and chosen.group.broker_name != group:
        raise BackupError(
            f"backup {chosen.id} is of group {chosen.group.broker_name}, expected {group}: give another URL"
        )
    log = backup_plan.log_for(found, chosen, point)
    return _Restore(storage, found, log, point, order, report).run(targets)


def _check_target(target: Path) -> None:
    """Raises BackupError unless the directory may be restored to."""
    try:
        if any(target.iterdir()):
            raise BackupError(f"{target} is not empty: restore to a directory that does not exist")
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise BackupError(f"{target} is a file, expected a directory that does not exist") from None


def unfinished_prefix(target: Path) -> str:
    """The beginning of the name of the directory in which a store is written before it gets its name."""
    return f".{target.absolute().name}.restoring-"


class _Restore:
    def __init__(
        self,
        storage: ObjectStorage,
        found: Sequence[BackupManifest],
        log: BackupManifest,
        point: RestorePoint,
        order: str,
        report: ReportProgress,
    ) -> None:
        self._storage = storage
        self._found = found
        self._log = log
        self._point = point
        self._order = order
        self._report = report
        self._last_stored_ms = 0

    def run(self, targets: Sequence[Path]) -> RestoredStore:
        unfinished: list[Path] = []
        try:
            for target in targets:
                make_directory(target.absolute().parent)
                prefix = unfinished_prefix(target)
                unfinished.append(Path(tempfile.mkdtemp(prefix=prefix, dir=target.absolute().parent)))
            restored = self._fill(unfinished)
            for directory, target in zip(unfinished, targets, strict=True):
                directory.chmod(0o755)
                _rename(directory, target)
            return restored
        finally:
            for directory in unfinished:
                shutil.rmtree(directory, ignore_errors=True)

    def _fill(self, stores: Sequence[Path]) -> RestoredStore:
        end = self._write_log(stores)
        progress = backup_plan.progress_for(self._found, self._log, end)
        for file in backup_plan.files_to_restore(self._log, progress):
            self._report(file.path)
            self._write_file(stores, file, user_groups_only=progress is None)
        restored = RestoredStore(
            self._log.id,
            self._log.group.broker_name,
            self._log.group.mode,
            self._log.log_start,
            end,
            self._order,
        )
        fields = FIELDS.pack(self._last_stored_ms, 0, 0, 0, end)
        for store in stores:
            write_new_file(store / "checkpoint", [fields.ljust(CHECKPOINT_BYTES, b"\0")], PUBLIC_MODE)
            write_new_file(store / restored_store.FILE_NAME, [restored_store.encode(restored)], PUBLIC_MODE)
            for directory, _, _ in os.walk(store):
                sync_directory(Path(directory))
        return restored

    def _write_log(self, stores: Sequence[Path]) -> int:
        """Writes the log up to the point; returns its end."""
        log, end = self._log, self._log.log_start
        for store in stores:
            (store / "commitlog").mkdir()
        for piece in log.pieces:
            self._report(f"the log up to offset {piece.end}")
            size = piece.end - piece.start
            until = self._point.offset
            if until is not None and piece.start >= until:
                break
            whole = (until is None or piece.end <= until) and (
                self._point.time_ms is None or piece.last_stored_ms <= self._point.time_ms
            )
            parts = catalog.checked_parts(self._storage, piece.key, size, piece.sha256)
            if whole:
                end = self._write_piece(stores, piece, parts)
                self._last_stored_ms = max(self._last_stored_ms, piece.last_stored_ms)
                continue
            content = self._records_before_point(piece, b"".join(parts))
            if content:
                end = self._write_piece(stores, piece, [content])
            break
        return end

    def _records_before_point(self, piece: LogPiece, data: bytes) -> bytes:
        begins = piece.start - piece.start % self._log.segment_bytes
        room = begins + self._log.segment_bytes - piece.start
        until = self._point.offset
        kept = data if until is None else data[: max(until - piece.start, 0)]
        found = walk(kept, piece.start, room, self._point.time_ms)
        self._last_stored_ms = max(self._last_stored_ms, found.last_stored_ms)
        return kept[: found.size]

    def _write_piece(
        self, stores: Sequence[Path], piece: LogPiece, parts: Iterator[bytes] | Sequence[bytes]
    ) -> int:
        size = self._log.segment_bytes
        begins = piece.start - piece.start % size
        files = []
        try:
            for store in stores:
                path = store / "commitlog" / f"{begins:020}"
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, PUBLIC_MODE)
                files.append(descriptor)
                os.ftruncate(descriptor, size)
                os.lseek(descriptor, piece.start - begins, os.SEEK_SET)
            end = piece.start
            for part in parts:
                end += len(part)
                for descriptor in files:
                    write_fully(descriptor, part)
            for descriptor in files:
                os.fsync(descriptor)
        finally:
            for descriptor in files:
                os.close(descriptor)
        return end

    def _write_file(self, stores: Sequence[Path], file: StoredFile, *, user_groups_only: bool) -> None:
        mode = PRIVATE_MODE if file.path == PRIVATE_FILE else PUBLIC_MODE
        first = stores[0] / file.path
        parts: Iterator[bytes] | list[bytes]
        parts = catalog.checked_parts(self._storage, file.key, file.stored, file.sha256)
        size: int | None = file.size
        if user_groups_only and file.path == CONSUMER_OFFSETS:
            parts, size = [_without_system_groups(b"".join(parts), file.path)], None
        make_directory(first.parent)
        write_new_file(first, parts, mode, size)
        for store in stores[1:]:
            path = store / file.path
            make_directory(path.parent)
            shutil.copyfile(first, path)
            path.chmod(mode)
            with path.open("rb") as written:
                os.fsync(written.fileno())


def _rename(directory: Path, target: Path) -> None:
    """Makes a complete store the target. Raises BackupError if the target is not empty any more."""
    try:
        directory.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise BackupError(f"{target} is not empty any more: nothing was restored to it") from None
    with contextlib.suppress(OSError):
        sync_directory(target.absolute().parent)


def _without_system_groups(data: bytes, name: str) -> bytes:
    """A table of consumer offsets without the groups of the broker's own services, which begin anew."""
    try:
        table = fastjson.loads(data)
        table["offsetTable"] = {
            key: value
            for key, value in table["offsetTable"].items()
            if not str(key).partition("@")[2].startswith(CID_RMQ_SYS_PREFIX)
        }
    except (RemoteProtocolError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise BackupError(f"{name} of the backup is no table of consumer offsets: {error}") from None
    return fastjson_writer.dumps(table, pretty=True)
