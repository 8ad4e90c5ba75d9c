# pure: a manifest as data
"""Encodes and parses the manifest of a backup, a JSON document that is written after everything it names.

A backup consists of pieces of the commit log and of state files. Each is an object of its own, which several
backups may name. A piece is a range of the log inside one file, from the start of a record to the end of a
record."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from epochmq_store.backups.backup_errors import BrokenBackupError

VERSION: Final = 1
"""Of the manifest. A reader rejects a greater one."""
SEGMENT_BYTES_MAX: Final = 1 << 40
FILE_BYTES_MAX: Final = 1 << 40

BACKUP_ID: Final = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}")
_KEY = re.compile(r"objects/\d{8}T\d{6}Z-[0-9a-f]{6}/(log|files)/[0-9-]{1,64}")

Offset = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Milliseconds = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Text = Annotated[str, Meta(max_length=1000)]


class BackedUpGroup(Struct, frozen=True, rename="camel"):
    """The group of a backup. `mode` is that of its resource: Controller or MasterSlave."""

    broker_name: Text
    cluster: Text
    mode: Text


class LogPiece(Struct, frozen=True, rename="camel"):
    """A range of the log. `stored_ms` and `last_stored_ms` are the least and the greatest store time of its
    messages, in ms since 1970; 0 without messages."""

    key: Text
    start: Offset
    end: Offset
    sha256: Digest
    stored_ms: Milliseconds = 0
    last_stored_ms: Milliseconds = 0


class StoredFile(Struct, frozen=True, rename="camel"):
    """A state file. `path` is relative to the store. The object has the first `stored` bytes; zeros follow up
    to `size`."""

    path: Text
    key: Text
    stored: Offset
    size: Annotated[int, Meta(ge=0, le=FILE_BYTES_MAX)]
    sha256: Digest


class BackupManifest(Struct, frozen=True, rename="camel", kw_only=True):
    """One backup. The log goes from `log_start`, where its first file begins, to `log_end`, the cut.

    `lineage` is the id of the first backup of the same history of the log; offsets of two lineages cannot be
    compared. `parent` is the backup whose objects this one has taken over, if there is one. `epochs` are the
    epochs of the log up to the cut, as [epoch, start offset]. `uploaded_bytes` and `uploaded_objects` are
    what this backup has added to the storage. `order` names what ordered the backup, so that an order which
    is carried out twice makes one backup; empty without one."""

    version: int = VERSION
    id: Text
    product: Text
    taken_ms: Milliseconds
    lineage: Text
    parent: Text | None = None
    group: BackedUpGroup
    replica: Text
    incarnation: Text = ""
    segment_bytes: Annotated[int, Meta(ge=0, le=SEGMENT_BYTES_MAX)]
    log_start: Offset
    log_end: Offset
    last_stored_ms: Milliseconds
    epochs: tuple[tuple[Offset, Offset], ...] = ()
    pieces: tuple[LogPiece, ...] = ()
    files: tuple[StoredFile, ...] = ()
    uploaded_bytes: Offset = 0
    uploaded_objects: Offset = 0
    order: Text = ""

    @property
    def keys(self) -> frozenset[str]:
        """The objects that the backup consists of."""
        return frozenset([one.key for one in self.pieces] + [one.key for one in self.files])

    @property
    def total_bytes(self) -> int:
        """The bytes of all objects that the backup consists of."""
        return sum(one.end - one.start for one in self.pieces) + sum(one.stored for one in self.files)


class _AnyVersion(Struct):
    version: int


def encode_manifest(manifest: BackupManifest) -> bytes:
    """The document."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1)


def parse_manifest(data: bytes, name: str) -> BackupManifest:
    """Parses and checks a manifest; `name` is for messages. Raises BrokenBackupError."""
    try:
        version = msgspec.json.decode(data, type=_AnyVersion).version
        if version != VERSION:
            raise BrokenBackupError(
                f"{name}: version: {version}, expected {VERSION}: it was made by another version of EpochMQ"
            )
        manifest = msgspec.json.decode(data, type=BackupManifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BrokenBackupError(f"{name} is no manifest of a backup: {error}") from None
    fault = _fault(manifest)
    if fault:
        raise BrokenBackupError(f"{name}: {fault}")
    return manifest


def _fault(manifest: BackupManifest) -> str:
    """What is wrong with a manifest whose fields have the right types; empty: nothing."""
    for field, value in (("id", manifest.id), ("lineage", manifest.lineage), ("parent", manifest.parent)):
        if value is not None and not BACKUP_ID.fullmatch(value):
            return f"{field}: {value!r}, expected the id of a backup, such as 20300131T140000Z-0a1b2c"
    for key in manifest.keys:
        if not _KEY.fullmatch(key):
            return f"key: {key!r}, expected objects/ID/log/… or objects/ID/files/…"
    for file in manifest.files:
        if not is_relative_path(file.path):
            return f"files: path: {file.path!r}, expected a path below the store"
        if file.stored > file.size:
            return f"files: {file.path}: stored: {file.stored}, expected at most its size, {file.size}"
    paths = [file.path for file in manifest.files]
    if len(set(paths)) != len(paths):
        return "files: a path stands there twice"
    return _fault_of_log(manifest)


def _fault_of_log(manifest: BackupManifest) -> str:
    pieces, size = manifest.pieces, manifest.segment_bytes
    if not pieces:
        if manifest.log_start != manifest.log_end:
            return f"pieces: none, expected the log from {manifest.log_start} to {manifest.log_end}"
        return ""
    if size == 0:
        return "segmentBytes: 0, expected the size of a file of the log"
    if manifest.log_start % size:
        return f"logStart: {manifest.log_start}, expected a multiple of segmentBytes, {size}"
    for piece in pieces:
        if not piece.start < piece.end or piece.start // size != (piece.end - 1) // size:
            return f"pieces: {piece.start} to {piece.end}, expected a range of one file of the log"
    for before, after in pairwise(pieces):
        if before.end != after.start:
            return f"pieces: {before.start} to {before.end}, then from {after.start}: expected no gap"
    if (pieces[0].start, pieces[-1].end) != (manifest.log_start, manifest.log_end):
        return (
            f"pieces: {pieces[0].start} to {pieces[-1].end}, expected {manifest.log_start} to "
            f"{manifest.log_end}"
        )
    return ""


def is_relative_path(path: str) -> bool:
    """Whether a path leads to a file below the directory to which it is relative."""
    parts = path.split("/")
    return "\0" not in path and not {"", ".", ".."}.intersection(parts)
