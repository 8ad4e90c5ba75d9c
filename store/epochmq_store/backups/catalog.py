"""Lists, verifies and deletes the backups of a URL.

A backup exists if its manifest exists. It is written last and deleted first."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from epochmq_store.backups import backup_plan
from epochmq_store.backups.backup_errors import BackupError, BrokenBackupError
from epochmq_store.backups.manifest import BACKUP_ID, BackupManifest, parse_manifest
from epochmq_store.backups.object_storage import ObjectStorage

MANIFESTS = "manifests"
OBJECTS = "objects"
MANIFEST_BYTES_MAX = 1 << 30
MANIFESTS_MAX = 100_000

Progress = Callable[[str], None]


def manifest_key(backup: str) -> str:
    """The object with the manifest of a backup."""
    return f"{MANIFESTS}/{backup}.json"


def ids(storage: ObjectStorage) -> list[str]:
    """The ids of all backups, the oldest first. Raises BackupStorageError."""
    found = []
    for key, _ in storage.keys(MANIFESTS):
        name = key.removeprefix(f"{MANIFESTS}/").removesuffix(".json")
        if key == manifest_key(name) and BACKUP_ID.fullmatch(name):
            found.append(name)
        if len(found) > MANIFESTS_MAX:
            raise BackupError(f"{storage.url} has more than {MANIFESTS_MAX} backups")
    return sorted(found)


def read_manifest(storage: ObjectStorage, backup: str) -> BackupManifest:
    """The manifest of a backup. Raises BackupError."""
    key, data = manifest_key(backup), bytearray()
    for part in storage.read(key):
        data += part
        if len(data) > MANIFEST_BYTES_MAX:
            raise BrokenBackupError(f"{storage.url}: {key} has more than {MANIFEST_BYTES_MAX} bytes")
    manifest = parse_manifest(bytes(data), f"{storage.url}: {key}")
    if manifest.id != backup:
        raise BrokenBackupError(f"{storage.url}: {key}: id: {manifest.id}, expected {backup}")
    return manifest


def manifests(storage: ObjectStorage) -> list[BackupManifest]:
    """All backups, the oldest first. Raises BackupError."""
    return [read_manifest(storage, one) for one in ids(storage)]


def existing(storage: ObjectStorage) -> list[BackupManifest]:
    """All backups, of which there must be one. Raises BackupError."""
    found = manifests(storage)
    if not found:
        raise BackupError(f"{storage.url} has no backup; take one with: epochmq backup GROUP --to URL")
    return found


def choose(storage: ObjectStorage, found: Sequence[BackupManifest], backup: str | None) -> BackupManifest:
    """The backup with this id, or the newest. Raises BackupError."""
    if backup is None:
        newest = backup_plan.newest(found)
        assert newest is not None
        return newest
    for one in found:
        if one.id == backup:
            return one
    raise BackupError(f"{storage.url} has no backup {backup}; list them with: epochmq backup list URL")


def checked_parts(storage: ObjectStorage, key: str, size: int, sha256: str) -> Iterator[bytes]:
    """The content of an object in parts; its end raises BrokenBackupError if it is not what the manifest
    says."""
    digest, read = hashlib.sha256(), 0
    for part in storage.read(key):
        digest.update(part)
        read += len(part)
        if read > size:
            break
        yield part
    if read != size:
        more = "more than " if read > size else ""
        raise BrokenBackupError(
            f"{storage.url}: {key} has {more}{min(read, size)} bytes, the manifest says {size}"
        )
    if digest.hexdigest() != sha256:
        raise BrokenBackupError(f"{storage.url}: {key} has other bytes than the manifest says (SHA-256)")


class VerifiedBackups(Struct, frozen=True):
    """What a verification has read, and which objects are missing or wrong."""

    backups: int
    objects: int
    read_bytes: int
    faults: tuple[str, ...]


def verify(storage: ObjectStorage, chosen: Sequence[BackupManifest], progress: Progress) -> VerifiedBackups:
    """Reads every object of the backups, each once, and compares it with its manifest. Raises
    BackupStorageError."""
    wanted = {one.key: (one.end - one.start, one.sha256) for backup in chosen for one in backup.pieces}
    wanted |= {one.key: (one.stored, one.sha256) for backup in chosen for one in backup.files}
    total, faults = 0, []
    for number, (key, (size, sha256)) in enumerate(sorted(wanted.items())):
        progress(f"object {number + 1} of {len(wanted)}")
        try:
            for part in checked_parts(storage, key, size, sha256):
                total += len(part)
        except BrokenBackupError as error:
            faults.append(str(error))
    return VerifiedBackups(len(chosen), len(wanted), total, tuple(faults))


class DeletedBackups(Struct, frozen=True):
    """The ids of deleted backups, and the number of objects that were deleted with them."""

    backups: tuple[str, ...]
    objects: int


def delete(
    storage: ObjectStorage,
    chosen: Sequence[BackupManifest],
    *,
    dry_run: bool = False,
    clock: Callable[[], float] = time.time,
) -> DeletedBackups:
    """Deletes backups, and the objects that no remaining backup needs. Their manifests go first; then the
    remaining manifests are read again, so that a backup which is taken meanwhile keeps what it needs. Raises
    BackupError; a call that failed can be repeated."""
    names = tuple(one.id for one in chosen)
    if not dry_run:
        for one in chosen:
            storage.delete(manifest_key(one.id))
    kept = [one for one in manifests(storage) if one.id not in names]
    objects = dict(storage.keys(OBJECTS))
    free = {key for key in backup_plan.freed_keys(chosen, kept) if key in objects}
    free |= set(backup_plan.abandoned_keys(objects, [*chosen, *kept], clock()))
    if not dry_run:
        for key in sorted(free):
            storage.delete(key)
    return DeletedBackups(names, len(free))
