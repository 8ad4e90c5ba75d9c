"""Takes a backup of a replica's store.

The order makes it consistent. What was processed (offsets, timers) is read first, then the caller makes the
cut, an offset up to which the whole group has the log; then topics and groups are read, and the log up to the
cut. So the restored log has the result of everything that counts as processed, and a topic for every message.

The manifest is written last. The backup that it takes objects over from must exist then: who deletes it
afterwards sees the new manifest (`catalog.delete`)."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from epochmq_protocol.epoch_entries import parse_epoch_file
from epochmq_protocol.errors import RemoteProtocolError
from epochmq_store.backups import backup_plan, catalog, store_snapshot
from epochmq_store.backups.backup_errors import BackupError
from epochmq_store.backups.manifest import (
    BackedUpGroup,
    BackupManifest,
    LogPiece,
    StoredFile,
    encode_manifest,
)
from epochmq_store.backups.object_storage import ObjectStorage
from epochmq_store.backups.record_walk import BrokenRecordError, walk
from epochmq_store.backups.store_snapshot import OpenLog, StateFile
from epochmq_store.log.record_checks import PLAIN

PIECE_BYTES_MAX = 256 << 20
"""A piece ends at the first record that reaches this size."""
WALK_BYTES = 8 << 20
UPLOADS = 4
"""Objects that are written at a time."""
UPLOADS_WAITING = 8
EPOCH_FILE = "epochFileCheckpoint"
INCARNATIONS_FILE = "brokerIdentity-incarnations"

ReportProgress = Callable[[str], None]


@dataclass(frozen=True)
class BackupCut:
    """The cut of a backup. `store` is the replica whose log is read, `definitions` the store whose topics and
    groups are. `end` is the offset up to which the log counts; None: up to its last record, of a stopped
    broker."""

    group: BackedUpGroup
    replica: str
    store: Path
    definitions: Path
    end: int | None


class _WalkedRange(Struct, frozen=True):
    """Whole records of one file of the log. `ends_log`: no whole record below the cut follows."""

    start: int
    end: int
    stored_ms: int
    last_stored_ms: int
    ends_log: bool


def take(
    storage: ObjectStorage,
    progress_of: Path,
    make_cut: Callable[[], BackupCut],
    *,
    product: str,
    full: bool = False,
    order: str = "",
    report: ReportProgress = lambda text: None,
    clock: Callable[[], float] = time.time,
) -> BackupManifest:
    """Takes a backup. `progress_of` is the store whose offsets and timers are read, before `make_cut` is
    called; `full` takes nothing over from an earlier backup. If a backup of the same `order` exists, that one
    is returned. Raises BackupError and OSError."""
    earlier = catalog.manifests(storage)
    if order and (done := next((one for one in earlier if one.order == order), None)) is not None:
        return done
    opened = store_snapshot.progress_files(progress_of)
    try:
        taken_ms = int(clock() * 1000)
        cut = make_cut()
        _check_group(storage, earlier, cut.group)
        opened.update(store_snapshot.definition_files(cut.definitions))
        with OpenLog(cut.store) as log:
            backup = _Backup(storage, log, cut, taken_ms, product, order, report)
            return backup.run(None if full else backup_plan.newest(earlier), opened)
    finally:
        for file in opened.values():
            file.close()


def _check_group(storage: ObjectStorage, earlier: Sequence[BackupManifest], group: BackedUpGroup) -> None:
    for one in earlier:
        if one.group.broker_name != group.broker_name:
            raise BackupError(
                f"{storage.url} has backups of group {one.group.broker_name}, expected {group.broker_name}: "
                "give each group a URL of its own"
            )


class _Backup:
    def __init__(
        self,
        storage: ObjectStorage,
        log: OpenLog,
        cut: BackupCut,
        taken_ms: int,
        product: str,
        order: str,
        report: ReportProgress,
    ) -> None:
        self._storage = storage
        self._log = log
        self._cut = cut
        self._taken_ms = taken_ms
        self._product = product
        self._order = order
        self._report = report
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(taken_ms / 1000))
        self.id = f"{moment}-{secrets.token_hex(3)}"
        self._uploaded_bytes = self._uploaded_objects = 0

    def run(self, parent: BackupManifest | None, opened: dict[str, StateFile]) -> BackupManifest:
        """Writes what is missing, then the manifest."""
        epochs = _epochs(self._cut.store)
        kept = self._pieces_of(parent, epochs)
        if not kept:
            parent = None
        pieces = [*kept, *self._write_log(kept[-1].end if kept else self._log.start)]
        files = self._write_files(opened, parent)
        end = pieces[-1].end if pieces else self._log.start
        manifest = BackupManifest(
            id=self.id,
            product=self._product,
            taken_ms=self._taken_ms,
            lineage=self.id if parent is None else parent.lineage,
            parent=None if parent is None else parent.id,
            group=self._cut.group,
            replica=self._cut.replica,
            incarnation=_incarnation(self._cut.store),
            segment_bytes=self._log.segment_bytes,
            log_start=self._log.start,
            log_end=end,
            last_stored_ms=max((one.last_stored_ms for one in pieces), default=0),
            epochs=tuple(one for one in epochs if one[1] < end),
            pieces=tuple(pieces),
            files=tuple(files),
            uploaded_bytes=self._uploaded_bytes,
            uploaded_objects=self._uploaded_objects,
            order=self._order,
        )
        self._storage.write(catalog.manifest_key(self.id), [encode_manifest(manifest)])
        if parent is not None and parent.id not in catalog.ids(self._storage):
            self._storage.delete(catalog.manifest_key(self.id))
            raise BackupError(
                f"backup {parent.id}, from which this one took objects over, was deleted meanwhile: "
                "take the backup again"
            )
        return manifest

    def _pieces_of(
        self, parent: BackupManifest | None, epochs: Sequence[tuple[int, int]]
    ) -> tuple[LogPiece, ...]:
        """The pieces that the log has in common with an earlier backup."""
        if parent is None or not self._log.files:
            return ()
        end = (
            self._cut.end
            if self._cut.end is not None
            else list(self._log.files)[-1] + self._log.segment_bytes
        )
        kept = backup_plan.common_pieces(parent, self._log.segment_bytes, self._log.start, end, epochs)
        if not kept:
            return ()
        # The log of another group of the same name may have the same epochs.
        digest = hashlib.sha256()
        for part in self._log.parts(kept[-1].start, kept[-1].end):
            digest.update(part)
        return kept if digest.hexdigest() == kept[-1].sha256 else ()

    def _write_log(self, start: int) -> list[LogPiece]:
        """Writes the log from `start` to the cut."""
        pieces: list[Future[LogPiece]] = []
        with ThreadPoolExecutor(UPLOADS, "backup-upload") as pool:
            try:
                for one in self._walked(start):
                    self._report(f"the log up to offset {one.end}")
                    waiting = [piece for piece in pieces if not piece.done()]
                    if len(waiting) >= UPLOADS_WAITING:
                        wait_for(waiting, return_when="FIRST_COMPLETED")
                    for piece in pieces:
                        if piece.done():
                            piece.result()  # an upload that failed ends the backup
                    pieces.append(pool.submit(self._write_piece, one))
                written = [piece.result() for piece in pieces]
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        self._uploaded_bytes += sum(one.end - one.start for one in written)
        self._uploaded_objects += len(written)
        return written

    def _write_piece(self, one: _WalkedRange) -> LogPiece:
        key = f"{catalog.OBJECTS}/{self.id}/log/{one.start:020}-{one.end:020}"
        sha256 = self._write_object(key, self._log.parts(one.start, one.end))
        return LogPiece(key, one.start, one.end, sha256, one.stored_ms, one.last_stored_ms)

    def _write_object(self, key: str, parts: Iterator[bytes]) -> str:
        """Writes an object; returns the SHA-256 of its content."""
        digest = hashlib.sha256()

        def read() -> Iterator[bytes]:
            for part in parts:
                digest.update(part)
                yield part

        self._storage.write(key, read())
        return digest.hexdigest()

    def _walked(self, start: int) -> Iterator[_WalkedRange]:
        """The records from `start` to the cut, in pieces. Raises BackupError."""
        at, cut = start, self._cut.end
        while (found := self._log.file_at(at)) is not None:
            begins, file = found
            file_end = begins + file.size
            limit = file_end if cut is None else min(cut, file_end)
            while at < limit:
                one = self._piece_at(at, begins, file, limit)
                if one.end > one.start:
                    yield one
                at = one.end
                if one.ends_log:
                    break
            if at < file_end:
                if cut is None and self._has_records_from(file_end):
                    raise BrokenRecordError(at, "but the log has later files")
                return
        if cut is not None and at < cut:
            raise BackupError(f"the log of {self._cut.replica} ends at {at}, before the cut at {cut}")

    def _has_records_from(self, offset: int) -> bool:
        """Whether the file that begins at an offset has a record. Brokers create the next file in advance."""
        later = self._log.file_at(offset)
        return later is not None and any(later[1].read(offset - later[0], PLAIN.start_bytes))

    def _piece_at(self, start: int, begins: int, file: store_snapshot.OpenFile, limit: int) -> _WalkedRange:
        """The piece that starts at `start`: whole records below `limit`."""
        at, times, wanted, ends = start, list[int](), WALK_BYTES, False
        while at < limit and at - start < PIECE_BYTES_MAX and not ends:
            data = file.read(at - begins, min(wanted, limit - at))
            try:
                found = walk(data, at, begins + file.size - at)
            except BrokenRecordError as error:
                if self._cut.end is not None:
                    raise
                # The log of a stopped broker ends before the first bytes that are no record.
                found, ends = walk(data[: error.offset - at], at, begins + file.size - at), True
            times += [one for one in (found.stored_ms, found.last_stored_ms) if one]
            at, wanted = at + found.size, WALK_BYTES
            if found.size:
                continue
            if at + max(found.needed, 1) <= limit and found.needed > len(data):
                wanted = found.needed
                continue
            ends = True
            if self._cut.end is not None:
                self._check_record_at_cut(at, begins, file, found.needed)
        return _WalkedRange(start, at, min(times, default=0), max(times, default=0), ends)

    def _check_record_at_cut(self, at: int, begins: int, file: store_snapshot.OpenFile, size: int) -> None:
        """Raises BrokenRecordError unless the record in which the cut lies is whole. Otherwise a broken size
        below the cut would look like it."""
        room = begins + file.size - at
        size = size or walk(file.read(at - begins, PLAIN.start_bytes), at, room).needed
        if size == PLAIN.start_bytes:  # fewer bytes than these were below the cut
            size = max(walk(file.read(at - begins, size), at, room).needed, size)
        if size and not walk(file.read(at - begins, size), at, room).size:
            raise BrokenRecordError(at, f"{size} bytes, of which some are missing; take the backup again")

    def _write_files(self, opened: dict[str, StateFile], parent: BackupManifest | None) -> list[StoredFile]:
        known = {} if parent is None else {one.path: one for one in parent.files}
        found = []
        for number, (path, file) in enumerate(sorted(opened.items())):
            stored, sha256 = store_snapshot.measured(file)
            before = known.get(path)
            if before is not None and (before.stored, before.sha256) == (stored, sha256):
                found.append(StoredFile(path, before.key, stored, file.size, sha256))
                continue
            key = f"{catalog.OBJECTS}/{self.id}/files/{number:06}"
            sha256 = self._write_object(key, file.parts(0, stored))
            found.append(StoredFile(path, key, stored, file.size, sha256))
            self._uploaded_bytes += stored
            self._uploaded_objects += 1
        return found


def _epochs(store: Path) -> tuple[tuple[int, int], ...]:
    """The epochs of a log; none without a file."""
    path = store / EPOCH_FILE
    try:
        entries = parse_epoch_file(path.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return ()
    except RemoteProtocolError as error:
        raise BackupError(f"{path}: {error}") from None
    return tuple((one.epoch, one.start_offset) for one in entries)


def _incarnation(store: Path) -> str:
    """The name of the newest process of a store; empty without one."""
    try:
        return (store / INCARNATIONS_FILE).read_text(encoding="utf-8", errors="replace").split(",")[0].strip()
    except OSError:
        return ""
